// The floor under everything that one thread hands to another.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/kernel_abi.h"
#include "base/relax.h"

namespace grainline::test {

inline void stay_on(int processor) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(processor, &only);
  pthread_setaffinity_np(pthread_self(), sizeof only, &only);
}

// Two processors that this thread is allowed; {-1, -1} where there is one only.
inline std::pair<int, int> two_processors() {
  cpu_set_t allowed;
  pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
  if (CPU_COUNT(&allowed) < 2) return {-1, -1};
  int here = 0;
  while (!CPU_ISSET(here, &allowed)) ++here;
  int there = here + 1;
  while (!CPU_ISSET(there, &allowed)) ++there;
  return {here, there};
}

// The median of 101 rounds of 1000 turns of `mine`, while another thread does as many of `other`,
// each on a processor of its own; nanoseconds of a turn. 0 where only one processor is allowed.
// Both are given the number of the turn, from 1 on.
template <typename Mine, typename Other>
double turn_ns(Mine mine, Other other) {
  constexpr uint64_t kRounds = 101, kTurns = 1000;
  cpu_set_t allowed;
  pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
  const auto [here, there] = two_processors();
  if (here < 0) return 0;
  std::thread thread([&other, place = there] {
    stay_on(place);
    for (uint64_t turn = 1; turn <= kRounds * kTurns; ++turn) other(turn);
  });
  stay_on(here);
  std::vector<double> samples;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const int64_t begin_ns = now_ns();
    for (uint64_t turn = 1; turn <= kTurns; ++turn) mine(round * kTurns + turn);
    samples.push_back(static_cast<double>(now_ns() - begin_ns) / kTurns);
  }
  thread.join();
  pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

// Half of the round trip of one cache line between two threads, in nanoseconds. No hand-over takes
// less than two of them, one to say that there is work and one to say that it is done. Siblings of
// one core take much less than two cores.
inline double line_transfer_ns() {
  alignas(64) std::atomic<uint64_t> word{0};
  const auto await = [&word](uint64_t value) {
    while (word.load(std::memory_order_acquire) != value) cpu_relax();
  };
  const auto mine = [&](uint64_t turn) {
    word.store(2 * turn - 1, std::memory_order_release);
    await(2 * turn);
  };
  const auto other = [&](uint64_t turn) {
    await(2 * turn - 1);
    word.store(2 * turn, std::memory_order_release);
  };
  return turn_ns(mine, other) / 2;
}

// A call of fn by each of two threads, the second one told by a line and telling by another: what
// is left of a hand-over when nothing can be claimed, stolen or woken and the threads are two.
inline double bare_hand_over_ns(TileKernel fn, const uint64_t* args) {
  struct alignas(64) Offer {
    std::atomic<uint64_t> turn{0};
    TileKernel fn;
    const uint64_t* args;
  } offer;
  alignas(64) std::atomic<uint64_t> done{0};
  const auto mine = [&](uint64_t turn) {
    offer.fn = fn;
    offer.args = args;
    offer.turn.store(turn, std::memory_order_release);
    fn(args, 0, 1, nullptr);
    while (done.load(std::memory_order_acquire) != turn) cpu_relax();
  };
  const auto other = [&](uint64_t turn) {
    while (offer.turn.load(std::memory_order_acquire) != turn) cpu_relax();
    offer.fn(offer.args, 1, 2, nullptr);
    done.store(turn, std::memory_order_release);
  };
  return turn_ns(mine, other);
}

}  // namespace grainline::test
