#include "exec/program.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "exec/copies.h"
#include "exec/kernels.h"

namespace grainline {
namespace {

// Reads tables off the blob; fails once and for all when it is too short.
class Reader {
 public:
  explicit Reader(std::span<const int64_t> blob) : blob_(blob) {}

  int64_t number() {
    if (at_ >= blob_.size()) {
      failed_ = true;
      return 0;
    }
    return blob_[at_++];
  }

  template <typename Row>
  void table(std::vector<Row>* rows) {
    static_assert(std::is_trivially_copyable_v<Row> && sizeof(Row) % sizeof(int64_t) == 0);
    constexpr size_t kWidth = sizeof(Row) / sizeof(int64_t);
    const auto count = static_cast<uint64_t>(number());
    if (failed_ || count > (blob_.size() - at_) / kWidth) {
      failed_ = true;
      return;
    }
    rows->resize(count);
    if (count) std::memcpy(rows->data(), blob_.data() + at_, count * sizeof(Row));
    at_ += count * kWidth;
  }

  bool is_done() const { return !failed_ && at_ == blob_.size(); }

 private:
  std::span<const int64_t> blob_;
  size_t at_ = 0;
  bool failed_ = false;
};

bool is_range(int64_t begin, int64_t end, size_t size) {
  return 0 <= begin && begin <= end && end <= static_cast<int64_t>(size);
}

bool is_index(int64_t index, size_t size) {
  return 0 <= index && index < static_cast<int64_t>(size);
}

// Each method answers for one kind of row.
struct Bounds {
  const Program& p;

  bool value(int64_t v) const { return is_index(v, p.value_count()); }
  bool slot(int64_t s) const { return is_index(s, p.slots.size()); }
  bool text(int64_t s) const { return is_index(s, p.strings.size()); }
  bool dims(int64_t first, int64_t rank) const {
    return rank < 0 || is_range(first, first + rank, p.dim_count());
  }

