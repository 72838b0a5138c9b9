// Grain and homes of one launch, chosen when the extents are known. Pure, no division by zero,
// tens of nanoseconds. Changes time only, never bits.
#pragma once

#include <cstdint>

namespace grainline {

// What handing work over costs on this machine. The defaults suit a virtual x86-64 server.
struct PoolCalibration {
  int64_t hot_threshold_ps = 5'000'000;      // less work than this stays on the caller, threads hot
  int64_t parked_threshold_ps = 40'000'000;  // the same when threads must be woken
  int64_t min_task_ps = 2'000'000;           // a task is not made shorter than this
  int64_t tasks_per_home = 4;                // enough for stealing to even out unequal cores
};

struct GrainChoice {
  int64_t grain = 1;  // blocks per task
  int homes = 1;      // homes == 1  =>  grain == blocks: one inline call
};

// Law: below the threshold one home. Above it, one home per half threshold of work, so that two
// homes start exactly at the threshold, within homes_allowed and blocks; then tasks_per_home tasks
// each, but none below min_task_ps while there are enough for every home.
// homes <= ceil(blocks / grain).
GrainChoice choose_grain(int64_t total_picoseconds, int64_t blocks, int homes_allowed,
                         bool workers_hot, const PoolCalibration& calibration);

}  // namespace grainline
