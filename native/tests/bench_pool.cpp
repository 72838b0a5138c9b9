// Prints what a dispatch costs the caller: inline, to a spinning thread, to a sleeping one; and the
// fast paths of the allocators. Medians of many rounds, in nanoseconds. No test.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "build_type.h"
#include "cost/launch.h"
#include "line_transfer.h"
#include "memory/host_memory.h"
#include "memory/output_pool.h"
#include "memory/span_allocator.h"
#include "threads/pool.h"

using namespace grainline;

namespace {

int32_t nothing(const uint64_t*, int64_t, int64_t, void*) { return 0; }

// args: how many multiplications, each of which waits for the one before, make a block.
int32_t multiply(const uint64_t* args, int64_t begin, int64_t end, void*) {
  uint64_t product = 3;
  for (uint64_t left = args[0] * static_cast<uint64_t>(end - begin); left != 0; --left)
    product = product * product + left;
  return product == 0 ? 1 : 0;  // never: squares of odd numbers and a count that ends with 1
}

int32_t burn_one_microsecond(const uint64_t*, int64_t begin, int64_t end, void*) {
  const int64_t end_ns = now_ns() + (end - begin) * 1000;
  while (now_ns() < end_ns) {
  }
  return 0;
}

// Median over rounds of (time of `repeats` calls / repeats).
template <typename Body>
double median_ns(int rounds, int repeats, Body body) {
  std::vector<double> samples;
  for (int round = 0; round < rounds; ++round) {
    const int64_t begin_ns = now_ns();
    for (int i = 0; i < repeats; ++i) body();
    samples.push_back(static_cast<double>(now_ns() - begin_ns) / repeats);
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

void row(const char* what, double ns) { std::printf("%-58s %10.1f ns\n", what, ns); }

// The function pointer must not be known to the compiler, as it is not to the executor.
TileKernel hidden(TileKernel kernel) {
  TileKernel volatile pointer = kernel;
  return pointer;
}

// Two tasks that take equally long, one for each thread, against one of them alone.
void bench_sharing(Pool& pool) {
  const TileKernel work = hidden(&multiply);
  for (const uint64_t multiplications : {200, 500, 2000}) {
    const uint64_t args[] = {multiplications};
    const Dispatch both{work, args, 2, 1, 2, nullptr, 0};
    std::vector<double> alone, pooled, bare;
    for (int round = 0; round < 5; ++round) {
      alone.push_back(median_ns(31, 100, [&] { work(args, 0, 1, nullptr); }));
      pool.dispatch(both);
      pooled.push_back(median_ns(31, 100, [&] { pool.dispatch(both); }));
      bare.push_back(test::bare_hand_over_ns(work, args));
    }
    for (std::vector<double>* times : {&alone, &pooled, &bare})
      std::sort(times->begin(), times->end());
    const std::string task = " of " + std::to_string(std::lround(alone[2])) + " ns";
    row(("what the pool adds to one of two tasks" + task).c_str(), pooled[2] - alone[2]);
    row(("what two bare lines add to one" + task).c_str(), bare[2] - alone[2]);
  }
}

void bench_dispatch() {
  Pool& pool = Pool::process();
  const TileKernel empty = hidden(&nothing);
  const TileKernel burn = hidden(&burn_one_microsecond);
  const Dispatch inline_one{empty, nullptr, 100, 100, 1, nullptr, 0};
  const Dispatch two{empty, nullptr, 2, 1, 2, nullptr, 0};
  row("direct call", median_ns(101, 10000, [&] { empty(nullptr, 0, 100, nullptr); }));
  row("dispatch, one home", median_ns(101, 10000, [&] { pool.dispatch(inline_one); }));
  row("run scope", median_ns(101, 10000, [] { const RunScope run; }));
  {
    const RunScope run;
    const double transfer = test::line_transfer_ns();
    row("a cache line from one processor to the other", transfer);
    row("the floor of a hand-over: it goes there and back", 2 * transfer);
    pool.dispatch(two);
    row("dispatch to one hot thread, 2 empty tasks",
        median_ns(101, 1000, [&] { pool.dispatch(two); }));
    bench_sharing(pool);
    const Dispatch work{burn, nullptr, 16, 2, 2, nullptr, 0};
    row("16 x 1 us, one home", median_ns(51, 20, [&] { burn(nullptr, 0, 16, nullptr); }));
    row("16 x 1 us, two homes, 8 tasks", median_ns(51, 20, [&] { pool.dispatch(work); }));
  }
  std::vector<double> parked;
  for (int i = 0; i < 200; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t begin_ns = now_ns();
    pool.dispatch(two);
    parked.push_back(static_cast<double>(now_ns() - begin_ns));
  }
  std::sort(parked.begin(), parked.end());
  row("dispatch to one sleeping thread, 2 empty tasks", parked[parked.size() / 2]);
  row("the same, best", parked.front());
}

// A stall of a scheduler tick, 1 to 10 ms, would show in the last two rows.
void bench_more_threads_than_processors() {
  Pool& pool = Pool::process();
  pool.override_processors_for_test(4);
  const RunScope run;
  const Dispatch work{hidden(&burn_one_microsecond), nullptr, 40, 5, 4, nullptr, 0};
  std::vector<double> taken;
  for (int i = 0; i < 5000; ++i) {
    const int64_t begin_ns = now_ns();
    pool.dispatch(work);
    taken.push_back(static_cast<double>(now_ns() - begin_ns));
  }
  pool.override_processors_for_test(0);
  std::sort(taken.begin(), taken.end());
  row("40 x 1 us, 8 tasks, three pool threads and the caller", taken[taken.size() / 2]);
  row("the same, 99 of 100 are below", taken[taken.size() * 99 / 100]);
  row("the same, 999 of 1000 are below", taken[taken.size() * 999 / 1000]);
  row("the same, worst", taken.back());
}

void bench_memory() {
  OutputPool& pool = OutputPool::process();
  row("output pool, acquire + release of 1000 bytes",
      median_ns(101, 10000, [&] { pool.release(pool.acquire(1000)); }));
  row("output pool, acquire + release of 1 MB",
      median_ns(101, 10000, [&] { pool.release(pool.acquire(1000000)); }));
  SpanAllocator allocator(HostMemory::process());
  row("span allocator, allocate + free of 100 bytes",
      median_ns(101, 10000, [&] { allocator.free(allocator.allocate(100)); }));
  row("span allocator, allocate + free of 1 MB (split and merge)",
      median_ns(101, 10000, [&] { allocator.free(allocator.allocate(1000000)); }));
}

void bench_choice() {
  const MachineCosts costs;
  for (const int homes : {1, 2, 8, 256}) {
    int64_t total = 1, sum = 0;
    row(("choose_launch, homes allowed: " + std::to_string(homes)).c_str(),
        median_ns(101, 1000, [&] {
          total = (total * 7 + 13) & ((int64_t{1} << 32) - 1);
          sum += choose_launch({total, total, 0, 1 + (total & 1023)}, homes, true, costs).grain;
        }));
    if (sum == 42) std::puts("");
  }
}

}  // namespace

int main() {
  grainline::test::print_build();
  std::printf("processors allowed: %d\n", Pool::process().processors());
  bench_dispatch();
  bench_more_threads_than_processors();
  bench_memory();
  bench_choice();
}
