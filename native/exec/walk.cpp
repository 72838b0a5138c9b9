#include "exec/walk.h"

#include "exec/run_state.h"

namespace grainline {

bool SequentialWalk::run(RunState& state) {
  return state.observer == nullptr ? walk<false>(state) : walk<true>(state);
}

template <bool kObserved>
bool SequentialWalk::walk(RunState& state) {
  const Node* const begin = state.program().nodes.data();
  const Node* const end = begin + state.program().nodes.size();
  const std::atomic<int32_t>& terminate = *state.terminate;
  for (const Node* node = begin; node != end; ++node) {
    // Relaxed: the flag carries no data, and a late look costs one node.
    if (terminate.load(std::memory_order_relaxed)) [[unlikely]]
      return state.fail(StatusCode::cancelled, "the run was cancelled");
    if (run_node<kObserved>(state, *node, static_cast<size_t>(node - begin), 0)) [[unlikely]]
      return true;
  }
  return false;
}

}  // namespace grainline