  bool holds(const Group& g) const {
    return is_range(g.instruction_begin, g.instruction_end, p.instructions.size()) &&
           is_range(g.check_begin, g.check_end, p.checks.size()) &&
           is_range(g.launch_begin, g.launch_end, p.group_launches.size()) &&
           is_range(g.source_begin, g.source_end, p.sources.size()) && g.dim_begin <= g.dim_end;
  }
  bool holds(const Check& c) const {
    return value(c.observed) && value(c.expected) && text(c.place) && text(c.text) && text(c.note);
  }
  bool holds(const Source& s) const { return slot(s.slot) && dims(s.first_dim, s.rank); }
  bool holds(const SlotRow& s) const {
    const int64_t first = s.first_dim_value;
    const bool has_dims = first >= 0 && s.rank >= 0;
    return text(s.label) && (!has_dims || is_range(first, first + s.rank, p.dim_values.size()));
  }
  bool holds(const InputRow& i) const {
    return text(i.name) && slot(i.slot) && dims(i.first_dim, i.rank) &&
           (i.default_slot < 0 || slot(i.default_slot));
  }
  bool holds(const OutputRow& o) const { return text(o.name) && slot(o.slot); }
  bool holds(const LaunchRow& l) const {
    return l.variant_begin < l.variant_end &&
           is_range(l.variant_begin, l.variant_end, p.variants.size()) &&
           is_range(l.word_begin, l.word_end, p.words.size()) &&
           is_range(l.view_begin, l.view_end, p.views.size()) && text(l.key) &&
           (l.copy_flow < 0 || is_index(l.copy_flow, p.copy_flows.size())) &&
           (l.table < 0 || fits(l));
  }
  // The launch has the variants that its table speaks of.
  bool fits(const LaunchRow& l) const {
    if (!is_index(l.table, p.launch_tables.size())) return false;
    const LaunchTableRow& table = p.launch_tables[static_cast<size_t>(l.table)];
    if (!is_range(table.axis_begin, table.axis_end, p.table_axes.size())) return false;
    int64_t points = 1;
    for (int64_t a = table.axis_begin; a < table.axis_end; ++a) {
      const TableAxisRow& axis = p.table_axes[static_cast<size_t>(a)];
      if (!holds(axis) ||
          __builtin_mul_overflow(points, axis.extent_end - axis.extent_begin, &points))
        return false;
    }
    const int64_t begin = table.row_begin;
    const auto size = static_cast<int64_t>(p.table_rows.size());
    if (begin < 0 || begin > size || points > size - begin) return false;
    const auto count = static_cast<size_t>(l.variant_end - l.variant_begin);
    return std::all_of(p.table_rows.begin() + begin, p.table_rows.begin() + begin + points,
                       [&](const TableRow& row) {
                         return is_index(row.alone, count) && is_index(row.variant, count) &&
                                row.blocks >= 0 && row.grain >= 1;
                       });
  }
  bool holds(const TableAxisRow& a) const {
    return value(a.value) && a.extent_begin < a.extent_end &&
           is_range(a.extent_begin, a.extent_end, p.table_extents.size());
  }
  bool holds(const VariantRow& v) const {
    return is_index(v.key, p.tile_kernels.size()) && value(v.blocks) && value(v.cost_ps) &&
           value(v.scratch_bytes) && value(v.traffic_bytes) && value(v.task_ps) &&
           is_range(v.word_begin, v.word_end, p.words.size());
  }
  bool holds(const ViewRow& v) const { return slot(v.slot) && value(v.offset); }
  bool holds(const HostCallRow& h) const {
    return is_range(h.argument_begin, h.argument_end, p.slot_lists.size()) &&
           is_range(h.result_begin, h.result_end, p.slot_lists.size());
  }
  bool holds(const CopyRow& c) const {
    return slot(c.source) && slot(c.target) && value(c.source_offset) && value(c.target_offset) &&
           value(c.size_bytes);
  }
  bool holds(const TensorCopyRow& c) const {
    return slot(c.source) && slot(c.target) && value(c.size) &&
           is_range(c.position_begin, c.position_end, p.positions.size());
  }
  bool holds(const CopyFlowRow& f) const {
    if (!is_index(f.launch, p.launches.size()) ||
        !is_range(f.tensor_begin, f.tensor_end, p.tensor_copies.size()))
      return false;
    const LaunchRow& launch = p.launches[static_cast<size_t>(f.launch)];
    const int64_t flow = &f - p.copy_flows.data();
    const auto views = static_cast<size_t>(launch.view_end - launch.view_begin);
    for (int64_t c = f.tensor_begin; c < f.tensor_end; ++c) {
      const TensorCopyRow& copy = p.tensor_copies[static_cast<size_t>(c)];
      for (int64_t i = copy.position_begin; i < copy.position_end; ++i)
        if (!is_index(p.positions[static_cast<size_t>(i)], views)) return false;
    }
    return launch.copy_flow == flow && f.tensor_begin < f.tensor_end;
  }
  bool holds(const TurnRow& t) const {
    return value(t.turn) && value(t.limit) && (t.trips < 0 || slot(t.trips)) &&
           (t.condition < 0 || slot(t.condition));
  }
  bool holds(const NodeRow& n) const {
    return is_index(n.kernel, kernel_types().size()) && text(n.kernel_name) && text(n.compute_node);
  }

