// The pool threads' life: when they start, spin and sleep, and what a fork does.
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include "base/clock.h"
#include "check.h"
#include "memory/output_pool.h"
#include "pool_fixture.h"
#include "threads/pool.h"
#include "threads/topology.h"

using namespace grainline;
using namespace grainline::test;

namespace {

// Counts blocks in args[0], and a little work for each.
int32_t add_blocks(const uint64_t* args, int64_t begin, int64_t end, void*) {
  reinterpret_cast<std::atomic<int64_t>*>(args[0])->fetch_add(end - begin);
  return 0;
}

bool dispatch_runs_all(int homes) {
  std::atomic<int64_t> sum{0};
  const uint64_t args[] = {reinterpret_cast<uint64_t>(&sum)};
  return Pool::process().dispatch({&add_blocks, args, 1000, 1, homes, nullptr, 0}) == 0 &&
         sum == 1000;
}

int64_t process_cpu_ns() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

bool becomes_parked() {
  for (int i = 0; i < 2000 && Pool::process().pool_threads_hot(); ++i) sleep_ms(1);
  return !Pool::process().pool_threads_hot();
}

// Exit status of a child that runs body; a child that hangs is ended by its alarm.
int status_in_child(int (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(body());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

}  // namespace

TEST_OF_BOTH_POOLS(nothing_spins_outside_a_run) {
  const PretendProcessors two(2);
  dispatch_runs_all(2);
  EXPECT(becomes_parked(), "the thread parks when there is no run");
  const int64_t before_ns = process_cpu_ns();
  sleep_ms(200);
  EXPECT(process_cpu_ns() - before_ns < 20'000'000, "an idle process uses no processor time");
}

// The best of many, because another process may delay any one of them.
TEST(threads_park_at_once_when_the_last_run_ends) {
  const PretendProcessors two(2);
  int64_t best_ns = INT64_MAX;
  for (int i = 0; i < 100; ++i) {
    int64_t end_ns = 0;
    {
      const RunScope run;
      dispatch_runs_all(2);
      end_ns = now_ns();
    }
    while (Pool::process().pool_threads_hot() && now_ns() - end_ns < 1'000'000) sched_yield();
    best_ns = std::min(best_ns, now_ns() - end_ns);
  }
  EXPECT(best_ns < Pool::kHotNs / 2, "long before their spin would have ended");
}

TEST(a_run_that_waits_does_not_keep_threads_spinning) {
  const PretendProcessors two(2);
  const RunScope run;
  dispatch_runs_all(2);
  EXPECT(becomes_parked(), "the spin is bounded, also inside a run");
  const int64_t before_ns = process_cpu_ns();
  sleep_ms(200);
  EXPECT(process_cpu_ns() - before_ns < 20'000'000, "a run that waits uses no processor time");
}

// A task takes long enough for the thread to be there when the next one comes, if it spun.
TEST(without_hot_threads_every_dispatch_finds_them_asleep) {
  const PretendProcessors two(2);
  const NoHotThreads sleep;
  const RunScope run;
  for (int i = 0; i < 20; ++i) {
    EXPECT(dispatch_runs_all(2), "every block");
    EXPECT(becomes_parked(), "a thread that has nothing to do sleeps, inside a run too");
  }
  Pool::process().warm(2);
  EXPECT(!Pool::process().pool_threads_hot(), "nothing is woken without work");
}

// Threads that sleep in one way are woken by those who would sleep in the other.
TEST(threads_are_woken_however_they_sleep) {
  const PretendProcessors four(4);
  for (int i = 0; i < scaled(2000); ++i) {
    Pool::process().keep_threads_hot(i % 3 == 0);
    if (!EXPECT(dispatch_runs_all(4), "every block")) break;
    if (i % 100 == 0) let_every_pool_thread_run();
  }
  Pool::process().keep_threads_hot(true);
}

// Both homes wait in their task until both have begun, so each runs one. The pool thread must not
// be allowed where the caller is, and must be where the caller was.
TEST_OF_BOTH_POOLS(a_thread_is_kept_off_the_callers_processor) {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  if (CPU_COUNT(&allowed) < 2) {
    std::puts("  skipped: there is one processor");
    return;
  }
  const PretendProcessors two(2);
  static std::thread::id caller;
  static std::atomic<int> begun;
  static cpu_set_t of_thread;
  caller = std::this_thread::get_id();
  const TileKernel note_mask = [](const uint64_t*, int64_t, int64_t, void*) -> int32_t {
    if (std::this_thread::get_id() != caller) sched_getaffinity(0, sizeof of_thread, &of_thread);
    for (++begun; begun < 2;) sched_yield();
    return 0;
  };
  for (int i = 0; i < 20; ++i) {
    int place = current_processor();
    do {
      place = (place + 1) % CPU_SETSIZE;
    } while (!CPU_ISSET(static_cast<size_t>(place), &allowed));
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(static_cast<size_t>(place), &here);
    EXPECT(becomes_parked(), "the thread sleeps");
    sched_setaffinity(0, sizeof here, &here);
    cpu_set_t with_choice = allowed;
    sched_setaffinity(0, sizeof with_choice, &with_choice);
    begun = 0;
    Pool::process().dispatch({note_mask, nullptr, 2, 1, 2, nullptr, 0});
    if (place != current_processor()) continue;  // somebody else needed that processor
    EXPECT(!CPU_ISSET(static_cast<size_t>(place), &of_thread), "not where the caller is");
    EXPECT(CPU_COUNT(&of_thread) == CPU_COUNT(&allowed) - 1, "anywhere else");
  }
}

// Where there is one processor only, the thread that was woken sleeps again before the caller
// looks.
TEST(warm_wakes_the_threads) {
  const PretendProcessors two(2);
  Pool& pool = Pool::process();
  dispatch_runs_all(2);
  EXPECT(becomes_parked(), "parked at first");
  const RunScope run;
  bool was_hot = false;
  for (int i = 0; i < 200 && !was_hot; ++i) {
    pool.warm(2);
    was_hot = pool.pool_threads_hot();
  }
  EXPECT(was_hot || pool.processors() == 1, "awake afterwards");
  EXPECT(dispatch_runs_all(2), "and the pool works");
}

TEST_OF_BOTH_POOLS(more_homes_than_processors_do_not_stall) {
  const PretendProcessors many(8);
  const RunScope run;
  dispatch_runs_all(8);
  const int64_t begin_ns = now_ns();
  const int rounds = scaled(500);
  for (int i = 0; i < rounds; ++i) EXPECT(dispatch_runs_all(8), "every block");
  const int64_t each_ns = (now_ns() - begin_ns) / rounds;
  EXPECT(each_ns < (kIsThreadSanitized ? 20'000'000 : 2'000'000),
         "no dispatch waits for a scheduler tick");
}

TEST_OF_BOTH_POOLS(a_child_of_fork_has_a_working_pool) {
  dispatch_runs_all(2);
  let_every_pool_thread_run();
  const PretendProcessors two(2);
  EXPECT(dispatch_runs_all(2) && Pool::process().threads_started() >= 1, "the parent has threads");
  const int status = status_in_child([]() -> int {
    if (Pool::process().threads_started() != 0) return 1;
    if (Pool::process().active_runs() != 0) return 2;
    Pool::process().override_processors_for_test(3);
    const RunScope run;
    for (int i = 0; i < 100; ++i)
      if (!dispatch_runs_all(3)) return 3;
    return Pool::process().threads_started() == 2 ? 0 : 4;
  });
  EXPECT(status == 0, "the child starts threads of its own");
  EXPECT(dispatch_runs_all(2), "and the parent goes on");
}

TEST(a_child_may_leave_in_the_ordinary_way) {
  dispatch_runs_all(2);
  let_every_pool_thread_run();
  const PretendProcessors two(2);
  dispatch_runs_all(2);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const int result = dispatch_runs_all(2) ? 0 : 1;
    // LeakSanitizer cannot stop the threads of a child, and says so.
    if (kIsAddressSanitized) _exit(result);
    std::exit(result);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "teardown in the child joins nobody");
}

TEST_OF_BOTH_POOLS(forking_while_others_dispatch_never_hangs) {
  if (kIsThreadSanitized || kIsAddressSanitized) {
    std::puts("  skipped: the sanitizers' own locks do not survive a fork while others run");
    return;
  }
  const PretendProcessors four(4);
  std::atomic<bool> is_over{false};
  std::thread busy([&] {
    while (!is_over) {
      const RunScope run;
      dispatch_runs_all(4);
      OutputPool::process().release(OutputPool::process().acquire(1000));
    }
  });
  for (int i = 0; i < 200; ++i) {
    const int status = status_in_child([]() -> int {
      const RunScope run;
      if (Pool::process().active_runs() != 1) return 1;
      std::byte* data = OutputPool::process().acquire(1000);
      if (data == nullptr) return 2;
      OutputPool::process().release(data);
      return dispatch_runs_all(4) ? 0 : 3;
    });
    if (!EXPECT(status == 0, "a fork at any moment leaves a working child")) break;
  }
  is_over = true;
  busy.join();
}

TEST(a_fork_inside_a_run_keeps_the_run) {
  const RunScope run;
  const int status =
      status_in_child([]() -> int { return Pool::process().active_runs() == 1 ? 0 : 1; });
  EXPECT(status == 0, "the forking thread's own run goes on in the child");
}
