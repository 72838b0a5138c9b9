// The InferShape kernel: observes shapes and, when they changed, evaluates the extents of a group,
// checks them and tiles the launches that became known.

#include <algorithm>
#include <string>

#include "exec/run_state.h"
#include "threads/pool.h"

namespace grainline {
namespace {

std::string quoted_extent(const std::string& text, int64_t value) {
  return text.empty() ? std::to_string(value) : text + " = " + std::to_string(value);
}

// Python's rounding. false: division by zero or overflow.
bool floor_divide(int64_t a, int64_t b, int64_t* quotient, int64_t* remainder) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return false;
  *quotient = a / b;
  *remainder = a % b;
  if (*remainder != 0 && (*remainder < 0) != (b < 0)) {
    *quotient -= 1;
    *remainder += b;
  }
  return true;
}

bool apply(Operation op, int64_t a, int64_t b, int64_t* result) {
  int64_t unused = 0;
  switch (op) {
    case Operation::add:
      return !__builtin_add_overflow(a, b, result);
    case Operation::sub:
      return !__builtin_sub_overflow(a, b, result);
    case Operation::mul:
      return !__builtin_mul_overflow(a, b, result);
    case Operation::floordiv:
      return floor_divide(a, b, result, &unused);
    case Operation::mod:
      return floor_divide(a, b, &unused, result);
    case Operation::min:
      *result = std::min(a, b);
      return true;
    case Operation::max:
      *result = std::max(a, b);
      return true;
    case Operation::dim:
      break;
  }
  return false;
}

}  // namespace

bool RunState::infer_shape(size_t index) {
  const Group& group = program_->groups[index];
  if (observe(group, index)) return true;
  const auto begin = dims_.begin() + group.dim_begin;
  const auto end = dims_.begin() + group.dim_end;
  const auto seen = seen_dims_.begin() + group.dim_begin;
  if (is_known_[index] && std::equal(begin, end, seen)) [[likely]]
    return false;
  // Values of later groups may depend on this one.
  std::fill(is_known_.begin() + static_cast<std::ptrdiff_t>(index), is_known_.end(), 0);
  if (evaluate(group) || verify(group, index == 0) || tile(group, index == 0)) return true;
  std::copy(begin, end, seen);
  is_known_[index] = 1;
  return false;
}

// Group 0 was observed when the inputs were bound.
bool RunState::observe(const Group& group, size_t index) {
  if (index == 0) return false;
  for (int64_t i = group.source_begin; i < group.source_end; ++i) {
    const Source& source = program_->sources[static_cast<size_t>(i)];
    const int64_t* dims = nullptr;
    const int rank = host.shape_of(slots[static_cast<size_t>(source.slot)].object, &dims);
    if (rank != source.rank)
      return fail(StatusCode::host_failed,
                  "result '" +
                      program_->string(program_->slots[static_cast<size_t>(source.slot)].label) +
                      "': expected rank " + std::to_string(source.rank) + ", found " +
                      (rank < 0 ? "no tensor" : "rank " + std::to_string(rank)));
    std::copy_n(dims, rank, dims_.begin() + source.first_dim);
  }
  return false;
}

bool RunState::pass_extents(size_t first, size_t begin, size_t end, int64_t turn) {
  for (size_t word = begin; word < end; ++word) {
    int64_t& dim = dims_[first + word - begin];
    const int64_t found = value(program_->words[word]);
    if (turn != 0 && dim != found)
      return fail(StatusCode::kernel_failed,
                  "what the turns of a loop collect has one shape: expected an extent of " +
                      std::to_string(dim) + ", found " + std::to_string(found) + " in turn " +
                      std::to_string(turn));
    dim = found;
  }
  return false;
}

bool RunState::evaluate(const Group& group) {
  const size_t first = program_->constants.size();
  for (int64_t i = group.instruction_begin; i < group.instruction_end; ++i) {
    const Instruction& in = program_->instructions[static_cast<size_t>(i)];
    int64_t* result = &values[first + static_cast<size_t>(i)];
    if (static_cast<Operation>(in.op) == Operation::dim) {
      *result = dims_[static_cast<size_t>(in.a)];
    } else if (!apply(static_cast<Operation>(in.op), value(in.a), value(in.b), result)) {
      return report_bad_value(static_cast<size_t>(i));
    }
  }
  return false;
}

