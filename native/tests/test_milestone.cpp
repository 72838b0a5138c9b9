#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "pool_fixture.h"
#include "threads/milestone.h"

using namespace grainline;
using namespace grainline::test;

TEST(milestone_counts_across_the_end_of_its_range) {
  Milestone milestone;
  milestone.advance_to(UINT32_MAX / 2);
  milestone.advance_to(UINT32_MAX - 1);
  EXPECT(milestone.has_reached(UINT32_MAX - 1) && !milestone.has_reached(UINT32_MAX),
         "near the end");
  EXPECT(!milestone.has_reached(1), "what comes after the end is ahead");
  milestone.advance_to(1);
  EXPECT(milestone.has_reached(UINT32_MAX) && milestone.has_reached(1), "past the end");
}

TEST(milestone_waits_in_time_or_for_good) {
  Milestone milestone;
  EXPECT(milestone.await(0, 0), "what is reached needs no time");
  EXPECT(!milestone.await(1, 0) && !milestone.await(1, 2'000'000), "what is not is reported");
  const auto last = static_cast<uint32_t>(scaled(20000));
  std::atomic<int> early{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (uint32_t count = 1; count <= last; count += 7) {
        if (!milestone.await(count, -1) || milestone.reached() < count) ++early;
      }
    });
  }
  for (uint32_t count = 1; count <= last; ++count) milestone.advance_to(count);
  for (std::thread& thread : threads) thread.join();
  EXPECT(early == 0, "nobody leaves early, and nobody is left behind");
}

TEST(milestone_wakes_who_waits_for_the_last_of_many_steps_once) {
  Milestone milestone;
  constexpr uint32_t kLast = 200;
  std::thread waiter([&] { milestone.await(kLast, -1); });
  for (uint32_t count = 1; count <= kLast; ++count) {
    milestone.advance_to(count);
    if (count % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // it sleeps
  }
  waiter.join();
  EXPECT(milestone.wakes() <= 1, "the steps before the last are no matter of its own");
}

TEST(milestone_waits_for_near_and_far_numbers_with_and_without_a_limit) {
  Milestone milestone;
  const auto last = static_cast<uint32_t>(scaled(20000));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t count = 1 + t; count <= last; count += 1 + t * 300) {
        const bool is_limited = count % 3 == 0;
        const bool is_reached = milestone.await(count, is_limited ? 1'000 : -1);
        wrong += !is_limited && !is_reached;
        wrong += is_reached && milestone.reached() < count;
      }
      wrong += !milestone.await(last, -1);
    });
  }
  for (uint32_t count = 1; count <= last; ++count) {
    milestone.advance_to(count);
    if (count % 1000 == 0) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(wrong == 0, "nobody leaves early, and nobody is left behind");
}
