// Who runs which node, in which order, and what it must wait for: decided once, when a program is
// loaded.
//
// Every worker runs its steps in the static order, so the oldest unfinished step of all workers is
// always ready, and no order of events can stop a run. A step waits for another worker only where
// an edge crosses and nothing that its worker has waited for before implies it (vector clocks).
//
// A frame of the program is one step of the caller, at the place of its begin. Inside, memory is
// taken and given back and extents are inferred; so it takes its turn in the static order with the
// nodes that do so: those in front of it come first, those behind it wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/program.h"
#include "exec/topological.h"

namespace grainline {

// Until `worker` has done that many of its steps.
struct WorkerWait {
  uint32_t worker, steps;
};

struct WorkerStep {
  uint32_t node;                  // of a frame: its begin
  uint32_t wait_begin, wait_end;  // of WorkerSteps::waits
  bool is_awaited = false;        // another worker waits for exactly this step
  bool is_related = false;        // a Free or a launch of a relation
  bool may_park = false;          // see KernelType
  bool is_frame = false;
};

struct WorkerSteps {
  std::vector<WorkerStep> steps;
  std::vector<WorkerWait> waits;
};

// Worker 0 is the thread that calls run: the launch worker, and with two workers also the normal
// one. Worker 1 is the only memory worker. The rest is normal; nodes are dealt to them in turn.
// What a frame holds is the caller's.
struct WorkerPlan {
  static constexpr size_t kCaller = 0;
  static constexpr size_t kMemory = 1;

  // workers >= 2.
  WorkerPlan(const Program& program, size_t workers);

  std::vector<WorkerSteps> workers;
  std::vector<uint32_t> worker_of;  // by node
  std::vector<uint32_t> step_of;    // by node: its place among the steps of its worker
  IdRows predecessors;              // row i: who the step of node i waits for
  TopologicalPlan frames;

 private:
  using Clock = std::vector<uint32_t>;  // per worker: steps that are known to be done
  void add_waits(uint32_t worker, size_t node, Clock* clock, const std::vector<Clock>& at_end);
};

}  // namespace grainline
