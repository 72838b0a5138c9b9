// What a policy that lives elsewhere said about extents that stand for all others, and what a
// launch makes of it. Pure, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cost/launch.h"

namespace grainline {

// The choice at one point. blocks: of the launch there; 0: the grain is what was asked for,
// whatever the launch has.
struct TableRow {
  int64_t alone;    // variant for one thread
  int64_t variant;  // for more of them
  int64_t blocks, grain, homes;
};

// The position of the step that is nearest to `extent` by ratio, the smaller of two that are as
// near. steps: ascending, at least 1, not empty.
size_t nearest_step(std::span<const int64_t> steps, int64_t extent);

// Tasks in proportion to the blocks of the launch, so that a launch that equals the row's point
// does what the row says. One home or one task is an inline call of all blocks. time_ps is 0: a
// policy's unit is its own.
LaunchChoice tabulated_launch(const TableRow& row, int64_t blocks, int homes_allowed);

}  // namespace grainline
