#include "exec/run_state.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "exec/executor_kind.h"
#include "memory/host_memory.h"
#include "memory/output_pool.h"

namespace grainline {

RunState::RunState(std::shared_ptr<const Program> program, Device& run_on)
    : device(run_on),
      stream(run_on.create_stream()),
      allocator(run_on.memory(), *stream, {.poisons = run_on.is_checked()}),
      host_allocator(HostMemory::process(), host_order),
      program_(std::move(program)) {
  const Program& p = *program_;
  slots.resize(p.slots.size());
  values.resize(p.value_count());
  std::ranges::copy(p.constants, values.begin());
  dispatches.resize(p.launches.size());
  costs_ps.resize(p.launches.size());
  variants.resize(p.launches.size());
  shared_choices_.resize(p.launches.size());
  arguments.resize(static_cast<size_t>(p.argument_begin.back()));
  argument_words.resize(p.launches.size());
  copies.resize(p.tensor_copies.size());
  copy_flows.resize(p.copy_flows.size());
  input_dims_.resize(p.inputs.size());
  dims_.resize(p.dim_count());
  seen_dims_.resize(p.dim_count());
  is_known_.resize(p.groups.size());
  if (has_control_flow(p)) choices.resize(p.nodes.size());
  if (p.stream_count() > 1)
    streams =
        std::make_unique<RunStreams>(device, *stream, allocator, p.stream_count(), p.event_count());
}

RunState::~RunState() {
  walk.reset();  // its threads use the state
  clean_up();
}

Status RunState::bind_input(size_t input, std::byte* data, void* object, int rank,
                            const int64_t* dims) {
  const InputRow& row = program_->inputs[input];
  SlotState& slot = slots[static_cast<size_t>(row.slot)];
  slot.data = data;
  slot.object = object;
  if (row.rank < 0) return {};
  if (rank != row.rank)
    return Status(StatusCode::invalid_argument, "input '" + program_->string(row.name) +
                                                    "': expected rank " + std::to_string(row.rank) +
                                                    ", found rank " + std::to_string(rank));
  std::copy_n(dims, rank, dims_.begin() + row.first_dim);
  return {};
}

bool RunState::fail(Status failure) {
  // The allocation is tried again: no failure yet.
  if (failure.code() == StatusCode::not_ready) return true;
  const std::lock_guard<std::mutex> held(failure_lock_);
  if (!status.is_ok()) return true;
  status = std::move(failure);
  failed_thread_ = std::this_thread::get_id();
  return true;
}

void RunState::blame(size_t node) {
  const std::lock_guard<std::mutex> held(failure_lock_);
  if (failed_node < 0 && !status.is_ok() && failed_thread_ == std::this_thread::get_id())
    failed_node = static_cast<int>(node);
}

bool RunState::allocate(int32_t slot, int64_t size_bytes) {
  MemoryBlock* block = nullptr;
  if (take(slot, size_bytes, &block)) return true;
  SlotState& state = slots[static_cast<size_t>(slot)];
  state.data = block->data;
  state.block = block;
  return false;
}

bool RunState::take(int32_t slot, int64_t size_bytes, MemoryBlock** block) {
  Status refusal = allocator_of(slot).allocate(static_cast<size_t>(size_bytes), block);
  if (*block == nullptr) [[unlikely]] {
    refusal.add_context("'" + program_->string(program_->slots[static_cast<size_t>(slot)].label) +
                        "'");
    return fail(std::move(refusal));
  }
  set_live_bytes(live_bytes() + (*block)->capacity_bytes);
  peak_bytes_ = std::max(peak_bytes_, live_bytes());
  return false;
}

void RunState::give_back(int32_t slot, MemoryBlock* block) {
  if (block->uses == 1) set_live_bytes(live_bytes() - block->capacity_bytes);
  allocator_of(slot).free(block);
}

void RunState::own(int32_t slot, std::byte* data, MemoryBlock* block) {
  free(slot);
  slots[static_cast<size_t>(slot)].data = data;
  slots[static_cast<size_t>(slot)].block = block;
}

void RunState::share(int32_t from, int32_t to) {
  const SlotState source = slots[static_cast<size_t>(from)];
  if (source.block != nullptr) allocator_of(to).share(source.block);
  own(to, source.data, source.block);
}

void RunState::free(int32_t slot) {
  if (slots[static_cast<size_t>(slot)].block == nullptr) return;
  free_holding_address(slot);
  slots[static_cast<size_t>(slot)].data = nullptr;
}

void RunState::free_holding_address(int32_t slot) {
  SlotState& state = slots[static_cast<size_t>(slot)];
  if (state.block != nullptr) give_back(slot, std::exchange(state.block, nullptr));
}

void RunState::release_object(int32_t slot) {
  SlotState& state = slots[static_cast<size_t>(slot)];
  if (state.object != nullptr && host.release != nullptr) host.release(state.object);
  state = {};
}

void RunState::move(int32_t from, int32_t to) {
  SlotState& source = slots[static_cast<size_t>(from)];
  SlotState& target = slots[static_cast<size_t>(to)];
  if (target.block != nullptr) free(to);
  if (target.object != nullptr) release_object(to);
  target = source;
  const auto kind = static_cast<SlotKind>(program_->slots[static_cast<size_t>(from)].kind);
  if (source.block != nullptr || kind == SlotKind::object) source = {};
}

bool RunState::grow(int32_t slot, int64_t size_bytes) {
  MemoryBlock* block = nullptr;
  if (take(slot, size_bytes, &block)) return true;
  const SlotState& old = slots[static_cast<size_t>(slot)];
  if (old.block != nullptr) {
    Status copied =
        stream->copy(block->data, old.data, old.block->capacity_bytes, CopyKind::within_device);
    if (!copied.is_ok()) {
      give_back(slot, block);
      return fail(std::move(copied));
    }
  }
  own(slot, block->data, block);
  return false;
}

void RunState::clean_up() {
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const auto kind = static_cast<SlotKind>(program_->slots[slot].kind);
    if (kind == SlotKind::object) release_object(static_cast<int32_t>(slot));
    if (kind == SlotKind::memory || kind == SlotKind::workspace) free(static_cast<int32_t>(slot));
  }
  for (size_t tensor = 0; tensor < copies.size(); ++tensor)
    if (copies[tensor].block != nullptr)
      give_back(static_cast<int32_t>(program_->tensor_copies[tensor].target),
                std::exchange(copies[tensor].block, nullptr));
  if (streams) static_cast<void>(streams->synchronize(nullptr));  // what was freed goes home
  drop_outputs();
}

