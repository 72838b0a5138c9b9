#include "exec/executor_kind.h"

#include <algorithm>
#include <string>

#include "exec/kernels.h"

namespace grainline {
namespace {

// With fewer launches the order of ready nodes matters less than what a heap costs.
constexpr size_t kLaunchesWorthPriority = 5;

}  // namespace

bool has_control_flow(const Program& program) {
  return std::ranges::any_of(program.node_rows, [](const NodeRow& row) {
    return kernel_types()[static_cast<size_t>(row.kernel)].control != Control::none;
  });
}

Status choose_kind(const Program& program, const ExecutorOptions& options, ExecutorKind* chosen) {
  const bool is_dynamic = has_control_flow(program);
  *chosen = options.kind;
  if (options.kind == ExecutorKind::multi_worker && options.workers < 2)
    return Status(
        StatusCode::invalid_argument,
        "a multi-worker executor has at least 2 workers, found " + std::to_string(options.workers));
  const bool is_open = options.kind == ExecutorKind::automatic ||
                       (is_dynamic && options.kind == ExecutorKind::sequential);
  if (!is_open) return {};
  *chosen = !is_dynamic                                        ? ExecutorKind::sequential
            : program.launches.size() < kLaunchesWorthPriority ? ExecutorKind::topological
                                                               : ExecutorKind::priority_topological;
  return {};
}

}  // namespace grainline
