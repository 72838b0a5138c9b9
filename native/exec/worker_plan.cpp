#include "exec/worker_plan.h"

#include <algorithm>

#include "base/check.h"
#include "exec/kernels.h"

namespace grainline {
namespace {

using Clock = std::vector<uint32_t>;  // per worker: steps that are known to be done

bool infers_shapes(const NodeRow& row) {
  return kernel_types()[static_cast<size_t>(row.kernel)].name == "InferShape";
}

// The worker of each node; normal nodes are dealt in turn, but one worker infers all shapes: what
// is known of later groups is common to them.
std::vector<uint32_t> place_nodes(const Program& program, size_t workers) {
  std::vector<uint32_t> placed;
  size_t turn = 0;
  for (size_t node = 0; node < program.node_rows.size(); ++node) {
    const NodeWorkers& row = program.node_workers[node];
    const auto wanted = static_cast<WorkerClass>(workers == 3 ? row.worker_of_three : row.worker);
    if (wanted == WorkerClass::memory)
      placed.push_back(WorkerPlan::kMemory);
    else if (wanted == WorkerClass::launch || workers == 2)
      placed.push_back(WorkerPlan::kCaller);
    else if (infers_shapes(program.node_rows[node]))
      placed.push_back(2);
    else
      placed.push_back(static_cast<uint32_t>(2 + turn++ % (workers - 2)));
  }
  return placed;
}

void raise(Clock& clock, const Clock& other) {
  for (size_t worker = 0; worker < clock.size(); ++worker)
    clock[worker] = std::max(clock[worker], other[worker]);
}

}  // namespace

WorkerPlan::WorkerPlan(const Program& program, size_t count)
    : workers(count),
      worker_of(place_nodes(program, count)),
      predecessors(reversed(program.watchers, program.node_rows.size())) {
  CHECK(count >= 2, "a plan for several workers has at least two");
  const size_t nodes = program.node_rows.size();
  std::vector<uint8_t> is_related(nodes);
  for (size_t node = 0; node < nodes; ++node) {
    is_related[node] |= !program.relations.row(node).empty();
    for (const int64_t launch : program.relations.row(node))
      is_related[static_cast<size_t>(launch)] = 1;
  }
  std::vector<Clock> known(count, Clock(count, 0));  // of each worker, behind its last step
  std::vector<Clock> at_end(nodes);                  // of each node that another worker may see
  for (size_t node = 0; node < nodes; ++node) {
    const uint32_t worker = worker_of[node];
    WorkerSteps& mine = workers[worker];
    Clock& clock = known[worker];
    WorkerStep step{static_cast<uint32_t>(node), static_cast<uint32_t>(mine.waits.size()), 0};
    const std::span<const int64_t> before = predecessors.row(node);
    // The latest first: it is the most likely to imply the others.
    for (size_t i = before.size(); i-- > 0;) {
      const auto other = static_cast<size_t>(before[i]);
      if (clock[worker_of[other]] > step_of[other] || worker_of[other] == worker) continue;
      mine.waits.push_back({worker_of[other], step_of[other] + 1});
      workers[worker_of[other]].steps[step_of[other]].is_awaited = true;
      raise(clock, at_end[other]);
    }
    step.wait_end = static_cast<uint32_t>(mine.waits.size());
    step.is_related = is_related[node];
    step.may_park = kernel_types()[static_cast<size_t>(program.node_rows[node].kernel)].may_park;
    step_of.push_back(static_cast<uint32_t>(mine.steps.size()));
    mine.steps.push_back(step);
    clock[worker] = static_cast<uint32_t>(mine.steps.size());
    at_end[node] = clock;
  }
}

}  // namespace grainline