void RunState::drop_outputs() {
  for (const OutputRow& output : program_->outputs) {
    SlotState& slot = slots[static_cast<size_t>(output.slot)];
    const auto kind = static_cast<SlotKind>(program_->slots[static_cast<size_t>(output.slot)].kind);
    if (kind == SlotKind::object) release_object(static_cast<int32_t>(output.slot));
    if (kind == SlotKind::output && slot.data != nullptr)
      OutputPool::process().release(std::exchange(slot.data, nullptr));
  }
}

void RunState::await_device(const Interrupt* asked) {
  if (streams) return streams->await(asked);
  if (stream->is_inline() || !stream->record(looked_at).is_ok()) return;
  static_cast<void>(synchronize_asking(looked_at, asked));
}

void RunState::await_contents(int64_t slot) {
  const SlotRow& row = program_->slots[static_cast<size_t>(slot)];
  const auto kind = static_cast<SlotKind>(row.kind);
  if (!row.is_on_host && (kind == SlotKind::memory || kind == SlotKind::output))
    await_device(&by_caller_);
}

void RunState::log_commands(CommandLog* log) {
  if (streams) return streams->log_commands(log);
  stream->log_commands(log, 0);
}

void RunState::settle_memory(int64_t now_ns) {
  if (now_ns - window_begin_ns_ > kWindowNs) {
    last_window_peak_bytes_ = now_ns - window_begin_ns_ > 2 * kWindowNs ? 0 : window_peak_bytes_;
    window_peak_bytes_ = 0;
    window_begin_ns_ = now_ns;
  }
  window_peak_bytes_ = std::max(window_peak_bytes_, peak_bytes_);
  peak_bytes_ = 0;
  const size_t recent_bytes = recent_peak_bytes();
  if (held_bytes() > 2 * recent_bytes + kSlackBytes) [[unlikely]]
    trim(recent_bytes);
}

size_t RunState::trim(size_t kept_bytes) {
  const size_t beside = streams ? streams->trim(kept_bytes) : 0;
  return allocator.trim(kept_bytes) + beside + host_allocator.trim(0);
}

size_t RunState::held_bytes() const {
  const size_t beside = streams ? streams->held_bytes() : 0;
  return allocator.held_bytes() + beside + host_allocator.held_bytes();
}

AllocatorStatistics RunState::statistics() const {
  AllocatorStatistics total = allocator.statistics();
  if (!streams) return total;
  const AllocatorStatistics beside = streams->statistics();
  total.allocations += beside.allocations;
  total.growths += beside.growths;
  return total;
}

size_t RunState::recent_peak_bytes() const {
  return std::max(window_peak_bytes_, last_window_peak_bytes_);
}

Status RunState::failure() {
  const std::lock_guard<std::mutex> held(failure_lock_);
  return status;
}

bool RunState::is_interrupted() {
  if (host.is_interrupted == nullptr || !host.is_interrupted(host.context)) return false;
  was_interrupted_.store(true, std::memory_order_relaxed);
  return fail(StatusCode::cancelled, "the run was interrupted");
}

bool RunState::poll() {
  poll_budget_ps_ = kPollEveryPs;
  const int64_t now_ns = coarse_now_ns();
  if (last_poll_ns_ == 0) last_poll_ns_ = now_ns;
  if (now_ns - last_poll_ns_ < kSignalEveryNs) return false;
  last_poll_ns_ = now_ns;
  return is_interrupted();
}

// Relaxed all: flags that carry no data.
bool RunState::is_over_for_stream(void* state) {
  const auto& self = *static_cast<const RunState*>(state);
  return self.was_interrupted_.load(std::memory_order_relaxed) ||
         self.terminate->load(std::memory_order_relaxed) != 0;
}

bool RunState::is_over_for_caller(void* state) {
  return is_over_for_stream(state) || static_cast<RunState*>(state)->poll();
}

}  // namespace grainline
