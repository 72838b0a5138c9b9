#include <algorithm>
#include <limits>
#include <vector>

#include "check.h"
#include "cost/counts.h"
#include "cost/grain.h"
#include "cost/objective.h"

using namespace grainline;

namespace {

struct Share {
  int64_t packets = 0, blocks = 0, tasks = 0;
};

// Deals the tasks out one by one, as the pool does.
std::vector<Share> deal(const ExecutionWork& work, const WorkRequest& request, int64_t homes) {
  std::vector<Share> shares(static_cast<size_t>(homes));
  const int64_t packets_per_block = request.block_size / request.packet_width;
  int64_t task = 0;
  for (int64_t begin = 0; begin < work.block_count; begin += work.blocks_per_task, ++task) {
    const int64_t end = std::min(begin + work.blocks_per_task, work.block_count);
    Share& share = shares[static_cast<size_t>(task % homes)];
    share.tasks += 1;
    share.blocks += end - begin;
    share.packets +=
        std::min(end * packets_per_block, work.packet_count) - begin * packets_per_block;
  }
  return shares;
}

void check_against_dealing(const WorkRequest& r) {
  const ExecutionWork work = count_work(r);
  const int64_t programs = r.physical_programs;
  EXPECT(work.packet_count == (programs + r.packet_width - 1) / r.packet_width, "packets");
  EXPECT(work.block_count == (programs + r.block_size - 1) / r.block_size, "blocks");
  const std::vector<Share> shares = deal(work, r, work.active_workers);
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
          check_against_dealing({programs, width, 32, workers, grain, 32});
}

TEST(no_programs_count_nothing) {
  const ExecutionWork work = count_work({0, 8, 32, 8, 0, 32});
  CostTerms terms;
  EXPECT(work.block_count == 0 && work.task_count == 0, "nothing to do");
  EXPECT(evaluate_cost(work, {}, terms).is_ok() && terms.score == 0, "and it costs nothing");
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
    CostTerms terms;
    EXPECT(evaluate_cost(work, {}, terms).is_ok(), "a legal cost");
    EXPECT(terms.score == row.score, "the recorded score");
    const double packets = std::max(129.0 / 8, static_cast<double>(work.critical_packets));
    EXPECT(terms.arithmetic + terms.memory + terms.imbalance ==
               packets * (row.arithmetic + row.memory),
           "arithmetic + memory + imbalance is critical packets times work");
  }
}

TEST(objective_refuses_what_is_not_a_cost) {
  CostTerms terms;
  ExecutionWork work = count_work({4097, 8, 32, 8, 0, 32});
  work.arithmetic_per_packet = std::numeric_limits<double>::infinity();
  EXPECT(evaluate_cost(work, {}, terms).code() == StatusCode::invalid_argument, "infinite work");
  work.arithmetic_per_packet = std::numeric_limits<double>::max();
  EXPECT(!evaluate_cost(work, {}, terms).is_ok(), "a sum that overflows");
  work.arithmetic_per_packet = 1;
  CostCoefficients negative;
  negative.worker_activation = -1;
  EXPECT(!evaluate_cost(work, negative, terms).is_ok(), "a negative term");
}

TEST(chosen_grain_keeps_its_laws) {
  const PoolCalibration calibration;
  for (bool hot : {false, true})
    for (int allowed : {0, 1, 2, 3, 8, 256})
      for (int64_t blocks : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{9}, int64_t{129},
                             int64_t{1000000007}, INT64_MAX})
        for (int64_t total = 0; total < INT64_MAX / 8; total = total * 7 + 1000) {
          const GrainChoice choice = choose_grain(total, blocks, allowed, hot, calibration);
          const int64_t threshold =
              hot ? calibration.hot_threshold_ps : calibration.parked_threshold_ps;
          EXPECT(choice.grain >= 1 && choice.homes >= 1, "positive");
          EXPECT(choice.homes <= std::max(allowed, 1), "within what is allowed");
          if (total < threshold) EXPECT(choice.homes == 1, "below the threshold: the caller alone");
          if (choice.homes == 1) {
            EXPECT(choice.grain == std::max<int64_t>(blocks, 1), "one call for the whole range");
            continue;
          }
          const int64_t tasks = (blocks - 1) / choice.grain + 1;
          EXPECT(choice.homes <= tasks, "every home has a task");
          EXPECT(total >= threshold / 2 * choice.homes, "every home is worth it");
        }
}

TEST(chosen_grain_splits_when_it_pays) {
  const PoolCalibration calibration;
  const int64_t hot = calibration.hot_threshold_ps;
  EXPECT(choose_grain(hot, 100, 8, true, calibration).homes == 2, "two homes at the threshold");
  const GrainChoice large = choose_grain(1'000'000'000, 1000, 8, true, calibration);
  EXPECT(large.homes == 8 && large.grain == 32, "1 ms: all homes, four tasks each");
  EXPECT(choose_grain(hot * 4, 100, 8, false, calibration).homes == 1, "parked threads: later");
}
