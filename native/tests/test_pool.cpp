// What a dispatch promises: every block exactly once, within its homes, whatever else happens.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "check.h"
#include "device/inline_stream.h"
#include "pool_fixture.h"
#include "threads/pool.h"

using namespace grainline;
using namespace grainline::test;

namespace {

// args: counter of each block, blocks per counter. Counts every block it is given.
struct Counting {
  explicit Counting(int64_t block_count) : counts(static_cast<size_t>(block_count)) {
    args[0] = reinterpret_cast<uint64_t>(counts.data());
  }
  static int32_t kernel(const uint64_t* args, int64_t begin, int64_t end, void*) {
    auto* counts = reinterpret_cast<std::atomic<int32_t>*>(args[0]);
    for (int64_t i = begin; i < end; ++i) counts[i].fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  bool every_block_once() const {
    return std::all_of(counts.begin(), counts.end(), [](const auto& c) { return c == 1; });
  }
  Dispatch dispatch(int64_t grain, int homes) {
    return {&kernel, args, static_cast<int64_t>(counts.size()), grain, homes, nullptr, 0};
  }
  std::vector<std::atomic<int32_t>> counts;
  uint64_t args[1];
};

}  // namespace

TEST_OF_BOTH_POOLS(every_block_exactly_once) {
  const PretendProcessors many(8);
  const RunScope run;
  for (int64_t blocks : {0, 1, 2, 3, 7, 8, 31, 64, 257, 1000})
    for (int64_t grain : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{16},
                          int64_t{999}, int64_t{1000}, INT64_MAX})
      for (int homes : {-1, 0, 1, 2, 3, 5, 8, 1000}) {
        Counting work(blocks);
        EXPECT(Pool::process().dispatch(work.dispatch(grain, homes)) == 0, "no fault");
        EXPECT(work.every_block_once(), "every block exactly once");
      }
}

TEST_OF_BOTH_POOLS(many_dispatches_in_a_row_lose_nothing) {
  const PretendProcessors two(2);
  const RunScope run;
  for (int i = 0; i < scaled(20000); ++i) {
    Counting work(9);
    Pool::process().dispatch(work.dispatch(1 + i % 4, 2));
    if (!EXPECT(work.every_block_once(), "every block exactly once, back to back")) return;
  }
}

TEST(tasks_beyond_32_bits_make_the_grain_grow) {
  const PretendProcessors two(2);
  static std::atomic<int64_t> sum;
  sum = 0;
  const TileKernel kernel = [](const uint64_t*, int64_t begin, int64_t end, void*) -> int32_t {
    sum.fetch_add(end - begin, std::memory_order_relaxed);
    return 0;
  };
  const int64_t blocks = INT64_MAX - 5;
  EXPECT(Pool::process().dispatch({kernel, nullptr, blocks, blocks / 1000, 2, nullptr, 0}) == 0,
         "no fault");
  EXPECT(sum == blocks, "extents near the end of 64 bits do not overflow");
}

TEST(one_home_is_one_call_on_the_caller) {
  static int calls;
  static std::thread::id thread;
  calls = 0;
  const TileKernel kernel = [](const uint64_t*, int64_t begin, int64_t end, void*) -> int32_t {
    ++calls;
    thread = std::this_thread::get_id();
    return static_cast<int32_t>(end - begin);
  };
  EXPECT(Pool::process().dispatch({kernel, nullptr, 77, 1, 1, nullptr, 0}) == 77, "all blocks");
  EXPECT(calls == 1 && thread == std::this_thread::get_id(), "one call, on the caller");
  EXPECT(Pool::process().dispatch({kernel, nullptr, 77, 77, 8, nullptr, 0}) == 77, "one task");
  EXPECT(calls == 2, "a grain that covers all is one call as well");
}

