// Runs nodes as they become ready: for programs with control flow, where no fixed order exists.
//
// Every node has a count of the notifications it still waits for. A node that ended well notifies
// its watchers; one that reaches zero becomes ready and gets its count back at once, so that it can
// run again in the next turn of a loop. Three kernels bend this:
//   a switch (SwitchNotify) notifies one of its branches, the pivot whose number it chose, and all
//     watchers that are no pivots;
//   a join (WaitAnyone) becomes ready with every single notification.
#pragma once

#include <algorithm>
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

  // Of a node: its part of watchers, and its row in switches, or -1.
  struct Followers {
    uint32_t begin, end;
    int32_t switch_row;
  };

  std::vector<Followers> followers;
  std::vector<uint32_t> watchers;               // as of Program, but for the pivots of switches
  std::vector<uint32_t> waits;                  // notifications that each node waits for
  std::vector<uint32_t> starts;                 // nodes that wait for none
  std::vector<std::vector<uint32_t>> switches;  // per switch: its pivots, by branch
};

// Ready nodes in the order in which they became ready. No allocation after construction.
class ReadyQueue {
 public:
  explicit ReadyQueue(size_t nodes);
  void clear() { head_ = tail_ = 0; }
  void push_if(bool is_ready, uint32_t node) {
    if (is_ready) ring_[tail_++ & mask_] = node;
  }
  // false: there is none.
  bool pop(uint32_t* node) {
    if (head_ == tail_) return false;
    *node = ring_[head_++ & mask_];
    return true;
  }

 private:
  std::vector<uint32_t> ring_;
  const size_t mask_;
  size_t head_ = 0, tail_ = 0;  // how many were taken, and put
};

// Ready nodes in the static order, as one bit per node. Nearly every edge leads forward in that
// order, so the first ready node stands close behind the last one: a walk from begin to end looks
// at each word once, and an edge back (a loop) at those between its ends once more. Invariants: no
// bit stands before word first_; the bit behind the last node always stands.
class ReadyBits {
 public:
  explicit ReadyBits(size_t nodes) : words_(nodes / 64 + 1), end_(static_cast<uint32_t>(nodes)) {
    clear();
  }
  void clear();
  // Without a branch: in this order it is hard to predict whether a node becomes ready.
  void push_if(bool is_ready, uint32_t node) {
    words_[node / 64] |= uint64_t{is_ready} << (node % 64);
    first_ = std::min(first_, is_ready ? node / 64 : first_);
  }
  // false: there is none.
  bool pop(uint32_t* node) {
    uint32_t first = first_;
    uint64_t word = words_[first];
    while (word == 0) word = words_[++first];
    first_ = first;
    *node = first * 64 + static_cast<uint32_t>(std::countr_zero(word));
    if (*node == end_) [[unlikely]]
      return false;
    words_[first] = word & (word - 1);
    return true;
  }

 private:
  std::vector<uint64_t> words_;
  const uint32_t end_;
  uint32_t first_ = 0;
};

// What one RunState needs to walk a plan. Ready: ReadyQueue or ReadyBits.
template <typename Ready>
class TopologicalWalk final : public Walk {
 public:
  explicit TopologicalWalk(const TopologicalPlan& plan)
      : plan_(plan), waits_(waits_of(plan)), ready_(plan.waits.size()) {}

  // As one execution of the node array: true when a node failed. Either way the next run starts
  // with all counts restored.
  bool run(RunState& state) override;

 private:
  template <bool kObserved>
  bool walk(RunState& state);
  void notify(uint32_t node);
  void notify_all(const RunState& state, uint32_t node);

  struct Wait {
    uint32_t left, all;  // notifications
  };
  static std::vector<Wait> waits_of(const TopologicalPlan& plan);

  const TopologicalPlan& plan_;
  std::vector<Wait> waits_;
  Ready ready_;
};

extern template class TopologicalWalk<ReadyQueue>;
extern template class TopologicalWalk<ReadyBits>;

}  // namespace grainline
