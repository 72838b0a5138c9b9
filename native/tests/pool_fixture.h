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

class NoHotThreads {
 public:
  NoHotThreads() { Pool::process().keep_threads_hot(false); }
  ~NoHotThreads() { Pool::process().keep_threads_hot(true); }
};

// A test of what holds whether pool threads stay hot or sleep on a condition variable: it is two.
#define TEST_OF_BOTH_POOLS(name)                 \
  static void both_##name();                     \
  TEST(name) { both_##name(); }                  \
  TEST(name##_without_hot_threads) {             \
    const ::grainline::test::NoHotThreads sleep; \
    both_##name();                               \
  }                                              \
  static void both_##name()

// Returns when every pool thread there is has run a task, so none is still being started. To be
// called before a fork: AddressSanitizer allocates on behalf of a new thread, and a child made at
// that moment would inherit the lock of its allocator.
inline void let_every_pool_thread_run() {
  static std::atomic<int> missing;
  const int homes = Pool::process().threads_started() + 1;
  const PretendProcessors enough(homes);
  missing = homes;
  const TileKernel kernel = [](const uint64_t*, int64_t, int64_t, void*) -> int32_t {
    missing.fetch_sub(1);
    while (missing > 0) sched_yield();
    return 0;
  };
  Pool::process().dispatch({kernel, nullptr, homes, 1, homes, nullptr, 0});
}

}  // namespace grainline::test
