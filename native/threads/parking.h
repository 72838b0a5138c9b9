// Sleeping on a word until someone changes it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace grainline {

// Returns when woken, or at once if the word is not `expected` (any more), or for no reason at all:
// call in a loop that tests its condition.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected) noexcept;
// The same, and returns after timeout_ns at the latest; a negative time never passes.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) noexcept;
void wake_sleeper(std::atomic<uint32_t>& word) noexcept;
void wake_all_sleepers(std::atomic<uint32_t>& word) noexcept;

// One thread that sleeps and those who wake it, by a futex word or by a condition variable. The
// sleeper announces itself, tests its condition, and then sleeps or withdraws; whoever makes the
// condition true wakes afterwards. All of it is sequentially consistent: one of the two sees the
// other. A sleeper and its waker need not agree on the way: the word says how the thread sleeps.
class Sleeper {
 public:
  void announce(bool on_condition) noexcept;
  void withdraw() noexcept { word_.store(kAwake, std::memory_order_relaxed); }
  // After announce. Returns when woken, or for no reason at all.
  void sleep() noexcept;
  // At most one of several wakers pays for the wake-up; without a sleeper it costs one load.
  void wake() noexcept;
  // Acquire: what the sleeper wrote before is seen.
  bool is_announced() const noexcept { return word_.load(std::memory_order_acquire) != kAwake; }
  // In the child of a fork the sleeper is gone, and whoever held the lock.
  void reset() noexcept;

 private:
  static constexpr uint32_t kAwake = 0, kOnFutex = 1, kOnCondition = 2;
  std::atomic<uint32_t> word_{kAwake};
  pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;  // of nothing but the condition's sleep
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

}  // namespace grainline
