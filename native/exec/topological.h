// Runs nodes as they become ready: for programs with control flow, where no fixed order exists.
//
// Every node has a count of the notifications it still waits for. A node that ended well notifies
// its watchers; one that reaches zero becomes ready and gets its count back at once, so that it can
// run again in the next turn of a loop. Three kernels bend this:
//   a switch (SwitchNotify) notifies one of its branches, the pivot whose number it chose, and all
//     watchers that are no pivots;
//   a join (WaitAnyone) becomes ready with every single notification.
#pragma once

#include <bit>
#include <cstddef>
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

// Ready nodes in the order in which they became ready. No allocation after construction.
class ReadyQueue {
 public:
  explicit ReadyQueue(size_t nodes);
  void clear() { head_ = count_ = 0; }
  bool is_empty() const { return count_ == 0; }
  void push(uint32_t node) { ring_[(head_ + count_++) & mask_] = node; }
  uint32_t pop() {
    const uint32_t node = ring_[head_];
    head_ = (head_ + 1) & mask_;
    --count_;
    return node;
  }

 private:
  std::vector<uint32_t> ring_;
  const size_t mask_;
  size_t head_ = 0;
  size_t count_ = 0;
};

// Ready nodes in the static order, as one bit per node. Nearly every edge leads forward in that
// order, so the first ready node stands close behind the last one: a walk from begin to end looks
// at each word once, and an edge back (a loop) at those between its ends once more. Invariant: no
// bit stands before word first_.
class ReadyBits {
 public:
  explicit ReadyBits(size_t nodes) : words_(nodes / 64 + 1) {}
  void clear();
  bool is_empty() const { return count_ == 0; }
  void push(uint32_t node) {
    words_[node / 64] |= uint64_t{1} << (node % 64);
    first_ = node / 64 < first_ ? node / 64 : first_;
    ++count_;
  }
  uint32_t pop() {
    while (words_[first_] == 0) ++first_;
    const auto bit = static_cast<uint32_t>(std::countr_zero(words_[first_]));
    words_[first_] &= words_[first_] - 1;
    --count_;
    return static_cast<uint32_t>(first_ * 64) + bit;
  }

 private:
  std::vector<uint64_t> words_;
  size_t first_ = 0;
  size_t count_ = 0;
};

// What one RunState needs to walk a plan. Ready: ReadyQueue or ReadyBits.
template <typename Ready>
class TopologicalWalk final : public Walk {
 public:
  explicit TopologicalWalk(const TopologicalPlan& plan)
      : plan_(plan), waits_(plan.waits), ready_(plan.waits.size()) {}

  // As one execution of the node array: true when a node failed. Either way the next run starts
  // with all counts restored.
  bool run(RunState& state) override;

 private:
  template <bool kObserved>
  bool walk(RunState& state);
  void notify(uint32_t node);
  void notify_all(const RunState& state, uint32_t node);

  const TopologicalPlan& plan_;
  std::vector<uint32_t> waits_;  // now
  Ready ready_;
};

extern template class TopologicalWalk<ReadyQueue>;
extern template class TopologicalWalk<ReadyBits>;

}  // namespace grainline
