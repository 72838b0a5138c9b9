// A count that only grows, and threads that wait until it has reached a number.
#pragma once

#include <atomic>
#include <cstdint>

namespace grainline {

// Counts modulo 2^32; what is waited for lies less than 2^31 ahead. One thread advances it at a
// time, any number may wait. Advancing is one store and one load until a number is reached that
// somebody sleeps for: who waits for the last of many steps is not woken by each of them.
class Milestone {
 public:
  // Acquire: sees everything that was written before the count was reached.
  uint32_t reached() const noexcept { return count_.load(std::memory_order_acquire); }
  bool has_reached(uint32_t count) const noexcept { return is_behind(count, reached()); }
  void advance_to(uint32_t count) noexcept;
  // false: timeout_ns passed first; a negative time never passes.
  bool await(uint32_t count, int64_t timeout_ns) noexcept;
  // How often sleepers were woken.
  uint32_t wakes() const noexcept { return wakes_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kNobody = UINT64_MAX;

  static bool is_behind(uint32_t count, uint32_t reached) noexcept {
    return static_cast<int32_t>(reached - count) >= 0;
  }
  void announce(uint32_t count) noexcept;
  void wake_reached(uint32_t count) noexcept;

  std::atomic<uint32_t> count_{0};
  std::atomic<uint64_t> nearest_{kNobody};  // the first number that somebody sleeps for
  std::atomic<uint32_t> wakes_{0};          // what sleepers sleep on
};

}  // namespace grainline
