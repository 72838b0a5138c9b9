#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/float_environment.h"
#include "check.h"
#include "pool_fixture.h"
#include "threads/pool.h"

using namespace grainline;
using namespace grainline::test;

#if defined(__x86_64__)

namespace {

constexpr unsigned kFlushDenormals = 0x8040;

// As a library of the same process would.
void flush_denormals() { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | kFlushDenormals); }

// The smallest normal float times a half is a denormal, or zero where denormals are flushed.
bool keeps_denormals() {
  volatile float smallest = 1.17549435e-38f;
  volatile float half = smallest * 0.5f;
  return half > 0;
}

}  // namespace

TEST(a_run_computes_in_the_default_float_environment_and_restores_the_callers) {
  const unsigned before = __builtin_ia32_stmxcsr();
  flush_denormals();
  const bool kept_outside = keeps_denormals();
  bool kept_inside = false;
  {
    const RunScope run;
    kept_inside = keeps_denormals();
  }
  const unsigned after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before);
  EXPECT(!kept_outside && kept_inside, "denormals are kept inside a run only");
  EXPECT((after & kFlushDenormals) == kFlushDenormals, "the caller's setting comes back");
}

// A new thread inherits the environment of its maker, so the pool is made new, in a child.
TEST(pool_threads_do_not_inherit_the_float_environment) {
  let_every_pool_thread_run();
  const PretendProcessors two(2);
  static std::atomic<int> of_pool_thread{-1};
  static std::thread::id caller;
  caller = std::this_thread::get_id();
  const TileKernel kernel = [](const uint64_t*, int64_t, int64_t, void*) -> int32_t {
    if (std::this_thread::get_id() != caller) of_pool_thread = keeps_denormals() ? 1 : 0;
    while (of_pool_thread < 0) sched_yield();
    return 0;
  };
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    flush_denormals();
    Pool::process().dispatch({kernel, nullptr, 2, 1, 2, nullptr, 0});
    _exit(of_pool_thread == 1 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT(status == 0, "a pool thread keeps denormals though its maker does not");
}

#endif
