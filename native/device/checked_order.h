// Finds work that touches the same device memory without an order between the two.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "device/stream.h"
#include "memory/stream_clocks.h"

namespace grainline {

// Thread-safe. Judges by what was submitted and waited for, never by what happened to be finished:
// the same program gives the same verdict every time.
//
// Two accesses conflict when they overlap, come from different streams, and one of them writes.
// They must be ordered: by an event that was recorded after the first and awaited before the
// second, or by a synchronise of the first stream in between. Memory that goes back to the device
// must have been waited for by the host.
class CheckedOrder {
 public:
  int add_stream();

  // missing_synchronization, naming streams and memory; such work must not be submitted.
  Status submit(int stream, std::span<const MemoryAccess> accesses);
  void record(int stream, const Event& event);
  void wait(int stream, const Event& event);
  // Around a synchronise: what is submitted beside it is not covered.
  StreamClocks::Snapshot begin_synchronize(int stream);
  void end_synchronize(const StreamClocks::Snapshot& covered);

  // A piece goes back while submitted work may still use it: kept, and what the next submit or
  // take_violation returns.
  void release(const std::byte* memory, size_t size_bytes);
  Status take_violation();

 private:
  struct Access {
    const std::byte* begin;
    const std::byte* end;
    int stream;
    uint64_t time;
    bool is_written;
  };
  const Access* conflict(int stream, const MemoryAccess& access) const;
  void remember(int stream, const MemoryAccess& access);

  std::mutex lock_;
  StreamClocks clocks_;
  std::vector<Access> accesses_;  // the newest of each (range, stream, is_written)
  std::map<const Event*, StreamClocks::Snapshot> events_;
  Status violation_;
};

}  // namespace grainline
