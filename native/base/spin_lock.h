// A lock for sections of a few instructions that few threads enter.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/relax.h"

namespace grainline {

// For std::lock_guard. A waiting thread gives its processor away soon, so a holder that was
// suspended gets on.
class SpinLock {
 public:
  void lock() noexcept {
    // Acquire: what the last holder wrote is seen.
    for (int turn = 0; locked_.exchange(true, std::memory_order_acquire); ++turn)
      turn < kTurns ? cpu_relax() : static_cast<void>(sched_yield());
  }
  // Release: pairs with the exchange above.
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  static constexpr int kTurns = 64;
  std::atomic<bool> locked_{false};
};

}  // namespace grainline