// args: base of the scratch, homes of this dispatch. Home sets alternate, so that a thread which
// comes late from a wide dispatch must not enter the narrow one that follows.
TEST_OF_BOTH_POOLS(scratch_is_private_to_each_home) {
  const PretendProcessors eight(8);
  constexpr size_t kStride = 64;
  alignas(64) static std::byte scratch[8 * kStride];
  const TileKernel kernel = [](const uint64_t* args, int64_t begin, int64_t,
                               void* mine) -> int32_t {
    const auto offset = reinterpret_cast<uint64_t>(mine) - args[0];
    if (offset % kStride != 0 || offset >= args[1] * kStride) return 100;
    auto* word = static_cast<volatile int64_t*>(mine);  // a plain write: a race would be seen
    *word = begin;
    if (begin % 4 == 0) sched_yield();
    return *word == begin ? 0 : 101;
  };
  for (int i = 0; i < scaled(3000); ++i) {
    const int homes = i % 2 == 0 ? 8 : 2;
    const uint64_t args[] = {reinterpret_cast<uint64_t>(scratch), static_cast<uint64_t>(homes)};
    EXPECT(Pool::process().dispatch({kernel, args, 16, 1, homes, scratch, kStride}) == 0,
           "nobody else writes into a home's scratch");
  }
}

// The caller is asked to go on or not; pool threads see its answer.
TEST_OF_BOTH_POOLS(an_interrupt_ends_a_dispatch_between_pieces) {
  const PretendProcessors four(4);
  static std::atomic<int64_t> done;
  static int looks_left;
  static std::thread::id caller;
  caller = std::this_thread::get_id();
  const TileKernel kernel = [](const uint64_t*, int64_t begin, int64_t end, void*) -> int32_t {
    done.fetch_add(end - begin);
    return 0;
  };
  const Interrupt interrupt{[](void*) {
                              EXPECT(std::this_thread::get_id() == caller, "the caller is asked");
                              return looks_left-- == 0;
                            },
                            nullptr};
  constexpr int64_t kBlocks = int64_t{1} << 40;
  for (int homes : {1, 2, 4})
    for (int64_t grain : {int64_t{1} << 10, kBlocks / 8, kBlocks}) {
      done = 0;
      looks_left = 5;
      Dispatch whole{kernel, nullptr, kBlocks, grain, homes, nullptr, 0, &interrupt, 10};
      const auto interrupted = static_cast<int32_t>(KernelFault::interrupted);
      EXPECT(Pool::process().dispatch(whole) == interrupted, "it says so");
      EXPECT(looks_left == -1, "nobody is asked again");
      EXPECT(done >= 60 && done < kBlocks / 2,
             "six pieces of the caller, and no more from then on");
      Counting after(100);
      EXPECT(Pool::process().dispatch(after.dispatch(1, homes)) == 0, "the next dispatch works");
      EXPECT(after.every_block_once(), "and runs everything");
    }
  InlineStream stream;
  looks_left = 0;
  EXPECT(stream.launch({kernel, nullptr, 9, 9, 1, nullptr, 0, &interrupt, 2}, {}, {}).code() ==
             StatusCode::cancelled,
         "a stream says it as a status");
}

TEST_OF_BOTH_POOLS(pieces_are_every_block_exactly_once) {
  const PretendProcessors many(8);
  const Interrupt never{[](void*) { return false; }, nullptr};
  for (int64_t blocks : {0, 1, 7, 64, 257, 1000})
    for (int64_t grain : {1, 3, 16, 1000})
      for (int64_t look_every : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{5}, INT64_MAX})
        for (int homes : {1, 2, 5}) {
          Counting work(blocks);
          Dispatch pieces = work.dispatch(grain, homes);
          pieces.interrupt = &never;
          pieces.look_every = look_every;
          EXPECT(Pool::process().dispatch(pieces) == 0, "no fault");
          EXPECT(work.every_block_once(), "every block exactly once");
        }
}

TEST_OF_BOTH_POOLS(first_fault_is_returned_and_the_rest_skipped) {
  const PretendProcessors four(4);
  static std::atomic<int64_t> done;
  const TileKernel kernel = [](const uint64_t*, int64_t begin, int64_t end, void*) -> int32_t {
    if (begin <= 5 && 5 < end) return 2;
    done.fetch_add(end - begin);
    return 0;
  };
  constexpr int64_t kBlocks = int64_t{1} << 40;
  for (int homes : {1, 2, 4}) {
    done = 0;
    EXPECT(Pool::process().dispatch({kernel, nullptr, kBlocks, 1, homes, nullptr, 0}) == 2,
           "the fault of block 5");
    EXPECT(done < kBlocks / 2, "what had not begun is skipped");
    Counting after(100);
    EXPECT(Pool::process().dispatch(after.dispatch(1, homes)) == 0, "the next dispatch works");
    EXPECT(after.every_block_once(), "and runs everything");
  }
  InlineStream stream;
  EXPECT(stream.launch({kernel, nullptr, 9, 1, 2, nullptr, 0}, {}, {}).code() ==
             StatusCode::divide_by_zero,
         "a stream says it as a status");
}

