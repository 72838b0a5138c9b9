// A count that only grows, and threads that wait until it has reached a number.
#pragma once

#include <atomic>
#include <cstdint>

namespace grainline {

// Counts modulo 2^32; what is waited for lies less than 2^31 ahead. One thread advances it, any
// number may wait. Advancing is one store while nobody waits.
class Milestone {
 public:
  // Acquire: sees everything that was written before the count was reached.
  uint32_t reached() const noexcept { return count_.load(std::memory_order_acquire); }
  bool has_reached(uint32_t count) const noexcept {
    return static_cast<int32_t>(reached() - count) >= 0;
  }
  void advance_to(uint32_t count) noexcept;
  // false: timeout_ns passed first; a negative time never passes.
  bool await(uint32_t count, int64_t timeout_ns) noexcept;

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> waiters_{0};
};

}  // namespace grainline
