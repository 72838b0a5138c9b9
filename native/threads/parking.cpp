#include "threads/parking.h"

#if defined(__linux__)
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#else
#include <chrono>
#include <thread>
#endif

namespace grainline {

#if defined(__linux__)

void sleep_on(std::atomic<uint32_t>& word, uint32_t expected) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void sleep_on(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) noexcept {
  if (timeout_ns < 0) return sleep_on(word, expected);
  const timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000),
                         static_cast<long>(timeout_ns % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}

void wake_sleeper(std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void wake_all_sleepers(std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

#else

// Acquire suffices: the caller tests its own condition afterwards.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected) noexcept {
  word.wait(expected, std::memory_order_acquire);
}

// The standard has no timed wait on an atomic; a nap of a tenth of a millisecond stands for it.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) noexcept {
  if (timeout_ns < 0) return sleep_on(word, expected);
  if (word.load(std::memory_order_acquire) != expected) return;
  std::this_thread::sleep_for(
      std::chrono::nanoseconds(timeout_ns < 100'000 ? timeout_ns : 100'000));
}

void wake_sleeper(std::atomic<uint32_t>& word) noexcept { word.notify_one(); }

void wake_all_sleepers(std::atomic<uint32_t>& word) noexcept { word.notify_all(); }

#endif

void Sleeper::announce(bool on_condition) noexcept {
  word_.store(on_condition ? kOnCondition : kOnFutex, std::memory_order_seq_cst);
}

// Only the sleeper itself announces, so the word is what it announced, or kAwake.
void Sleeper::sleep() noexcept {
  if (word_.load(std::memory_order_relaxed) != kOnCondition) return sleep_on(word_, kOnFutex);
  pthread_mutex_lock(&lock_);
  while (word_.load(std::memory_order_relaxed) == kOnCondition)
    pthread_cond_wait(&condition_, &lock_);
  pthread_mutex_unlock(&lock_);
}

void Sleeper::wake() noexcept {
  if (word_.load(std::memory_order_seq_cst) == kAwake) return;
  const uint32_t way = word_.exchange(kAwake, std::memory_order_seq_cst);
  if (way == kOnFutex) wake_sleeper(word_);
  if (way != kOnCondition) return;
  // The lock is held once between the exchange and the signal, so that the sleeper is before its
  // test of the word or in the wait, and not between them.
  pthread_mutex_lock(&lock_);
  pthread_mutex_unlock(&lock_);
  pthread_cond_signal(&condition_);
}

void Sleeper::reset() noexcept {
  withdraw();
  lock_ = PTHREAD_MUTEX_INITIALIZER;
  condition_ = PTHREAD_COND_INITIALIZER;
}

}  // namespace grainline
