// Runs nodes as they become ready: for programs with control flow, where no fixed order exists, and
// for their frames one by one.
//
// Every node has a count of the notifications it still waits for. A node that ended well notifies
// its watchers; one that reaches zero becomes ready and gets its count back at once, so that it can
// run again in the next turn of a loop. Three kernels bend this:
//   a switch (SwitchNotify) notifies one of its branches, the pivot whose number it chose, and all
//     watchers that are no pivots;
//   a join (WaitAnyone) becomes ready with every single notification.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/program.h"
#include "exec/walk.h"

namespace grainline {

class RunState;

// Immutable, shared by all Runs of a Program.
struct TopologicalPlan {
  explicit TopologicalPlan(const Program& program);
  // Of frames alone: the edges inside of each. Nothing is a start.
  static TopologicalPlan of_frames(const Program& program);

  // The watchers of a node, but for the pivots of a switch. Few stand in the row itself: the way
  // from a node to the next one is a chain of loads, and that is one less. Else is_apart: row[0] is
  // where they stand in `watchers`, those of a switch with its pivots, by branch, behind them.
  struct Followers {
    static constexpr size_t kInRow = 3;
    uint32_t row[kInRow];
    uint32_t count : 30, is_apart : 1, is_switch : 1;
  };

  std::vector<Followers> followers;
  std::vector<uint32_t> watchers;
  std::vector<uint32_t> waits;   // notifications that each node waits for
  std::vector<uint32_t> starts;  // nodes that wait for none

 private:
  TopologicalPlan() = default;
  // by_node: rows of the edges.
  TopologicalPlan(const Program& program, const IdRows& by_node);
  Followers add_followers(const Program& program, size_t node, std::span<const int64_t> ids);
};

// Ready nodes in the order in which they became ready. No allocation after construction.
class ReadyQueue {
 public:
  explicit ReadyQueue(size_t nodes);

  // What a walk changes: its own copy, which stays in registers. The branches here and in notify
  // are foretold well, as a graph is walked again and again; without them the next node could not
  // be looked at before the last one is done with.
  struct Cursor {
    uint32_t* ring;
    size_t mask, head, tail;  // how many were taken, and put

    void push(uint32_t node) { ring[tail++ & mask] = node; }
    // false: there is none.
    bool pop(uint32_t* node) {
      if (head == tail) return false;
      *node = ring[head++ & mask];
      return true;
    }
  };
  Cursor begin() { return {ring_.data(), ring_.size() - 1, 0, 0}; }

 private:
  std::vector<uint32_t> ring_;
};

// Ready nodes in the static order, as one bit per node. Nearly every edge leads forward in that
// order, so the first ready node stands close behind the last one: a walk from begin to end looks
// at each word once, and an edge back (a loop) at those between its ends once more.
class ReadyBits {
 public:
  explicit ReadyBits(size_t nodes);

  // As above. Invariants: `current` is the word number `first`, whose place in words is out of
  // date; no bit stands before it; the bit behind the last node always stands.
  struct Cursor {
    uint64_t* words;
    uint64_t current;
    uint32_t first, end;

    void push(uint32_t node) {
      const uint32_t word = node / 64;
      if (word < first) [[unlikely]]
        go_to(word);
      (word == first ? current : words[word]) |= uint64_t{1} << (node % 64);
    }
    // false: there is none.
    bool pop(uint32_t* node) {
      while (current == 0) go_to(first + 1);
      *node = first * 64 + static_cast<uint32_t>(std::countr_zero(current));
      if (*node == end) [[unlikely]]
        return false;
      current &= current - 1;
      return true;
    }
    void go_to(uint32_t word) {
      words[first] = current;
      current = words[word];
      first = word;
    }
  };
  Cursor begin();

 private:
  std::vector<uint64_t> words_;
  const uint32_t end_;
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

  // The same for the frame that begins with this node, by a walk over a plan of frames. It ends
  // early, and returns true, when one of the bits of `halt` stands in `control`.
  bool run_frame(RunState& state, uint32_t begin, const std::atomic<uint32_t>& control,
                 uint32_t halt);

 private:
  using Cursor = typename Ready::Cursor;

  template <typename IsHalted>
  bool run_ready(RunState& state, Cursor ready, IsHalted is_halted);
  template <bool kObserved, typename IsHalted>
  bool walk(RunState& state, Cursor ready, IsHalted is_halted);
  void notify(uint32_t node, Cursor& ready);
  void notify_all(const RunState& state, uint32_t node, Cursor& ready);

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
