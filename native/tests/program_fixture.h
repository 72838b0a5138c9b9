// Programs of toy nodes, and random ones. A toy node folds the cells of the nodes it waits for into
// its own cell, so a missing or broken edge gives a wrong cell (and a data race).
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "exec/executor.h"
#include "exec/kernels.h"
#include "exec/worker_team.h"

namespace grainline::test {

inline int64_t kernel_number(std::string_view name) {
  const auto types = kernel_types();
  for (size_t i = 0; i < types.size(); ++i)
    if (types[i].name == name) return static_cast<int64_t>(i);
  return -1;
}

// What toy nodes work on; host.context of the RunState. fault: a node that fails, or -1.
struct ToyCells {
  explicit ToyCells(const Program& program)
      : before(reversed(program.watchers, program.nodes.size())),
        cells(program.nodes.size()),
        runs(program.nodes.size()) {}

  IdRows before;
  std::vector<uint64_t> cells;
  std::vector<uint32_t> runs;
  int64_t fault = -1;
  StatusCode code = StatusCode::kernel_failed;
};

inline uint64_t mixed(uint64_t into, uint64_t value) {
  return (into ^ value) * 0x9E3779B97F4A7C15u + (into >> 29);
}

inline size_t number_of(const RunState& state, const Node& node) {
  return static_cast<size_t>(&node - state.program().nodes.data());
}

inline bool toy(RunState& state, const Node& node) {
  auto& toys = *static_cast<ToyCells*>(state.host.context);
  const size_t self = number_of(state, node);
  ++toys.runs[self];
  if (toys.fault == static_cast<int64_t>(self))
    return state.fail(toys.code, "toy " + std::to_string(self));
  uint64_t cell = self + 1;
  for (const int64_t other : toys.before.row(self))
    cell = mixed(cell, toys.cells[static_cast<size_t>(other)]);
  toys.cells[self] = cell;
  return false;
}

struct ToyNode {
  std::string_view kernel;
  std::vector<int64_t> before;
  std::vector<int64_t> relations;
  KernelFn fn = toy;
  int32_t a = 0, b = 0, c = 0;
};

// slots: how many memory slots the nodes may use. frames: begins and ends among the nodes.
inline std::shared_ptr<const Program> program_of(const std::vector<ToyNode>& nodes,
                                                 size_t slots = 0,
                                                 const std::vector<FrameRow>& frames = {}) {
  auto program = std::make_shared<Program>();
  program->strings = {"toy"};
  program->argument_begin = {0};
  program->groups.resize(1);
  program->frames = frames;
  program->slots.assign(slots, {static_cast<int64_t>(SlotKind::memory), -1, -1, 1, 0, 0, 0});
  std::vector<std::vector<int64_t>> before, relations;
  for (const ToyNode& node : nodes) {
    const int64_t kernel = kernel_number(node.kernel);
    const std::string_view section = kernel_types()[static_cast<size_t>(kernel)].section;
    const auto worker = static_cast<int64_t>(section == "memory"   ? WorkerClass::memory
                                             : section == "launch" ? WorkerClass::launch
                                                                   : WorkerClass::normal);
    program->node_rows.push_back({kernel, node.a, node.b, node.c, 0, 0, 0, 0});
    program->node_workers.push_back({worker, worker});
    program->nodes.push_back({node.fn, node.a, node.b, node.c, 0});
    before.push_back(node.before);
    relations.push_back(node.relations);
  }
  program->watchers = reversed(rows_of(before), nodes.size());
  program->relations = rows_of(relations);
  return program;
}

// Every node waits for up to `most` of the nodes shortly before it.
inline std::shared_ptr<const Program> random_program(std::mt19937_64& random, size_t nodes,
                                                     size_t most = 3) {
  static constexpr std::string_view kKernels[] = {"FreeMemory", "Launch", "HostCall"};
  std::vector<ToyNode> toys;
  for (size_t i = 0; i < nodes; ++i) {
    ToyNode node{kKernels[random() % 3], {}, {}};
    for (size_t k = random() % (most + 1); k-- > 0 && i > 0;)
      node.before.push_back(static_cast<int64_t>(i - 1 - random() % std::min<size_t>(i, 40)));
    toys.push_back(std::move(node));
  }
  return program_of(toys);
}

// An executor of a toy program and its one RunState.
class ToyRun {
 public:
  ToyRun(std::shared_ptr<const Program> program, const ExecutorOptions& options)
      : cells(*program), executor_(program, options), state_(executor_.lease()) {}
  ~ToyRun() { executor_.give_back(state_); }
  ToyRun(const ToyRun&) = delete;
  ToyRun& operator=(const ToyRun&) = delete;

  Status run() {
    std::ranges::fill(cells.cells, 0u);
    std::ranges::fill(cells.runs, 0u);
    state_->host.context = &cells;
    return executor_.run(*state_);
  }
  RunState& state() { return *state_; }

  ToyCells cells;

 private:
  Executor executor_;
  RunState* state_;
};

}  // namespace grainline::test