bool RunState::report_bad_value(size_t instruction) {
  static constexpr const char* kNames[] = {"dim", "+", "-", "*", "floordiv", "mod", "min", "max"};
  const Instruction& in = program_->instructions[instruction];
  return fail(StatusCode::invalid_argument,
              "the extents that follow from the given shapes overflow 64 bits or divide by zero: " +
                  std::to_string(value(in.a)) + " " + kNames[in.op] + " " +
                  std::to_string(value(in.b)));
}

bool RunState::verify(const Group& group, bool is_feed) {
  for (int64_t i = group.check_begin; i < group.check_end; ++i) {
    const Check& check = program_->checks[static_cast<size_t>(i)];
    if (!holds(check)) return fail_check(check, is_feed);
  }
  return false;
}

bool RunState::holds(const Check& check) const {
  switch (static_cast<CheckKind>(check.kind)) {
    case CheckKind::equal:
      return value(check.observed) == value(check.expected);
    case CheckKind::not_negative:
      return value(check.observed) >= 0;
    case CheckKind::at_most:
      return value(check.observed) <= value(check.expected);
  }
  return false;
}

bool RunState::fail_check(const Check& check, bool is_feed) {
  const StatusCode code = is_feed ? StatusCode::invalid_argument : StatusCode::host_failed;
  const std::string& place = program_->string(check.place);
  const std::string& text = program_->string(check.text);
  const int64_t observed = value(check.observed);
  if (static_cast<CheckKind>(check.kind) == CheckKind::not_negative)
    return fail(code, place + " is negative: " + quoted_extent(text, observed));
  if (static_cast<CheckKind>(check.kind) == CheckKind::at_most)
    return fail(StatusCode::out_of_memory, place + ": expected at most " +
                                               std::to_string(value(check.expected)) + ", found " +
                                               quoted_extent(text, observed));
  return fail(code, place + ": expected " + quoted_extent(text, value(check.expected)) +
                        program_->string(check.note) + ", found " + std::to_string(observed));
}

bool RunState::tile(const Group& group, bool is_first) {
  if (is_first) {
    homes_wanted = 1;
    is_splittable_ = false;
  }
  const bool is_worth = is_worth_waking(group);
  if (is_first) wants_threads = is_worth;
  const int homes = wants_threads || is_worth ? homes_allowed : 1;
  for (int64_t i = group.launch_begin; i < group.launch_end; ++i)
    tile_launch(static_cast<size_t>(program_->group_launches[static_cast<size_t>(i)]), homes);
  tiled_homes_ = homes_allowed;
  return false;
}

// Pool threads are woken once, at the start of a run, or by the first launch of a group whose
// extents are known later: when what its launches save with awake threads is more than waking them
// costs and what is lost until they have come. Where threads do not stay awake every launch wakes
// its own, which its price says. What a table says is not weighed.
bool RunState::is_worth_waking(const Group& group) {
  double saved_ps = 0;
  bool is_wanted = false;
  for (int64_t i = group.launch_begin; i < group.launch_end; ++i) {
    const auto launch = static_cast<size_t>(program_->group_launches[static_cast<size_t>(i)]);
    if (const TableRow* row = tabulated(program_->launches[launch])) {
      is_splittable_ |= row->homes > 1;
      is_wanted |= row->homes > 1 && homes_allowed > 1;
      continue;
    }
    const auto first = static_cast<size_t>(program_->launches[launch].variant_begin);
    const double alone = choose(program_->variants[first], 1).time_ps;
    is_splittable_ |= alone > costs.hot_paid_ps + costs.hot_delay_ps;
    if (homes_allowed <= 1) continue;
    shared_choices_[launch] = choose(program_->variants[first], homes_allowed);
    saved_ps += alone - shared_choices_[launch].time_ps;
  }
  if (is_wanted) return true;
  if (!Pool::process().keeps_threads_hot()) return saved_ps > 0;
  return saved_ps > costs.parked_paid_ps + (costs.parked_delay_ps - costs.parked_paid_ps) / 2;
}

