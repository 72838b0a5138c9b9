#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"
#include "cost/counts.h"
#include "cost/launch.h"
#include "cost/objective.h"

using namespace grainline;

namespace {

struct Share {
  int64_t packets = 0, blocks = 0, tasks = 0;
};

// Deals the tasks out one by one: in turn, or in ranges as the pool does. The counts are the same.
std::vector<Share> deal(const ExecutionWork& work, const WorkRequest& request, int64_t homes,
                        bool in_turn) {
  std::vector<Share> shares(static_cast<size_t>(homes));
  const int64_t packets_per_block = request.block_size / request.packet_width;
  int64_t task = 0;
  for (int64_t begin = 0; begin < work.block_count; begin += work.blocks_per_task, ++task) {
    const int64_t end = std::min(begin + work.blocks_per_task, work.block_count);
    int64_t home = in_turn ? task % homes : 0;
    while (!in_turn && task >= (home + 1) * work.task_count / homes) ++home;
    Share& share = shares[static_cast<size_t>(home)];
    share.tasks += 1;
    share.blocks += end - begin;
    share.packets +=
        std::min(end * packets_per_block, work.packet_count) - begin * packets_per_block;
  }
  return shares;
}

void check_against_dealing(const WorkRequest& r, bool in_turn) {
  const ExecutionWork work = count_work(r);
  const int64_t programs = r.physical_programs;
  EXPECT(work.packet_count == (programs + r.packet_width - 1) / r.packet_width, "packets");
  EXPECT(work.block_count == (programs + r.block_size - 1) / r.block_size, "blocks");
  const std::vector<Share> shares = deal(work, r, work.active_workers, in_turn);
  Share most, sum;
  for (const Share& share : shares) {
    most.packets = std::max(most.packets, share.packets);
    most.blocks = std::max(most.blocks, share.blocks);
    most.tasks = std::max(most.tasks, share.tasks);
    sum.packets += share.packets;
    sum.blocks += share.blocks;
    sum.tasks += share.tasks;
  }
  EXPECT(sum.packets == work.packet_count, "every packet is dealt once");
  EXPECT(sum.blocks == work.block_count, "every block is dealt once");
  EXPECT(sum.tasks == work.task_count, "task count");
  EXPECT(most.packets == work.critical_packets, "critical packets");
  EXPECT(most.blocks == work.critical_blocks, "critical blocks");
  EXPECT(most.tasks == work.critical_tasks, "critical tasks");
  EXPECT(work.active_workers == std::min(work.task_count, r.workers), "active workers");
  EXPECT(r.workers > 1 || work.task_count == 1, "one worker makes one call");
  if (work.active_workers > 1 && r.blocks_per_task > 0)
    EXPECT(work.blocks_per_task == r.blocks_per_task, "an explicit grain that splits is kept");
}

}  // namespace

TEST(closed_counts_equal_dealing_task_by_task) {
  for (int64_t width : {1, 2, 4, 8, 16})
    for (int64_t workers : {1, 3, 8})
      for (int64_t programs : {1, 7, 8, 9, 31, 32, 33, 65, 127, 257, 4097})
        for (int64_t grain :
             {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{16}, (int64_t{1} << 32) - 1})
          for (bool in_turn : {true, false})
            check_against_dealing({programs, width, 32, workers, grain, 32}, in_turn);
}

TEST(no_programs_count_nothing) {
  const ExecutionWork work = count_work({0, 8, 32, 8, 0, 32});
  EXPECT(work.block_count == 0 && work.task_count == 0, "nothing to do");
  EXPECT(cost_terms(work, {}).score == 0, "and it costs nothing");
}

// Recorded: local_lanes 8 multiplies 129 rows by W = 8; H = 8, B = 32.
TEST(default_objective_gives_the_recorded_scores) {
  struct {
    double arithmetic, memory, score;
  } const recorded[] = {{1547, 9792, 193403},
                        {2996, 17664, 351860},
                        {3185, 20352, 400769},
                        {480, 8256, 149152},
                        {960, 12864, 235648}};
  for (const auto& row : recorded) {
    ExecutionWork work = count_work({129 * 8, 8, 32, 8, 0, 32});
    work.arithmetic_per_packet = row.arithmetic;
    work.memory_per_packet = row.memory;
    const CostTerms terms = cost_terms(work, {});
    EXPECT(terms.score == row.score, "the recorded score");
    const double packets = std::max(129.0 / 8, static_cast<double>(work.critical_packets));
    EXPECT(terms.arithmetic + terms.memory + terms.imbalance ==
               packets * (row.arithmetic + row.memory),
           "arithmetic + memory + imbalance is critical packets times work");
  }
}

namespace {

// The model of launch.h played task by task: the caller is free at 0, the others at `delay`, and
// they take `slower` times as long.
double play(const LaunchWork& work, int64_t grain, int homes, double slower,
            const MachineCosts& costs) {
  std::vector<double> free_at(static_cast<size_t>(homes), 0);
  const double delay = std::max(costs.hot_delay_ps - costs.hot_paid_ps, 0.0);
  std::fill(free_at.begin() + 1, free_at.end(), delay);
  const double work_ps = static_cast<double>(work.work_ps) * (1 + costs.crowd);
  const double per_block = work_ps / static_cast<double>(work.blocks);
  const auto task_ps = [&](int64_t blocks) {
    return per_block * static_cast<double>(blocks) + static_cast<double>(work.task_ps) +
           costs.task_ps;
  };
  double end = 0;
  for (int64_t begin = 0; begin < work.blocks; begin += grain) {
    const auto next = std::min_element(free_at.begin(), free_at.end());
    *next += task_ps(std::min(grain, work.blocks - begin)) * (next == free_at.begin() ? 1 : slower);
    end = std::max(end, *next);
  }
  return costs.hot_paid_ps + end;
}

}  // namespace

