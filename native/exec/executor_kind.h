// Which executor runs a program.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "exec/program.h"

namespace grainline {

enum class ExecutorKind : uint8_t {
  automatic,  // one of the next three
  sequential,
  topological,
  priority_topological,
  multi_worker,
};

struct ExecutorOptions {
  ExecutorKind kind = ExecutorKind::automatic;
  int workers = 0;       // of a multi-worker executor: at least 2; otherwise without meaning
  int thread_limit = 0;  // the most threads that a launch uses, the caller included; 0: all
};

bool has_control_flow(const Program& program);

// What `automatic` stands for, by the shape of the program; any other kind is itself, but
// sequential needs a static order, so a program with control flow runs as `automatic` would.
// invalid_argument: the kind cannot run this program, or the options contradict each other.
Status choose_kind(const Program& program, const ExecutorOptions& options, ExecutorKind* chosen);

}  // namespace grainline
