#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "cost/table.h"
#include "random_seed.h"

using namespace grainline;

namespace {

double ratio(int64_t a, int64_t b) {
  return std::fabs(std::log(static_cast<double>(a)) - std::log(static_cast<double>(b)));
}

}  // namespace

TEST(the_nearest_step_is_nearest_by_ratio) {
  const std::vector<std::vector<int64_t>> axes = {
      {128}, {1, 2, 4, 8, 16}, {1, 64, 4096}, {3, 77, 78, 65536}};
  for (const auto& steps : axes)
    for (int64_t extent = 1; extent < 200'000; extent += 1 + extent / 64) {
      const size_t found = nearest_step(steps, extent);
      for (const int64_t step : steps)
        EXPECT(ratio(steps[found], extent) <= ratio(step, extent) + 1e-12, "no step is nearer");
    }
  const std::vector<int64_t> steps = {2, 8};
  EXPECT(nearest_step(steps, 4) == 0, "of two that are as near the smaller");
  EXPECT(nearest_step(steps, 0) == 0 && nearest_step(steps, -1) == 0, "below all: the first");
  EXPECT(nearest_step(steps, INT64_MAX) == 1, "above all: the last");
}

TEST(a_launch_at_the_point_of_a_row_does_what_the_row_says) {
  std::mt19937_64 random(test::printed_seed("table"));
  for (int i = 0; i < 20'000; ++i) {
    const int64_t blocks = 1 + static_cast<int64_t>(random() % (i % 2 ? 300 : UINT32_MAX));
    const int64_t grain = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(blocks));
    const int64_t tasks = (blocks - 1) / grain + 1;
    const int64_t homes = std::min<int64_t>(tasks, 1 + static_cast<int64_t>(random() % 9));
    const LaunchChoice choice = tabulated_launch({0, 0, blocks, grain, homes}, blocks, 64);
    EXPECT(choice.homes == homes, "its homes");
    EXPECT(choice.grain == (homes > 1 ? grain : blocks), "its grain, or one call for all");
  }
}

TEST(tasks_grow_in_proportion_and_keep_the_laws_of_a_launch) {
  std::mt19937_64 random(test::printed_seed("table"));
  for (int i = 0; i < 20'000; ++i) {
    const auto any = [&](uint64_t most) { return 1 + static_cast<int64_t>(random() % most); };
    const int64_t at = any(5000), grain = any(static_cast<uint64_t>(at)), blocks = any(100'000);
    const int allowed = static_cast<int>(any(9));
    const TableRow row{0, 0, at, grain, any(9)};
    const LaunchChoice choice = tabulated_launch(row, blocks, allowed);
    const int64_t tasks = (blocks - 1) / choice.grain + 1;
    EXPECT(1 <= choice.grain && choice.grain <= blocks, "a task is part of the launch");
    EXPECT(choice.homes <= std::min<int64_t>({allowed, row.homes, tasks}), "within every bound");
    if (choice.homes > 1) {
      EXPECT(choice.grain * at >= grain * blocks && (choice.grain - 1) * at < grain * blocks,
             "the share of the row, rounded up");
    } else {
      EXPECT(choice.grain == blocks, "one call for the whole range");
    }
  }
  EXPECT(tabulated_launch({0, 0, 0, 3, 4}, 100, 4).grain == 3, "without blocks as asked for");
  EXPECT(tabulated_launch({0, 0, 0, 300, 4}, 100, 4).grain == 100, "but no more than all");
  EXPECT(tabulated_launch({0, 0, 5, 3, 4}, 0, 4).grain == 1, "an empty launch is a call");
}
