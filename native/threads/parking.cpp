#include "threads/parking.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace grainline {

#if defined(__linux__)

void sleep_on(std::atomic<uint32_t>& word, uint32_t expected) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void wake_sleeper(std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

#else

// Acquire suffices: the caller tests its own condition afterwards.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected) noexcept {
  word.wait(expected, std::memory_order_acquire);
}

void wake_sleeper(std::atomic<uint32_t>& word) noexcept { word.notify_one(); }

#endif

}  // namespace grainline
