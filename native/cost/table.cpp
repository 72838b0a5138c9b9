#include "cost/table.h"

#include <algorithm>

namespace grainline {
namespace {

// ceil(grain * blocks / of), for launches of up to 2^32 blocks.
int64_t in_proportion(int64_t grain, int64_t blocks, int64_t of) {
  const auto whole = static_cast<uint64_t>(blocks / of) * static_cast<uint64_t>(grain);
  const auto rest = static_cast<uint64_t>(blocks % of) * static_cast<uint64_t>(grain);
  const auto unit = static_cast<uint64_t>(of);
  return static_cast<int64_t>(whole + (rest + unit - 1) / unit);
}

}  // namespace

size_t nearest_step(std::span<const int64_t> steps, int64_t extent) {
  const auto above = std::ranges::upper_bound(steps, extent);
  if (above == steps.begin()) return 0;
  const auto below = static_cast<size_t>(above - steps.begin()) - 1;
  if (above == steps.end()) return below;
  const auto value = static_cast<double>(extent);
  const bool is_nearer_above =
      value * value > static_cast<double>(steps[below]) * static_cast<double>(*above);
  return below + (is_nearer_above ? 1 : 0);
}

LaunchChoice tabulated_launch(const TableRow& row, int64_t blocks, int homes_allowed) {
  blocks = std::max<int64_t>(blocks, 1);
  const int64_t homes = std::min<int64_t>(row.homes, homes_allowed);
  const int64_t wanted = row.blocks > 0 ? in_proportion(row.grain, blocks, row.blocks) : row.grain;
  const int64_t grain = std::clamp<int64_t>(wanted, 1, blocks);
  const int64_t tasks = (blocks - 1) / grain + 1;
  if (homes <= 1 || tasks <= 1) return {blocks, 1, 0};
  return {grain, static_cast<int>(std::min(homes, tasks)), 0};
}

}  // namespace grainline
