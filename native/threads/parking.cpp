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

}  // namespace grainline
