// What the pool's tests share.
#pragma once

#include <sched.h>

#include <atomic>
#include <thread>

#include "threads/pool.h"

namespace grainline::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kIsThreadSanitized = true;
#else
inline constexpr bool kIsThreadSanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsAddressSanitized = true;
#else
inline constexpr bool kIsAddressSanitized = false;
#endif

// Fewer rounds where every access costs tens of nanoseconds.
inline int scaled(int rounds) { return kIsThreadSanitized ? rounds / 5 + 1 : rounds; }

class PretendProcessors {
 public:
  explicit PretendProcessors(int count) { Pool::process().override_processors_for_test(count); }
  ~PretendProcessors() {
    Pool::process().override_processors_for_test(0);
    Pool::process().set_thread_limit(0);
  }
};

}  // namespace grainline::test