// The first task that a pool thread gets waits until everything else is done: its other tasks must
// have been taken by the caller. The caller waits in block 0 until the pool thread has begun.
TEST_OF_BOTH_POOLS(a_slow_thread_is_stolen_from) {
  const PretendProcessors two(2);
  const RunScope run;
  static std::atomic<int> done;
  static std::atomic<bool> has_begun;
  static std::thread::id caller;
  caller = std::this_thread::get_id();
  const TileKernel kernel = [](const uint64_t*, int64_t, int64_t, void*) -> int32_t {
    const bool is_caller = std::this_thread::get_id() == caller;
    const bool is_slow = !is_caller && !has_begun.exchange(true);
    const int64_t end_ns = now_ns() + 20'000'000'000;
    while (is_slow ? done != 15 : !has_begun) {
      if (now_ns() > end_ns) return 100;
      sched_yield();
    }
    ++done;
    return 0;
  };
  for (int i = 0; i < 20; ++i) {
    done = 0;
    has_begun = false;
    EXPECT(Pool::process().dispatch({kernel, nullptr, 16, 1, 2, nullptr, 0}) == 0,
           "the slow thread's tasks were taken by the caller");
    EXPECT(done == 16, "all tasks ran");
  }
}

// Every home waits in its first task until all have begun theirs, so nothing is stolen before.
TEST_OF_BOTH_POOLS(homes_own_tasks_that_lie_together) {
  const PretendProcessors four(4);
  static std::atomic<int> begun;
  static std::atomic<int64_t> firsts;
  static thread_local int seen_round = 0;
  static int round;
  const TileKernel kernel = [](const uint64_t*, int64_t begin, int64_t, void*) -> int32_t {
    if (seen_round == round) return 0;
    seen_round = round;
    firsts += int64_t{1} << begin;
    for (++begun; begun < 4;) sched_yield();
    return 0;
  };
  for (round = 1; round <= 20; ++round) {
    begun = 0;
    firsts = 0;
    EXPECT(Pool::process().dispatch({kernel, nullptr, 22, 2, 4, nullptr, 0}) == 0, "no fault");
    // 11 tasks of 2 blocks: from task 0, 2, 5 and 8 on.
    EXPECT(firsts == (1 << 0 | 1 << 4 | 1 << 10 | 1 << 16), "home i begins with task i C / h");
  }
}

TEST_OF_BOTH_POOLS(the_first_task_is_the_callers) {
  const PretendProcessors eight(8);
  const RunScope run;
  static std::atomic<int> strays;
  static std::thread::id caller;
  caller = std::this_thread::get_id();
  strays = 0;
  const TileKernel kernel = [](const uint64_t*, int64_t begin, int64_t, void*) -> int32_t {
    if (begin == 0 && std::this_thread::get_id() != caller) ++strays;
    return 0;
  };
  for (int i = 0; i < scaled(3000); ++i)
    Pool::process().dispatch({kernel, nullptr, 2 + i % 30, 1, 2 + i % 7, nullptr, 0});
  EXPECT(strays == 0, "nobody steals what the caller begins with");
}

// Home 2 takes part in one dispatch and in none of the next 2^32, all but two of which are skipped
// here. To it the last one looks like the first, so it does not come; what it did must not count.
TEST_OF_BOTH_POOLS(what_a_home_did_an_age_ago_does_not_count) {
  const PretendProcessors three(3);
  const RunScope run;
  Pool& pool = Pool::process();
  static std::atomic<int> awaited, begun, ran;
  static std::thread::id caller;
  caller = std::this_thread::get_id();
  const TileKernel meet = [](const uint64_t*, int64_t, int64_t, void*) -> int32_t {
    for (++begun; begun < awaited;) std::this_thread::yield();
    if (std::this_thread::get_id() != caller)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++ran;
    return 0;
  };
  const auto runs_all = [&](uint32_t epoch, int homes, int threads) {
    pool.override_epoch_for_test(epoch);
    awaited = threads;
    begun = ran = 0;
    pool.dispatch({meet, nullptr, homes, 1, homes, nullptr, 0});
    return ran == homes;
  };
  const uint32_t next = pool.override_epoch_for_test(0);
  for (const uint32_t epoch : {next + 1'000'000, UINT32_MAX})
    EXPECT(runs_all(epoch, 3, 3) && runs_all(0, 2, 2) && runs_all(epoch, 3, 2),
           "a dispatch ends when all of it is done");
  pool.override_epoch_for_test(next);
}

