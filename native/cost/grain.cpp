#include "cost/grain.h"

#include <algorithm>

namespace grainline {

GrainChoice choose_grain(int64_t total_picoseconds, int64_t blocks, int homes_allowed,
                         bool workers_hot, const PoolCalibration& calibration) {
  const GrainChoice serial{std::max<int64_t>(blocks, 1), 1};
  const int64_t threshold =
      workers_hot ? calibration.hot_threshold_ps : calibration.parked_threshold_ps;
  if (homes_allowed <= 1 || blocks <= 1 || total_picoseconds < threshold) return serial;

  const int64_t per_home = std::max<int64_t>(threshold / 2, 1);
  int64_t homes = std::min<int64_t>({homes_allowed, blocks, total_picoseconds / per_home});
  if (homes <= 1) return serial;
  const int64_t long_enough = total_picoseconds / std::max<int64_t>(calibration.min_task_ps, 1);
  const int64_t tasks_per_home = std::clamp<int64_t>(calibration.tasks_per_home, 1, 1 << 16);
  const int64_t tasks =
      std::min(blocks, std::max(homes, std::min(homes * tasks_per_home, long_enough)));
  const int64_t grain = (blocks - 1) / tasks + 1;
  homes = std::min(homes, (blocks - 1) / grain + 1);
  if (homes <= 1) return serial;
  return {grain, static_cast<int>(homes)};
}

}  // namespace grainline
