#include "exec/worker_plan.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "exec/kernels.h"

namespace grainline {
namespace {

bool infers_shapes(const NodeRow& row) {
  return kernel_types()[static_cast<size_t>(row.kernel)].name == "InferShape";
}

// The worker of each node; normal nodes are dealt in turn, but one worker infers all shapes: what
// is known of later groups is common to them.
std::vector<uint32_t> place_nodes(const Program& program, size_t workers) {
  std::vector<uint32_t> placed;
  const std::vector<int32_t> frame_of = frames_of_nodes(program);
  size_t turn = 0;
  for (size_t node = 0; node < program.node_rows.size(); ++node) {
    const NodeWorkers& row = program.node_workers[node];
    const auto wanted = static_cast<WorkerClass>(workers == 3 ? row.worker_of_three : row.worker);
    if (frame_of[node] >= 0)
      placed.push_back(WorkerPlan::kCaller);
    else if (wanted == WorkerClass::memory)
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

// Whether the node takes turns with frames.
bool takes_turns(const Program& program, size_t node) {
  return static_cast<WorkerClass>(program.node_workers[node].worker) == WorkerClass::memory ||
         infers_shapes(program.node_rows[node]);
}

// What must be done before each step: by the edges of the program, and where frames and others take
// turns. Not only the last of these is waited for: a memory worker that goes on out of order does
// not keep theirs.
IdRows predecessors_of(const Program& program) {
  const std::vector<int32_t> frame_of = frames_of_nodes(program);
  const IdRows edges = reversed(program.watchers, frame_of.size());
  if (program.frames.empty()) return edges;
  std::vector<std::vector<int64_t>> before(frame_of.size());
  std::vector<int64_t> since_frame;
  int64_t last_frame = -1;
  for (size_t node = 0; node < frame_of.size(); ++node) {
    const int32_t frame = frame_of[node];
    const auto self = static_cast<int64_t>(node);
    const int64_t step = frame < 0 ? self : program.frames[static_cast<size_t>(frame)].begin;
    std::vector<int64_t>& row = before[static_cast<size_t>(step)];
    std::ranges::copy_if(edges.row(node), std::back_inserter(row), [&](int64_t other) {
      return frame < 0 || frame_of[static_cast<size_t>(other)] != frame;
    });
    if (frame < 0 && takes_turns(program, node)) {
      if (last_frame >= 0) row.push_back(last_frame);
      since_frame.push_back(self);
    } else if (step == self && frame >= 0) {
      row.insert(row.end(), since_frame.begin(), since_frame.end());
      since_frame.clear();
      last_frame = self;
    }
  }
  return rows_of(before);
}

std::vector<uint8_t> related_nodes(const Program& program) {
  std::vector<uint8_t> is_related(program.node_rows.size());
  for (size_t node = 0; node < is_related.size(); ++node) {
    is_related[node] |= !program.relations.row(node).empty();
    for (const int64_t launch : program.relations.row(node))
      is_related[static_cast<size_t>(launch)] = 1;
  }
  return is_related;
}

// Per worker: steps that are known to be done.
void raise(std::vector<uint32_t>& clock, const std::vector<uint32_t>& other) {
  for (size_t worker = 0; worker < clock.size(); ++worker)
    clock[worker] = std::max(clock[worker], other[worker]);
}

}  // namespace

WorkerPlan::WorkerPlan(const Program& program, size_t count)
    : workers(count),
      worker_of(place_nodes(program, count)),
      step_of(program.node_rows.size()),
      predecessors(predecessors_of(program)),
      frames(TopologicalPlan::of_frames(program)) {
  CHECK(count >= 2, "a plan for several workers has at least two");
  const size_t nodes = program.node_rows.size();
  const std::vector<int32_t> frame_of = frames_of_nodes(program);
  const std::vector<uint8_t> is_related = related_nodes(program);
  std::vector<Clock> known(count, Clock(count, 0));  // of each worker, behind its last step
  std::vector<Clock> at_end(nodes);                  // of each node that another worker may see
  for (size_t node = 0, end = 0; node < nodes; node = end) {
    const int32_t frame = frame_of[node];
    end =
        frame < 0 ? node + 1 : static_cast<size_t>(program.frames[static_cast<size_t>(frame)].end);
    const uint32_t worker = worker_of[node];
    WorkerSteps& mine = workers[worker];
    Clock& clock = known[worker];
    WorkerStep step{static_cast<uint32_t>(node), static_cast<uint32_t>(mine.waits.size()), 0};
    add_waits(worker, node, &clock, at_end);
    step.wait_end = static_cast<uint32_t>(mine.waits.size());
    step.is_related = is_related[node];
    step.may_park = kernel_types()[static_cast<size_t>(program.node_rows[node].kernel)].may_park;
    step.is_frame = frame >= 0;
    const auto number = static_cast<uint32_t>(mine.steps.size());
    mine.steps.push_back(step);
    clock[worker] = number + 1;
    for (size_t held = node; held < end; ++held) {
      step_of[held] = number;
      at_end[held] = clock;
    }
  }
}

void WorkerPlan::add_waits(uint32_t worker, size_t node, Clock* clock,
                           const std::vector<Clock>& at_end) {
  const std::span<const int64_t> before = predecessors.row(node);
  // The latest first: it is the most likely to imply the others.
  for (size_t i = before.size(); i-- > 0;) {
    const auto other = static_cast<size_t>(before[i]);
    const uint32_t theirs = worker_of[other], step = step_of[other];
    if (theirs == worker || (*clock)[theirs] > step) continue;
    workers[worker].waits.push_back({theirs, step + 1});
    workers[theirs].steps[step].is_awaited = true;
    raise(*clock, at_end[other]);
  }
}

}  // namespace grainline