TEST_OF_BOTH_POOLS(nested_dispatch_runs_inline) {
  const PretendProcessors four(4);
  static std::atomic<int64_t> sum;
  static std::atomic<int> strays;
  sum = 0;
  strays = 0;
  static thread_local std::thread::id outer;
  static const TileKernel inner = [](const uint64_t*, int64_t begin, int64_t end,
                                     void*) -> int32_t {
    if (std::this_thread::get_id() != outer) ++strays;
    sum += end - begin;
    return 0;
  };
  const TileKernel kernel = [](const uint64_t*, int64_t, int64_t, void*) -> int32_t {
    outer = std::this_thread::get_id();
    return Pool::process().dispatch({inner, nullptr, 10, 1, 4, nullptr, 0});
  };
  EXPECT(Pool::process().dispatch({kernel, nullptr, 50, 1, 4, nullptr, 0}) == 0, "no fault");
  EXPECT(sum == 500 && strays == 0, "all inner blocks, on the thread of the outer task");
}

TEST_OF_BOTH_POOLS(concurrent_submitters_do_not_wait_for_each_other) {
  const PretendProcessors four(4);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&wrong, t] {
      for (int i = 0; i < scaled(2000); ++i) {
        const RunScope run;
        Counting work(1 + (i + t) % 50);
        if (i % 7 == 0) Pool::process().warm(3);
        Pool::process().dispatch(work.dispatch(1 + i % 3, 4));
        if (!work.every_block_once()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(wrong == 0, "every block exactly once for each of them");
  EXPECT(Pool::process().active_runs() == 0, "all runs ended");
}

TEST_OF_BOTH_POOLS(a_busy_pool_is_not_waited_for) {
  const PretendProcessors two(2);
  static std::atomic<bool> is_blocked, may_go;
  is_blocked = may_go = false;
  const TileKernel blocking = [](const uint64_t*, int64_t, int64_t, void*) -> int32_t {
    is_blocked = true;
    while (!may_go) sched_yield();
    return 0;
  };
  std::thread first([&] { Pool::process().dispatch({blocking, nullptr, 2, 1, 2, nullptr, 0}); });
  while (!is_blocked) sched_yield();
  Counting work(100);
  Pool::process().dispatch(work.dispatch(1, 2));
  EXPECT(work.every_block_once(), "the second dispatch is done while the first one hangs");
  may_go = true;
  first.join();
}

TEST(the_thread_limit_bounds_the_homes) {
  const PretendProcessors eight(8);
  Pool& pool = Pool::process();
  pool.set_thread_limit(3);
  EXPECT(pool.homes_allowed() == 3, "the limit");
  {
    const RunScope a, b;
    EXPECT(pool.homes_allowed() == 3, "seven are left, three allowed");
  }
  pool.set_thread_limit(0);
  EXPECT(pool.homes_allowed() == 8, "no limit");
  const RunScope a, b, c;
  EXPECT(pool.homes_allowed() == 6, "one processor for each other run");
  pool.set_thread_limit(-4);
  EXPECT(pool.homes_allowed() == 6, "a negative limit is none");
}

TEST_OF_BOTH_POOLS(the_log_has_every_task_of_every_home) {
  const PretendProcessors four(4);
  const RunScope run;
  Pool& pool = Pool::process();
  pool.log().start();
  for (int round = 1; round <= 50; ++round) {
    Counting work(64);
    EXPECT(pool.dispatch(work.dispatch(1, 4)) == 0, "no fault");
  }
  pool.log().stop();
  let_every_pool_thread_run();  // whoever was late has written by now
  int64_t tasks = 0;
  for (const PoolSpan& span : pool.log().spans()) {
    EXPECT(span.begin_ns <= span.end_ns && span.home >= 0 && span.home <= pool.threads_started(),
           "a span of a home");
    tasks += span.tasks;
  }
  EXPECT(tasks == 50 * 64 && pool.log().dropped() == 0, "every task is there once");
  Counting work(64);
  pool.dispatch(work.dispatch(1, 4));
  int64_t after = 0;
  for (const PoolSpan& span : pool.log().spans()) after += span.tasks;
  EXPECT(after == tasks, "a stopped log takes nothing new");
}