TEST(launch_time_equals_playing_task_by_task) {
  const MachineCosts costs;
  for (const int64_t work_ps : {int64_t{500'000}, int64_t{3'333'333}, int64_t{80'000'000}})
    for (const int64_t blocks : {2, 3, 7, 33, 129, 1000})
      for (const int64_t grain : {1, 2, 3, 5, 16, 64})
        for (const int homes : {2, 3, 8})
          for (const int64_t own : {0, 400'000}) {
            const LaunchWork work{work_ps, 0, own, blocks};
            const int64_t tasks = (blocks - 1) / grain + 1;
            if (tasks < 2) continue;
            const int used = static_cast<int>(std::min<int64_t>(homes, tasks));
            const double closed = launch_time(work, grain, homes, true, costs);
            const double played = play(work, grain, used, 1, costs);
            EXPECT(std::abs(closed - played) <= 1e-9 * played, "the closed form is the play");
            const double late = play(work, grain, used, kSlower, costs);
            const double expected = (1 - kSlowShare) * played + kSlowShare * late;
            const double found = expected_time(work, grain, homes, true, costs);
            EXPECT(std::abs(found - expected) <= 1e-9 * expected, "beside slow homes too");
          }
}

TEST(memory_beyond_the_caches_is_shared) {
  const MachineCosts costs;
  const int64_t bytes = int64_t{1} << 30;
  const LaunchWork near{1'000'000, 1 << 10, 0, 1000};
  const LaunchWork far{1'000'000, bytes, 0, 1000};
  EXPECT(launch_time(near, 1000, 1, true, costs) == 1'000'000, "near memory adds nothing");
  const auto waited = [&](double size) {
    return launch_time({0, static_cast<int64_t>(size), 0, 1}, 1, 1, true, costs);
  };
  EXPECT(waited(costs.nearest_bytes) == 0, "what fits is found");
  const double more = costs.nearest_bytes * 4 / 3;
  EXPECT(std::abs(waited(more) / (more * costs.private_byte_ps) - 1) < 0.001,
         "nothing is found of a third more");
  const double alone = launch_time(far, 1000, 1, true, costs);
  const double shared = launch_time(far, 10, 8, true, costs);
  EXPECT(alone > 50e9 && shared < alone, "far memory costs, less with more homes");
  EXPECT(shared >= costs.bus_byte_ps * (static_cast<double>(bytes) - costs.shared_bytes),
         "but no faster than memory");
}

TEST(the_costs_of_the_process_are_those_that_were_set_last) {
  const MachineCosts before = machine_costs();
  MachineCosts one = before, other = before;
  one.task_ps += 1;
  other.tie += 1;
  for (const MachineCosts& costs : {one, other, one, before, other, before}) {
    set_machine_costs(costs);
    EXPECT(machine_costs() == costs, "also when they were set before");
  }
}

TEST(chosen_launch_keeps_its_laws) {
  const MachineCosts costs;
  for (const bool is_hot : {false, true})
    for (const int allowed : {0, 1, 2, 3, 8, 256})
      for (const int64_t blocks : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{9}, int64_t{129},
                                   int64_t{1000000007}, INT64_MAX / 2})
        for (int64_t total = 0; total < INT64_MAX / 8; total = total * 7 + 1000) {
          const LaunchWork work{total, total / 100, total / 1000, blocks};
          const LaunchChoice choice = choose_launch(work, allowed, is_hot, costs);
          EXPECT(choice.grain >= 1 && choice.homes >= 1, "positive");
          EXPECT(choice.homes <= std::max(allowed, 1), "within what is allowed");
          const double alone = launch_time(work, std::max<int64_t>(blocks, 1), 1, is_hot, costs);
          EXPECT(choice.time_ps <= alone * (1 + costs.tie), "never predicted slower than alone");
          if (choice.homes == 1)
            EXPECT(choice.grain == std::max<int64_t>(blocks, 1), "one call for the whole range");
          else
            EXPECT(choice.homes <= (blocks - 1) / choice.grain + 1, "every home has a task");
        }
}

TEST(chosen_launch_is_the_best_of_all_grains) {
  const MachineCosts costs;
  for (int64_t total = 1000; total < 1'000'000'000'000; total *= 3)
    for (const int64_t blocks : {3, 16, 97, 400}) {
      const LaunchWork work{total, 0, 20'000, blocks};
      double best = expected_time(work, blocks, 1, true, costs);
      for (int64_t grain = 1; grain < blocks; ++grain)
        best = std::min(best, expected_time(work, grain, 2, true, costs));
      const double chosen = choose_launch(work, 2, true, costs).time_ps;
      // What lies between a number of tasks and twice as many is not tried.
      EXPECT(chosen <= best * (1.02 + costs.tie), "but for near-ties nothing ends earlier");
    }
}

// Beside a home of half the speed, two tasks are a third longer than fine ones would take.
TEST(a_launch_leaves_something_to_steal_from_a_slow_home) {
  const MachineCosts costs;
  for (int64_t total = 20'000'000; total < 1'000'000'000'000; total *= 3) {
    const LaunchWork work{total, 0, 0, 1 << 12};
    for (const bool is_hot : {true, false}) {
      const LaunchChoice choice = choose_launch(work, 2, is_hot, costs);
      if (choice.homes == 1) continue;
      EXPECT(choice.grain * 8 <= work.blocks, "a task is at most a quarter of a home's share");
    }
  }
}