  template <typename Row>
  bool all(const std::vector<Row>& rows) const {
    return std::ranges::all_of(rows, [&](const Row& row) { return holds(row); });
  }
  bool all_values(const std::vector<int64_t>& rows) const {
    return std::ranges::all_of(rows, [&](int64_t v) { return value(v); });
  }
};

bool instructions_are_ordered(const Program& p) {
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    const auto self = static_cast<int64_t>(p.constants.size() + i);
    if (static_cast<Operation>(in.op) == Operation::dim) {
      if (!is_index(in.a, p.dim_count())) return false;
    } else if (in.op > static_cast<int64_t>(Operation::max) || !is_index(in.a, self) ||
               !is_index(in.b, self)) {
      return false;
    }
  }
  return true;
}

// Streams and events are few: a run makes as many as the largest number says.
constexpr int64_t kMostStreams = 64, kMostEvents = 1 << 20;

bool are_streams_well_formed(const Program& p) {
  const auto is_stream = [](int64_t s) { return 0 <= s && s < kMostStreams; };
  const auto is_event = [](int64_t e) { return 0 <= e && e < kMostEvents; };
  if (!p.node_streams.empty() && p.node_streams.size() != p.node_rows.size()) return false;
  for (const NodeRow& row : p.node_rows) {
    const std::string_view kernel = kernel_types()[static_cast<size_t>(row.kernel)].name;
    if (kernel != "SendEvents" && kernel != "WaitEvents") continue;
    if (p.stream_count() < 2 || !is_index(row.a, p.stream_count()) ||
        !is_range(row.b, row.c, p.event_lists.size()))
      return false;
  }
  const auto count = static_cast<int64_t>(p.stream_count());
  const auto is_known = [&](const SlotRow& row) { return 0 <= row.stream && row.stream < count; };
  return std::ranges::all_of(p.node_streams, is_stream) &&
         std::ranges::all_of(p.event_lists, is_event) && std::ranges::all_of(p.slots, is_known);
}

bool is_well_formed(const Program& p) {
  const Bounds bounds{p};
  return !p.groups.empty() && instructions_are_ordered(p) && bounds.all(p.groups) &&
         bounds.all(p.checks) && bounds.all(p.sources) && bounds.all(p.slots) &&
         bounds.all(p.inputs) && bounds.all(p.outputs) && bounds.all(p.launches) &&
         bounds.all(p.variants) && bounds.all(p.views) && bounds.all(p.host_calls) &&
         bounds.all(p.copies) && bounds.all(p.tensor_copies) && bounds.all(p.copy_flows) &&
         bounds.all(p.turns) && bounds.all(p.node_rows) && bounds.all_values(p.dim_values) &&
         bounds.all_values(p.words) && are_streams_well_formed(p);
}

void resolve_nodes(Program* p) {
  for (const NodeRow& row : p->node_rows) {
    const KernelType& type = kernel_types()[static_cast<size_t>(row.kernel)];
    p->nodes.push_back({type.fn, static_cast<int32_t>(row.a), static_cast<int32_t>(row.b),
                        static_cast<int32_t>(row.c), static_cast<int32_t>(row.d)});
  }
}

// Arguments of a launch: its views, its words, then the words of its largest variant, then the room
// for what its copy flow embeds.
void place_arguments(Program* p) {
  int64_t at = 0;
  for (const LaunchRow& launch : p->launches) {
    p->argument_begin.push_back(at);
    int64_t variant_words = 0;
    for (int64_t v = launch.variant_begin; v < launch.variant_end; ++v)
      variant_words = std::max(variant_words, p->variants[v].word_end - p->variants[v].word_begin);
    at += launch.view_end - launch.view_begin + launch.word_end - launch.word_begin + variant_words;
    if (launch.copy_flow >= 0) at += static_cast<int64_t>(kMostEmbeddedWords);
  }
  p->argument_begin.push_back(at);
}

}  // namespace

size_t Program::dim_count() const {
  int64_t count = 0;
  for (const Group& group : groups) count = std::max(count, group.dim_end);
  return static_cast<size_t>(count);
}

size_t Program::stream_count() const {
  return node_streams.empty() ? 1 : static_cast<size_t>(std::ranges::max(node_streams)) + 1;
}

size_t Program::event_count() const {
  return event_lists.empty() ? 0 : static_cast<size_t>(std::ranges::max(event_lists)) + 1;
}

Status Program::create(std::span<const int64_t> blob, std::vector<std::string> strings,
                       std::span<const uint64_t> addresses, std::shared_ptr<const Program>* out) {
  Reader reader(blob);
  if (reader.number() != kProgramMagic || reader.number() != kProgramFormat)
    return Status(StatusCode::invalid_argument, "not a packed program of this version");
  auto program = std::make_shared<Program>();
  each_table(*program, [&](auto& rows) { reader.table(&rows); });
  program->strings = std::move(strings);
  for (uint64_t address : addresses) {
    if (address == 0) return Status(StatusCode::invalid_argument, "a kernel address is null");
    program->tile_kernels.push_back(reinterpret_cast<TileKernel>(address));
  }
  if (!reader.is_done() || !is_well_formed(*program))
    return Status(StatusCode::invalid_argument, "the packed program is malformed");
  if (Status status = check_schedule(*program); !status.is_ok()) return status;
  resolve_nodes(program.get());
  place_arguments(program.get());
  *out = std::move(program);
  return {};
}

}  // namespace grainline
