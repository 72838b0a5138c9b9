// A packed execution graph: flat, immutable tables, shared by all Runs.
//
// The blob is written by grainline/execgraph/pack.py: magic, format, then the tables in the order
// of the members below, each preceded by its number of rows. A row struct holds i64 fields only, in
// the writer's order, so that a table is one copy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/kernel_abi.h"
#include "base/status.h"
#include "cost/table.h"
#include "exec/schedule.h"

namespace grainline {

class RunState;

inline constexpr int64_t kProgramMagic = 0x4E4C5247;
inline constexpr int64_t kProgramFormat = 8;

// Values: constants first, then one per instruction, sorted by group.
enum class Operation : int64_t { dim, add, sub, mul, floordiv, mod, min, max };
enum class CheckKind : int64_t { equal, not_negative, at_most };
enum class SlotKind : int64_t {
  input,
  weight,
  memory,
  output,
  workspace,
  tiling,
  object,
  sizes,
  blocks
};

struct Instruction {
  int64_t op, a, b;
};
// What one InferShape does: reads dims of its sources, evaluates, checks, tiles.
struct Group {
  int64_t instruction_begin, instruction_end, check_begin, check_end;
  int64_t launch_begin, launch_end;  // of group_launches
  int64_t dim_begin, dim_end, source_begin, source_end;
};
struct Check {
  int64_t kind, observed, expected, place, text, note;
};
struct Source {
  int64_t slot, rank, first_dim;
};
struct SlotRow {
  int64_t kind, rank, first_dim_value, itemsize, label, is_on_host, stream;
};
struct InputRow {
  int64_t name, slot, rank, first_dim, default_slot, is_object;
};
struct OutputRow {
  int64_t name, slot, is_object;
};
struct LaunchRow {
  int64_t variant_begin, variant_end, word_begin, word_end, view_begin, view_end, key, tiling_slot;
  int64_t copy_flow;  // whose results travel in the words of this launch, or -1
  int64_t table;  // what chooses variant, grain and homes instead of their predicted time, or -1
};
// Its rows are one per point of the product of the axes, the last one fastest.
struct LaunchTableRow {
  int64_t axis_begin, axis_end, row_begin;
};
struct TableAxisRow {
  int64_t value, extent_begin, extent_end;
};
struct VariantRow {
  int64_t key, blocks, cost_ps, scratch_bytes, traffic_bytes, task_ps, word_begin, word_end;
};
struct ViewRow {
  int64_t slot, offset;
};
struct HostCallRow {
  int64_t host_op, argument_begin, argument_end, result_begin, result_end;
};
struct CopyRow {
  int64_t source, source_offset, target, target_offset, size_bytes;
};
// One tensor on its way to the device; size: value. positions: the words of the launch that are
// addresses in it, of a tensor in a copy flow.
struct TensorCopyRow {
  int64_t source, target, size, position_begin, position_end;
};
// The tensors that are copied for one launch.
struct CopyFlowRow {
  int64_t launch, tensor_begin, tensor_end;
};
// When a loop turns again: turn < limit, turn < the i64 in trips, the bool in condition.
struct TurnRow {
  int64_t turn, limit, trips, condition;  // values; slots, or -1
};
struct NodeRow {
  int64_t kernel, a, b, c, d, node_id, kernel_name, compute_node;
};
// Execution ids of a control frame of the graph itself with everything inside: it begins with the
// switch or the Enter.
struct FrameRow {
  int64_t begin, end;
};
// A record of the execution array. Returns true when the node failed (the Run holds the Status).
struct Node;
using KernelFn = bool (*)(RunState&, const Node&);
struct Node {
  KernelFn fn;
  int32_t a, b, c, d;
};

// Invariants, checked by create(): every index lies inside its table; fn != nullptr; variants of a
// launch are at least one; groups cover the instructions in order; frames, watchers, workers and
// relations are those of check_schedule.
struct Program {
  std::vector<int64_t> constants;
  std::vector<Instruction> instructions;
  std::vector<Group> groups;
  std::vector<Check> checks;
  std::vector<int64_t> group_launches;
  std::vector<Source> sources;
  std::vector<SlotRow> slots;
  std::vector<int64_t> dim_values;
  std::vector<InputRow> inputs;
  std::vector<OutputRow> outputs;
  std::vector<LaunchRow> launches;
  std::vector<VariantRow> variants;
  std::vector<LaunchTableRow> launch_tables;
  std::vector<TableAxisRow> table_axes;
  std::vector<int64_t> table_extents;
  std::vector<TableRow> table_rows;
  std::vector<int64_t> words;
  std::vector<ViewRow> views;
  std::vector<HostCallRow> host_calls;
  std::vector<int64_t> slot_lists;
  std::vector<CopyRow> copies;
  std::vector<TensorCopyRow> tensor_copies;
  std::vector<CopyFlowRow> copy_flows;
  std::vector<int64_t> positions;
  std::vector<TurnRow> turns;
  std::vector<NodeRow> node_rows;  // in static order; a row's number is its execution id
  std::vector<FrameRow> frames;
  std::vector<int64_t> event_lists;
  std::vector<int64_t> node_streams;  // per node; empty: all on stream 0
  std::vector<NodeWorkers> node_workers;
  IdRows watchers;   // row i: who waits for node i, one entry per edge
  IdRows relations;  // row of a Free: the launches that it was released ahead of

  std::vector<std::string> strings;
  std::vector<TileKernel> tile_kernels;  // by key number
  std::vector<Node> nodes;               // node_rows, resolved
  std::vector<int64_t> argument_begin;  // per launch: its place in the argument array, plus the end

  size_t value_count() const { return constants.size() + instructions.size(); }
  size_t dim_count() const;
  size_t stream_count() const;
  size_t event_count() const;
  const std::string& string(int64_t index) const { return strings[static_cast<size_t>(index)]; }

  // addresses: of the kernels, by key number. Fails on a malformed blob.
  static Status create(std::span<const int64_t> blob, std::vector<std::string> strings,
                       std::span<const uint64_t> addresses, std::shared_ptr<const Program>* out);
};

// Visits the packed tables in the order in which they stand in the blob.
template <typename AnyProgram, typename Visit>
void each_table(AnyProgram& p, Visit visit) {
  visit(p.constants);
  visit(p.instructions);
  visit(p.groups);
  visit(p.checks);
  visit(p.group_launches);
  visit(p.sources);
  visit(p.slots);
  visit(p.dim_values);
  visit(p.inputs);
  visit(p.outputs);
  visit(p.launches);
  visit(p.variants);
  visit(p.launch_tables);
  visit(p.table_axes);
  visit(p.table_extents);
  visit(p.table_rows);
  visit(p.words);
  visit(p.views);
  visit(p.host_calls);
  visit(p.slot_lists);
  visit(p.copies);
  visit(p.tensor_copies);
  visit(p.copy_flows);
  visit(p.positions);
  visit(p.turns);
  visit(p.node_rows);
  visit(p.frames);
  visit(p.event_lists);
  visit(p.node_streams);
  visit(p.node_workers);
  visit(p.watchers.offsets);
  visit(p.watchers.ids);
  visit(p.relations.offsets);
  visit(p.relations.ids);
}

}  // namespace grainline
