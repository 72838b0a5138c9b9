// A mark in a stream, to be waited for by another stream or by the host.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "memory/recycle_gate.h"
#include "threads/milestone.h"

namespace grainline {

// Streams record it and wait for it (see Stream). It may be recorded again, but belongs to the
// stream that recorded it first. A wait refers to the newest record that was submitted before it.
// It must outlive the commands that name it: the stream is synchronised before the event goes, not
// only the event.
class Event {
 public:
  Event() noexcept = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Host side: waits for the newest record; ok at once when there is none. timed_out.
  Status synchronize(int64_t timeout_ns = kNoTimeout);

  // For streams. The number of the newest submitted record; 0: none yet.
  uint32_t recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }
  // Counts a record of this stream; invalid_argument when the event belongs to another one.
  Status add_record(const void* stream, uint32_t* number);
  Milestone& completed() noexcept { return completed_; }

 private:
  std::atomic<const void*> stream_{nullptr};
  std::atomic<uint32_t> recorded_{0};
  Milestone completed_;
};

}  // namespace grainline
