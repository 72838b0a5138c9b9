// What an allocator must wait for before memory may leave the order of its stream.
//
// While memory stays within one stream's pool, the order of the stream protects it: whoever gets it
// next is submitted later. A physical recycle breaks that order, so it happens only behind both
// waits below, always in this sequence: gate, then stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace grainline {

inline constexpr int64_t kNoTimeout = -1;

// The executor's side: work that is still to be *submitted*. A Free may run before a launch that
// reads its memory was submitted; then a synchronise alone would not cover that launch. A null gate
// pointer means that no such relations exist.
class RecycleGate {
 public:
  // Returns when every launch that an executed Free relates to was submitted, at once when none is
  // open. Anything but ok (an aborted run; a wait that cannot block here) is what the allocation
  // then returns, unchanged and without having synchronised or recycled.
  virtual Status wait() = 0;

 protected:
  ~RecycleGate() = default;
};

// The device's side: work that was submitted and may be unfinished. Streams implement it.
class StreamOrder {
 public:
  // Waits for everything submitted before the call. timed_out after timeout_ns (kNoTimeout: never);
  // otherwise the first failure since the last synchronise, or end_of_sequence. May be called while
  // another thread submits.
  virtual Status synchronize(int64_t timeout_ns) = 0;
  // Submits writing one value over a part of device memory.
  virtual Status fill(std::byte* memory, std::byte value, size_t size_bytes) = 0;
  // Whether work is complete when its submission returns: then nothing uses freed memory any more.
  virtual bool is_inline() const noexcept = 0;

 protected:
  ~StreamOrder() = default;
};

}  // namespace grainline
