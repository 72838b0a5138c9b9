#include "exec/topological.h"

#include <algorithm>
#include <bit>
#include <functional>

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

TopologicalWalk::TopologicalWalk(const TopologicalPlan& plan, ReadyOrder order)
    : plan_(plan),
      order_(order),
      waits_(plan.waits),
      ready_(std::bit_ceil(plan.waits.size() + 1)),
      ring_mask_(ready_.size() - 1) {}

template <ReadyOrder kOrder>
void TopologicalWalk::push(uint32_t node) {
  if constexpr (kOrder == ReadyOrder::fifo) {
    ready_[(head_ + count_++) & ring_mask_] = node;
  } else {
    ready_[count_++] = node;
    std::push_heap(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count_),
                   std::greater<>());
  }
}

template <ReadyOrder kOrder>
uint32_t TopologicalWalk::pop() {
  if constexpr (kOrder == ReadyOrder::fifo) {
    const uint32_t node = ready_[head_];
    head_ = (head_ + 1) & ring_mask_;
    --count_;
    return node;
  } else {
    std::pop_heap(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count_),
                  std::greater<>());
    return ready_[--count_];
  }
}

template <ReadyOrder kOrder>
void TopologicalWalk::notify(uint32_t node) {
  if (--waits_[node] != 0) return;
  waits_[node] = plan_.waits[node];
  push<kOrder>(node);
}

template <ReadyOrder kOrder>
void TopologicalWalk::notify_all(const RunState& state, uint32_t node) {
  const uint32_t end = plan_.watcher_offsets[node + 1];
  for (uint32_t i = plan_.watcher_offsets[node]; i < end; ++i) notify<kOrder>(plan_.watchers[i]);
  const int32_t row = plan_.switch_of[node];
  if (row < 0) [[likely]]
    return;
  notify<kOrder>(plan_.switches[static_cast<size_t>(row)][state.choices[node]]);
}

template <ReadyOrder kOrder, bool kObserved>
bool TopologicalWalk::walk(RunState& state) {
  const std::atomic<int32_t>& terminate = *state.terminate;
  const Node* const nodes = state.program().nodes.data();
  while (count_ != 0) {
    // Relaxed: the flag carries no data, and a late look costs one node.
    if (terminate.load(std::memory_order_relaxed)) [[unlikely]]
      return state.fail(StatusCode::cancelled, "the run was cancelled");
    const uint32_t node = pop<kOrder>();
    if (run_node<kObserved>(state, nodes[node], node, 0)) [[unlikely]]
      return true;
    notify_all<kOrder>(state, node);
  }
  return false;
}

bool TopologicalWalk::run(RunState& state) {
  head_ = count_ = 0;
  const bool is_fifo = order_ == ReadyOrder::fifo;
  for (const uint32_t node : plan_.starts)
    is_fifo ? push<ReadyOrder::fifo>(node) : push<ReadyOrder::priority>(node);
  const bool is_observed = state.observer != nullptr;
  const bool has_failed = is_fifo ? (is_observed ? walk<ReadyOrder::fifo, true>(state)
                                                 : walk<ReadyOrder::fifo, false>(state))
                                  : (is_observed ? walk<ReadyOrder::priority, true>(state)
                                                 : walk<ReadyOrder::priority, false>(state));
  if (has_failed) std::ranges::copy(plan_.waits, waits_.begin());
  return has_failed;
}

}  // namespace grainline
