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
  for (size_t node = 0; node < nodes; ++node) {
    const bool is_switch = type_of(program, node).control == Control::branch;
    followers.push_back({static_cast<uint32_t>(watchers.size()), 0, -1});
    if (is_switch) {
      followers.back().switch_row = static_cast<int32_t>(switches.size());
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
    followers.back().end = static_cast<uint32_t>(watchers.size());
  }
  for (size_t node = 0; node < nodes; ++node) {
    if (type_of(program, node).control == Control::join) waits[node] = std::min(waits[node], 1u);
    if (waits[node] == 0) starts.push_back(static_cast<uint32_t>(node));
  }
}

ReadyQueue::ReadyQueue(size_t nodes) : ring_(std::bit_ceil(nodes + 1)), mask_(ring_.size() - 1) {}

void ReadyBits::clear() {
  std::ranges::fill(words_, 0u);  // a run that failed leaves some
  words_[end_ / 64] = uint64_t{1} << (end_ % 64);
  first_ = 0;
}

template <typename Ready>
std::vector<typename TopologicalWalk<Ready>::Wait> TopologicalWalk<Ready>::waits_of(
    const TopologicalPlan& plan) {
  std::vector<Wait> waits;
  for (const uint32_t count : plan.waits) waits.push_back({count, count});
  return waits;
}

template <typename Ready>
void TopologicalWalk<Ready>::notify(uint32_t node) {
  const Wait wait = waits_[node];
  const uint32_t left = wait.left - 1;
  waits_[node].left = left == 0 ? wait.all : left;
  ready_.push_if(left == 0, node);
}

template <typename Ready>
void TopologicalWalk<Ready>::notify_all(const RunState& state, uint32_t node) {
  const TopologicalPlan::Followers& row = plan_.followers[node];
  for (uint32_t i = row.begin; i < row.end; ++i) notify(plan_.watchers[i]);
  if (row.switch_row >= 0) [[unlikely]]
    notify(plan_.switches[static_cast<size_t>(row.switch_row)][state.choices[node]]);
}

template <typename Ready>
template <bool kObserved>
bool TopologicalWalk<Ready>::walk(RunState& state) {
  const std::atomic<int32_t>& terminate = *state.terminate;
  const Node* const nodes = state.program().nodes.data();
  for (uint32_t node; ready_.pop(&node);) {
    // Relaxed: the flag carries no data, and a late look costs one node.
    if (terminate.load(std::memory_order_relaxed)) [[unlikely]]
      return state.fail(StatusCode::cancelled, "the run was cancelled");
    if (run_node<kObserved>(state, nodes[node], node, 0)) [[unlikely]]
      return true;
    notify_all(state, node);
  }
  return false;
}

template <typename Ready>
bool TopologicalWalk<Ready>::run(RunState& state) {
  ready_.clear();
  for (const uint32_t node : plan_.starts) ready_.push_if(true, node);
  const bool has_failed = state.observer == nullptr ? walk<false>(state) : walk<true>(state);
  if (has_failed) waits_ = waits_of(plan_);
  return has_failed;
}

template class TopologicalWalk<ReadyQueue>;
template class TopologicalWalk<ReadyBits>;

}  // namespace grainline
