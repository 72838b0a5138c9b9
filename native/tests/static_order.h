// A static order of a random graph in which a Free may run ahead of the launches that it is related
// to, as the planner would place it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "program_fixture.h"

namespace grainline::test {

inline std::string_view section_of(std::string_view kernel) {
  return kernel_types()[static_cast<size_t>(kernel_number(kernel))].section;
}

// A Free stands right behind the last node that it waits for; or, early, right behind the last
// memory node or frame that may have to run before its launches, which the proof allows just as
// well. Unproven: right behind what it waits for but launches, whatever the proof says.
enum class Frees { in_sequence, early, unproven };

template <typename GraphNode>
int64_t last_unrelated(const GraphNode& node) {
  int64_t last = 0;
  for (const int64_t other : node.before)
    if (std::ranges::count(node.related, other) == 0) last = std::max(last, other);
  return last;
}

// By node: the last memory node or frame that may have to run before it; a node that is no memory
// node waits for those in front of it that are none. -1: nothing.
template <typename GraphNode>
std::vector<int64_t> demands(const std::vector<GraphNode>& nodes,
                             std::span<const FrameRow> frames) {
  std::vector<int64_t> demand(nodes.size(), -1);
  std::vector<int64_t> end_of(nodes.size(), -1);
  for (const FrameRow& frame : frames)
    std::fill(end_of.begin() + frame.begin, end_of.begin() + frame.end, frame.end - 1);
  int64_t latest = -1;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const int64_t other : nodes[i].before)
      demand[i] = std::max(demand[i], demand[static_cast<size_t>(other)]);
    const bool is_memory = section_of(nodes[i].kernel) == "memory";
    if (end_of[i] >= 0)
      latest = demand[i] = end_of[i];
    else if (!is_memory)
      latest = demand[i] = std::max(latest, demand[i]);
    else if (nodes[i].related.empty())
      demand[i] = static_cast<int64_t>(i);
  }
  return demand;
}

// Of every node: kernel; before: who it waits for with the original edges; related: of a Free,
// those of `before` that are launches. frames: begins and ends among the nodes. Places in the
// result are numbers of nodes.
template <typename GraphNode>
std::vector<size_t> static_order(const std::vector<GraphNode>& nodes, Frees frees,
                                 std::span<const FrameRow> frames = {}) {
  const size_t count = nodes.size();
  const std::vector<int64_t> demand = demands(nodes, frames);
  std::vector<int64_t> place(count);
  for (size_t i = 0; i < count; ++i) {
    const GraphNode& node = nodes[i];
    const bool is_free = !node.related.empty();
    place[i] = 2 * (is_free ? std::ranges::max(node.before) : static_cast<int64_t>(i)) + is_free;
    if (is_free && frees == Frees::early) place[i] = 2 * demand[i] + 1;
    if (is_free && frees == Frees::unproven) place[i] = 2 * last_unrelated(node) + 1;
  }
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return place[i]; });
  return order;
}

}  // namespace grainline::test
