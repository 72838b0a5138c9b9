#include "exec/topological.h"

#include <algorithm>
#include <bit>

#include "exec/kernels.h"
#include "exec/run_state.h"
#include "exec/schedule.h"

namespace grainline {
namespace {

const KernelType& type_of(const Program& program, size_t node) {
  return kernel_types()[static_cast<size_t>(program.node_rows[node].kernel)];
}

// The edges that stay inside of a frame.
IdRows edges_in_frames(const Program& program) {
  const std::vector<int32_t> frame_of = frames_of_nodes(program);
  std::vector<std::vector<int64_t>> watchers(frame_of.size());
  for (size_t node = 0; node < frame_of.size(); ++node)
    for (const int64_t id : program.watchers.row(node))
      if (frame_of[node] >= 0 && frame_of[node] == frame_of[static_cast<size_t>(id)])
        watchers[node].push_back(id);
  return rows_of(watchers);
}

}  // namespace

TopologicalPlan::TopologicalPlan(const Program& program)
    : TopologicalPlan(program, program.watchers) {
  for (size_t node = 0; node < waits.size(); ++node)
    if (waits[node] == 0) starts.push_back(static_cast<uint32_t>(node));
}

TopologicalPlan TopologicalPlan::of_frames(const Program& program) {
  return program.frames.empty() ? TopologicalPlan()
                                : TopologicalPlan(program, edges_in_frames(program));
}

TopologicalPlan::TopologicalPlan(const Program& program, const IdRows& by_node) {
  const size_t nodes = program.nodes.size();
  waits.assign(nodes, 0);
  for (size_t node = 0; node < nodes; ++node) {
    const std::span<const int64_t> ids = by_node.row(node);
    followers.push_back(add_followers(program, node, ids));
    for (const int64_t watcher : ids) ++waits[static_cast<size_t>(watcher)];
  }
  for (size_t node = 0; node < nodes; ++node)
    if (type_of(program, node).control == Control::join) waits[node] = std::min(waits[node], 1u);
}

TopologicalPlan::Followers TopologicalPlan::add_followers(const Program& program, size_t node,
                                                          std::span<const int64_t> ids) {
  const bool is_switch = type_of(program, node).control == Control::branch;
  std::vector<uint32_t> found, pivots;
  if (is_switch) pivots.resize(static_cast<size_t>(program.nodes[node].b));
  for (const int64_t id : ids) {
    const auto watcher = static_cast<uint32_t>(id);
    if (is_switch && type_of(program, watcher).control == Control::pivot)
      pivots[static_cast<size_t>(program.nodes[watcher].a)] = watcher;
    else
      found.push_back(watcher);
  }
  const bool is_apart = is_switch || found.size() > Followers::kInRow;
  Followers row{{}, static_cast<uint32_t>(found.size()) & 0x3FFFFFFF, is_apart, is_switch};
  if (!is_apart) {
    std::ranges::copy(found, row.row);
    return row;
  }
  row.row[0] = static_cast<uint32_t>(watchers.size());
  watchers.insert(watchers.end(), found.begin(), found.end());
  watchers.insert(watchers.end(), pivots.begin(), pivots.end());
  return row;
}

ReadyQueue::ReadyQueue(size_t nodes) : ring_(std::bit_ceil(nodes + 1)) {}

ReadyBits::ReadyBits(size_t nodes) : words_(nodes / 64 + 1), end_(static_cast<uint32_t>(nodes)) {}

ReadyBits::Cursor ReadyBits::begin() {
  std::ranges::fill(words_, 0u);  // a run that failed leaves some
  words_[end_ / 64] = uint64_t{1} << (end_ % 64);
  return {words_.data(), words_[0], 0, end_};
}

template <typename Ready>
std::vector<typename TopologicalWalk<Ready>::Wait> TopologicalWalk<Ready>::waits_of(
    const TopologicalPlan& plan) {
  std::vector<Wait> waits;
  for (const uint32_t count : plan.waits) waits.push_back({count, count});
  return waits;
}

template <typename Ready>
inline void TopologicalWalk<Ready>::notify(uint32_t node, Cursor& ready) {
  Wait& wait = waits_[node];
  const uint32_t left = wait.left - 1;
  const uint32_t is_ready = left == 0;
  wait.left = left | (wait.all & (0 - is_ready));  // right whichever way the branch goes
  if (is_ready) ready.push(node);
}

template <typename Ready>
inline void TopologicalWalk<Ready>::notify_all(const RunState& state, uint32_t node,
                                               Cursor& ready) {
  const TopologicalPlan::Followers& row = plan_.followers[node];
  const uint32_t count = row.count;
  const uint32_t* watcher = row.is_apart ? plan_.watchers.data() + row.row[0] : row.row;
  for (const uint32_t* const end = watcher + count; watcher != end; ++watcher)
    notify(*watcher, ready);
  if (row.is_switch) [[unlikely]]
    notify(watcher[state.choices[node]], ready);
}

template <typename Ready>
template <bool kObserved, typename IsHalted>
bool TopologicalWalk<Ready>::walk(RunState& state, Cursor ready, IsHalted is_halted) {
  const std::atomic<int32_t>& terminate = *state.terminate;
  const Node* const nodes = state.program().nodes.data();
  for (uint32_t node; ready.pop(&node);) {
    // Relaxed: the flag carries no data, and a late look costs one node.
    if (terminate.load(std::memory_order_relaxed)) [[unlikely]]
      return state.fail(StatusCode::cancelled, "the run was cancelled");
    if (is_halted()) [[unlikely]]
      return true;
    if (run_node<kObserved>(state, nodes[node], node, 0)) [[unlikely]]
      return true;
    notify_all(state, node, ready);
  }
  return false;
}

template <typename Ready>
template <typename IsHalted>
bool TopologicalWalk<Ready>::run_ready(RunState& state, Cursor ready, IsHalted is_halted) {
  const bool has_failed = state.observer == nullptr ? walk<false>(state, ready, is_halted)
                                                    : walk<true>(state, ready, is_halted);
  if (has_failed) waits_ = waits_of(plan_);
  return has_failed;
}

template <typename Ready>
bool TopologicalWalk<Ready>::run(RunState& state) {
  Cursor ready = ready_.begin();
  for (const uint32_t node : plan_.starts) ready.push(node);
  return run_ready(state, ready, [] { return false; });
}

template <typename Ready>
bool TopologicalWalk<Ready>::run_frame(RunState& state, uint32_t begin,
                                       const std::atomic<uint32_t>& control, uint32_t halt) {
  Cursor ready = ready_.begin();
  ready.push(begin);
  // Relaxed: the flag carries no data, and a late look costs one node.
  return run_ready(state, ready,
                   [&] { return (control.load(std::memory_order_relaxed) & halt) != 0; });
}

template class TopologicalWalk<ReadyQueue>;
template class TopologicalWalk<ReadyBits>;

}  // namespace grainline
