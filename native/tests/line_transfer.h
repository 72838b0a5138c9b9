// The floor under everything that one thread hands to another.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/relax.h"

namespace grainline::test {

inline void stay_on(int processor) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(processor, &only);
  pthread_setaffinity_np(pthread_self(), sizeof only, &only);
}

// Half of the round trip of one cache line between two threads, each on a processor of its own, in
// nanoseconds: the median of 101 rounds. No hand-over takes less than two of them, one to say that
// there is work and one to say that it is done. Siblings of one core take much less than two cores.
// 0 where only one processor is allowed.
inline double line_transfer_ns() {
  constexpr int kRounds = 101, kTrips = 1000;
  cpu_set_t allowed;
  pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
  if (CPU_COUNT(&allowed) < 2) return 0;
  int here = 0;
  while (!CPU_ISSET(here, &allowed)) ++here;
  int there = here + 1;
  while (!CPU_ISSET(there, &allowed)) ++there;
  alignas(64) std::atomic<int> turn{0};
  std::thread other([&turn, there] {
    stay_on(there);
    for (int next = 1; next < 2 * kRounds * kTrips; next += 2) {
      while (turn.load(std::memory_order_acquire) != next) cpu_relax();
      turn.store(next + 1, std::memory_order_release);
    }
  });
  stay_on(here);
  std::vector<double> samples;
  for (int now = 0; now < 2 * kRounds * kTrips;) {
    const int64_t begin_ns = now_ns();
    for (int trip = 0; trip < kTrips; ++trip, now += 2) {
      turn.store(now + 1, std::memory_order_release);
      while (turn.load(std::memory_order_acquire) != now + 2) cpu_relax();
    }
    samples.push_back(static_cast<double>(now_ns() - begin_ns) / (2 * kTrips));
  }
  other.join();
  pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

}  // namespace grainline::test