LaunchChoice RunState::choose(const VariantRow& variant, int homes) const {
  const LaunchWork work{value(variant.cost_ps), value(variant.traffic_bytes),
                        value(variant.task_ps), value(variant.blocks)};
  return choose_launch(work, homes, Pool::process().keeps_threads_hot(), costs);
}

// The row of the launch's table that is nearest to the extents of this run, or null.
const TableRow* RunState::tabulated(const LaunchRow& launch) const {
  if (launch.table < 0) return nullptr;
  const Program& p = *program_;
  const LaunchTableRow& table = p.launch_tables[static_cast<size_t>(launch.table)];
  size_t point = 0;
  for (int64_t a = table.axis_begin; a < table.axis_end; ++a) {
    const TableAxisRow& axis = p.table_axes[static_cast<size_t>(a)];
    const auto count = static_cast<size_t>(axis.extent_end - axis.extent_begin);
    const std::span steps(&p.table_extents[static_cast<size_t>(axis.extent_begin)], count);
    point = point * count + nearest_step(steps, value(axis.value));
  }
  return &p.table_rows[static_cast<size_t>(table.row_begin) + point];
}

// The variant that the launch's table names, else the one that ends first by its prediction. What
// the first one takes on more than one home is known from is_worth_waking.
LaunchChoice RunState::choose_variant(size_t launch, int homes, const VariantRow** best) const {
  const LaunchRow& row = program_->launches[launch];
  const VariantRow* candidates = &program_->variants[static_cast<size_t>(row.variant_begin)];
  if (const TableRow* said = tabulated(row)) {
    *best = candidates + (homes > 1 ? said->variant : said->alone);
    return tabulated_launch(*said, value((*best)->blocks), homes);
  }
  *best = candidates;
  LaunchChoice choice = homes > 1 ? shared_choices_[launch] : choose(*candidates, homes);
  for (int64_t v = 1; v < row.variant_end - row.variant_begin; ++v) {
    const LaunchChoice trial = choose(candidates[v], homes);
    if (trial.time_ps >= choice.time_ps) continue;
    *best = candidates + v;
    choice = trial;
  }
  return choice;
}

// Chooses, then fills what the launch needs.
void RunState::tile_launch(size_t launch, int homes) {
  const Program& p = *program_;
  const LaunchRow& row = p.launches[launch];
  const VariantRow* best = nullptr;
  const LaunchChoice choice = choose_variant(launch, homes, &best);
  const size_t stride = (static_cast<size_t>(value(best->scratch_bytes)) + kMemoryAlignment - 1) &
                        ~(kMemoryAlignment - 1);
  uint64_t* argument = &arguments[static_cast<size_t>(p.argument_begin[launch])];
  dispatches[launch] = {p.tile_kernels[static_cast<size_t>(best->key)],
                        argument,
                        value(best->blocks),
                        choice.grain,
                        choice.homes,
                        nullptr,
                        stride};
  costs_ps[launch] = value(best->cost_ps);
  if (costs_ps[launch] > kLongLaunchPs) {
    dispatches[launch].interrupt = stream->is_inline() ? &by_caller_ : &by_stream_;
    dispatches[launch].look_every = value(best->blocks) / (costs_ps[launch] / kLookEveryPs) + 1;
  }
  variants[launch] = best - &p.variants[static_cast<size_t>(row.variant_begin)];
  homes_wanted = std::max(homes_wanted, choice.homes);
  argument += row.view_end - row.view_begin;
  for (int64_t w = row.word_begin; w < row.word_end; ++w)
    *argument++ = static_cast<uint64_t>(value(p.words[static_cast<size_t>(w)]));
  for (int64_t w = best->word_begin; w < best->word_end; ++w)
    *argument++ = static_cast<uint64_t>(value(p.words[static_cast<size_t>(w)]));
  argument_words[launch] = static_cast<size_t>(argument - dispatches[launch].args);
}

}  // namespace grainline
