// Who runs which node, in which order, and what it must wait for: decided once, when a program is
// loaded.
//
// Every worker runs its steps in the static order, so the oldest unfinished step of all workers is
// always ready, and no order of events can stop a run. A step waits for another worker only where
// an edge crosses and nothing that its worker has waited for before implies it (vector clocks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/program.h"

namespace grainline {

// Until `worker` has done that many of its steps.
struct WorkerWait {
  uint32_t worker, steps;
};

struct WorkerStep {
  uint32_t node;
  uint32_t wait_begin, wait_end;  // of WorkerSteps::waits
  bool is_awaited = false;        // another worker waits for exactly this step
  bool is_related = false;        // a Free or a launch of a relation
  bool may_park = false;          // see KernelType
};

struct WorkerSteps {
  std::vector<WorkerStep> steps;
  std::vector<WorkerWait> waits;
};

// Worker 0 is the thread that calls run: the launch worker, and with two workers also the normal
// one. Worker 1 is the only memory worker. The rest is normal; nodes are dealt to them in turn.
struct WorkerPlan {
  static constexpr size_t kCaller = 0;
  static constexpr size_t kMemory = 1;

  // workers >= 2.
  WorkerPlan(const Program& program, size_t workers);

  std::vector<WorkerSteps> workers;
  std::vector<uint32_t> worker_of;  // by node
  std::vector<uint32_t> step_of;    // by node: its place among the steps of its worker
  IdRows predecessors;              // row i: who node i waits for
};

}  // namespace grainline
