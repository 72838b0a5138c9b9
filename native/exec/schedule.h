// What a Program says about order: who runs a node, who waits for whom, which launches a Free was
// released ahead of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace grainline {

struct Program;

// Who runs a node when there are several workers; numbers as in execgraph/registry.py.
enum class WorkerClass : int64_t { normal, memory, launch };
inline constexpr size_t kWorkerClasses = 3;

// In general, and when there are exactly three workers.
struct NodeWorkers {
  int64_t worker, worker_of_three;
};

// Rows over execution ids (positions in the node array): row i is ids[offsets[i]] to
// ids[offsets[i + 1] - 1]. Invariants, see check_rows: one more offset than nodes, from 0 to
// ids.size(), never falling; every id is below the number of nodes. Or no offsets and no ids: then
// every row is empty.
struct IdRows {
  std::vector<int64_t> offsets;
  std::vector<int64_t> ids;

  std::span<const int64_t> row(size_t node) const {
    if (offsets.empty()) return {};
    const auto begin = static_cast<size_t>(offsets[node]);
    return {ids.data() + begin, static_cast<size_t>(offsets[node + 1]) - begin};
  }
};

// invalid_argument names what is wrong; `what` names the rows.
Status check_rows(const IdRows& rows, size_t nodes, std::string_view what);

// Beyond check_rows: edges point forward in the static order, but those of a loop back to a join;
// workers fit the sections of the kernels; the Free of a relation is one that keeps its address,
// its launches are registered as launches, and every Free that keeps its address has a relation.
// Frames stand one behind the other and hold every node that bends the order; whom a frame waits
// for stands in front of it, and what it holds has no relations.
Status check_schedule(const Program& program);

// By node: the number of the frame that holds it, or -1.
std::vector<int32_t> frames_of_nodes(const Program& program);

// Rows of these lists.
IdRows rows_of(const std::vector<std::vector<int64_t>>& lists);

// The rows the other way round: row i of the result has every j whose row has i, ascending.
IdRows reversed(const IdRows& rows, size_t nodes);

}  // namespace grainline
