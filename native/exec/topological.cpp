#include "exec/topological.h"

#include <algorithm>
#include <bit>

#include "exec/kernels.h"
#include "exec/run_state.h"

namespace grainline {
namespace {

const KernelType& type_of(const Program& program, size_t node) {
  return kernel_types()[static_cast<size_t>(program.node_rows[node].kernel)];
}

}  // namespace

TopologicalPlan::TopologicalPlan(const Program& program) {
  const size_t nodes = program.nodes.size();
  waits.assign(nodes, 0);
  switch_of.assign(nodes, -1);
  watcher_offsets.push_back(0);
  for (size_t node = 0; node < nodes; ++node) {
    const bool is_switch = type_of(program, node).control == Control::branch;
    if (is_switch) {
      switch_of[node] = static_cast<int32_t>(switches.size());
      const auto branches = static_cast<size_t>(program.nodes[node].b);
      switches.emplace_back(branches);
    }
    for (const int64_t id : program.watchers.row(node)) {
      const auto watcher = static_cast<uint32_t>(id);
      ++waits[watcher];
      if (is_switch && type_of(program, watcher).control == Control::pivot)
        switches.back()[static_cast<size_t>(program.nodes[watcher].a)] = watcher;
      else
        watchers.push_back(watcher);
    }
    watcher_offsets.push_back(static_cast<uint32_t>(watchers.size()));
  }
  for (size_t node = 0; node < nodes; ++node) {
    if (type_of(program, node).control == Control::join) waits[node] = std::min(waits[node], 1u);
    if (waits[node] == 0) starts.push_back(static_cast<uint32_t>(node));
  }
}

ReadyQueue::ReadyQueue(size_t nodes) : ring_(std::bit_ceil(nodes + 1)), mask_(ring_.size() - 1) {}

void ReadyBits::clear() {
  if (count_ != 0) std::ranges::fill(words_, 0u);  // left by a run that failed
  first_ = count_ = 0;
}

template <typename Ready>
void TopologicalWalk<Ready>::notify(uint32_t node) {
  if (--waits_[node] != 0) return;
  waits_[node] = plan_.waits[node];
  ready_.push(node);
}

template <typename Ready>
void TopologicalWalk<Ready>::notify_all(const RunState& state, uint32_t node) {
  const uint32_t end = plan_.watcher_offsets[node + 1];
  for (uint32_t i = plan_.watcher_offsets[node]; i < end; ++i) notify(plan_.watchers[i]);
  const int32_t row = plan_.switch_of[node];
  if (row < 0) [[likely]]
    return;
  notify(plan_.switches[static_cast<size_t>(row)][state.choices[node]]);
}

template <typename Ready>
template <bool kObserved>
bool TopologicalWalk<Ready>::walk(RunState& state) {
  const std::atomic<int32_t>& terminate = *state.terminate;
  const Node* const nodes = state.program().nodes.data();
  while (!ready_.is_empty()) {
    // Relaxed: the flag carries no data, and a late look costs one node.
    if (terminate.load(std::memory_order_relaxed)) [[unlikely]]
      return state.fail(StatusCode::cancelled, "the run was cancelled");
    const uint32_t node = ready_.pop();
    if (run_node<kObserved>(state, nodes[node], node, 0)) [[unlikely]]
      return true;
    notify_all(state, node);
  }
  return false;
}

template <typename Ready>
bool TopologicalWalk<Ready>::run(RunState& state) {
  ready_.clear();
  for (const uint32_t node : plan_.starts) ready_.push(node);
  const bool has_failed = state.observer == nullptr ? walk<false>(state) : walk<true>(state);
  if (has_failed) std::ranges::copy(plan_.waits, waits_.begin());
  return has_failed;
}

template class TopologicalWalk<ReadyQueue>;
template class TopologicalWalk<ReadyBits>;

}  // namespace grainline
