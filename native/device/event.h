// A mark in a stream, to be waited for by another stream or by the host.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "memory/recycle_gate.h"
#include "threads/milestone.h"

namespace grainline {

// Streams record it and wait for it (see Stream). It may be recorded again, by the same stream; a
// wait refers to the newest record that was submitted before it. It must outlive the commands that
// name it.
class Event {
 public:
  Event() noexcept = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Host side: waits for the newest record; ok at once when there is none. timed_out.
  Status synchronize(int64_t timeout_ns = kNoTimeout);

  // For streams. The number of the newest submitted record; 0: none yet.
  uint32_t recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }
  // Acquire and release: who waits for this record sees what was submitted before it.
  uint32_t add_record() noexcept { return recorded_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  Milestone& completed() noexcept { return completed_; }

 private:
  std::atomic<uint32_t> recorded_{0};
  Milestone completed_;
};

}  // namespace grainline
