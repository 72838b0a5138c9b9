// Runs nodes as they become ready: for programs with control flow, where no fixed order exists.
//
// Every node has a count of the notifications it still waits for. A node that ended well notifies
// its watchers; one that reaches zero becomes ready and gets its count back at once, so that it can
// run again in the next turn of a loop. Three kernels bend this:
//   a switch (SwitchNotify) notifies one of its branches, the pivot whose number it chose, and all
//     watchers that are no pivots;
//   a join (WaitAnyone) becomes ready with every single notification.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"
#include "exec/walk.h"

namespace grainline {

class RunState;

// Immutable, shared by all Runs of a Program.
struct TopologicalPlan {
  explicit TopologicalPlan(const Program& program);

  std::vector<uint32_t> watcher_offsets;  // as Program::watchers, without the pivots of switches
  std::vector<uint32_t> watchers;
  std::vector<uint32_t> waits;                  // notifications that each node waits for
  std::vector<uint32_t> starts;                 // nodes that wait for none
  std::vector<int32_t> switch_of;               // per node: its row in switches, or -1
  std::vector<std::vector<uint32_t>> switches;  // per switch: its pivots, by branch
};

// fifo: ready nodes run in the order in which they became ready. priority: the one that stands
// first in the static order.
enum class ReadyOrder : uint8_t { fifo, priority };

// What one RunState needs to walk a plan. No allocation after construction.
class TopologicalWalk final : public Walk {
 public:
  TopologicalWalk(const TopologicalPlan& plan, ReadyOrder order);

  // As one execution of the node array: true when a node failed. Either way the next run starts
  // with all counts restored.
  bool run(RunState& state) override;

 private:
  template <ReadyOrder kOrder, bool kObserved>
  bool walk(RunState& state);
  template <ReadyOrder kOrder>
  void push(uint32_t node);
  template <ReadyOrder kOrder>
  uint32_t pop();
  template <ReadyOrder kOrder>
  void notify(uint32_t node);
  template <ReadyOrder kOrder>
  void notify_all(const RunState& state, uint32_t node);

  const TopologicalPlan& plan_;
  const ReadyOrder order_;
  std::vector<uint32_t> waits_;  // now
  std::vector<uint32_t> ready_;  // a ring (fifo) or a heap (priority)
  size_t ring_mask_;
  size_t head_ = 0;
  size_t count_ = 0;
};

}  // namespace grainline
