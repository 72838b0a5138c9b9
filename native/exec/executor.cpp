#include "exec/executor.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "exec/idle_trim.h"
#include "exec/worker_team.h"

namespace grainline {
namespace {

const std::atomic<int32_t> kNeverTerminate{0};

}  // namespace

Executor::DeviceWeights::DeviceWeights(Device& device)
    : stream(device.create_stream()), allocator(device.memory(), *stream) {}

Executor::Executor(std::shared_ptr<const Program> program, const ExecutorOptions& options,
                   Device& device)
    : program_(std::move(program)),
      device_(device),
      thread_limit_(options.thread_limit > 0 ? options.thread_limit : Pool::kMaxHomes),
      weights_(program_->slots.size()) {
  const Status status = choose_kind(*program_, options, &kind_);
  CHECK(status.is_ok(), "the options were checked");
  if (kind_ == ExecutorKind::multi_worker)
    workers_.emplace(*program_, static_cast<size_t>(options.workers));
  else if (kind_ != ExecutorKind::sequential)
    topological_.emplace(*program_);
  IdleTrim::process().add(this);
}

std::unique_ptr<Walk> Executor::new_walk() const {
  if (kind_ == ExecutorKind::multi_worker)
    return std::make_unique<WorkerTeam>(*workers_, *program_);
  if (kind_ == ExecutorKind::sequential) return std::make_unique<SequentialWalk>();
  if (kind_ == ExecutorKind::topological)
    return std::make_unique<TopologicalWalk<ReadyQueue>>(*topological_);
  return std::make_unique<TopologicalWalk<ReadyBits>>(*topological_);
}

Executor::~Executor() {
  IdleTrim::process().remove(this);
  delete hot_.load(std::memory_order_acquire);
}

Status Executor::copy_weight(size_t slot, const std::byte* data, size_t size_bytes) {
  if (!device_weights_) device_weights_.emplace(device_);
  MemoryBlock* block = nullptr;
  Status status = device_weights_->allocator.allocate(size_bytes, &block);
  if (!status.is_ok()) return status;
  weights_[slot] = block->data;
  return device_weights_->stream->copy(block->data, data, size_bytes, CopyKind::host_to_device);
}

Status Executor::finish_weights() {
  return device_weights_ ? device_weights_->stream->synchronize() : Status();
}

// nullptr: there is none, or somebody else is looking.
RunState* Executor::idle_state() {
  // Acquire: sees everything that the Run which put the state here wrote (release in give_back).
  if (RunState* state = hot_.exchange(nullptr, std::memory_order_acquire)) return state;
  const std::unique_lock<std::mutex> held(lock_, std::try_to_lock);
  if (!held.owns_lock() || idle_.empty()) return nullptr;
  RunState* state = idle_.back().release();
  idle_.pop_back();
  return state;
}

RunState* Executor::lease() {
  while (RunState* state = idle_state()) {
    if (state->stream->is_usable()) [[likely]]
      return state;
    states_.fetch_sub(1, std::memory_order_relaxed);  // a statistic
    delete state;                                     // of the parent of this forked child
  }
  auto state = std::make_unique<RunState>(program_, device_);
  state->walk = new_walk();
  for (size_t slot = 0; slot < weights_.size(); ++slot) state->slots[slot].data = weights_[slot];
  states_.fetch_add(1, std::memory_order_relaxed);  // a statistic
  return state.release();
}

void Executor::give_back(RunState* state) {
  RunState* empty = nullptr;
  // Release: the next lease sees this Run's writes. Relaxed on failure: nothing was read.
  if (hot_.compare_exchange_strong(empty, state, std::memory_order_release,
                                   std::memory_order_relaxed))
    return;
  std::unique_lock<std::mutex> held(lock_, std::try_to_lock);
  if (held.owns_lock()) {
    idle_.emplace_back(state);
    return;
  }
  // Never waited for: in a forked child the lock may have no owner any more.
  states_.fetch_sub(1, std::memory_order_relaxed);  // a statistic
  delete state;
}

Status Executor::run(RunState& state) {
  const RunScope scope;
  Pool& pool = Pool::process();
  state.homes_allowed = std::min(pool.homes_allowed(), thread_limit_);
  if (state.is_splittable_ && state.homes_allowed != state.tiled_homes_) state.is_known_[0] = 0;
  // Where launches run in a thread of the stream, pool threads would only be in the way until then.
  if (state.wants_threads && state.homes_wanted > 1 && state.stream->is_inline())
    pool.warm(state.homes_wanted);
  state.is_cancellable = state.terminate != nullptr;
  if (!state.is_cancellable) state.terminate = &kNeverTerminate;
  state.last_poll_ns_ = 0;
  state.was_interrupted_.store(false, std::memory_order_relaxed);
  state.failed_node = -1;
  active_runs_.fetch_add(1, std::memory_order_relaxed);
  bool has_failed = state.walk->run(state);
  // Whether all went well is known when the device is done, and only then may memory go.
  if (Status status = state.synchronize(); !status.is_ok()) [[unlikely]]
    has_failed = state.fail(std::move(status));
  // A signal that was met while waiting.
  if (state.was_interrupted_.load(std::memory_order_relaxed)) [[unlikely]]
    has_failed = true;
  active_runs_.fetch_sub(1, std::memory_order_relaxed);
  if (has_failed) [[unlikely]] {
    name_failure(state);
    state.clean_up();
  }
  const int64_t end_ns = coarse_now_ns();
  last_run_ns_.store(end_ns, std::memory_order_relaxed);
  state.settle_memory(end_ns);
  if (state.held_bytes() > IdleTrim::kKeptBytes) IdleTrim::process().arm();
  state.terminate = nullptr;
  return std::move(state.status);
}

void Executor::name_failure(RunState& state) {
  if (state.failed_node < 0) return;
  const NodeRow& row = program_->node_rows[static_cast<size_t>(state.failed_node)];
  const std::string& kernel = program_->string(row.kernel_name);
  // A wrong feed is the caller's matter: the place is the input, which the message has.
  if (kernel == "InferShape") return;
  state.status.add_context("node '" + program_->string(row.compute_node) + "' (" + kernel + ")");
}

size_t Executor::trim(size_t kept_bytes) {
  size_t bytes = 0;
  if (RunState* state = hot_.exchange(nullptr, std::memory_order_acquire)) {  // as in lease
    bytes += state->trim(kept_bytes);
    give_back(state);
  }
  const std::unique_lock<std::mutex> held(lock_, std::try_to_lock);
  if (!held.owns_lock()) return bytes;  // as in give_back
  for (const auto& state : idle_) bytes += state->trim(kept_bytes);
  return bytes;
}

Executor::Statistics Executor::statistics() {
  Statistics total{states_.load(std::memory_order_relaxed), 0, 0, 0, 0};  // a statistic
  const auto add = [&](const RunState& state) {
    const AllocatorStatistics one = state.statistics();
    total.held_bytes += state.held_bytes();
    total.allocations += one.allocations;
    total.growths += one.growths;
    total.peak_bytes = std::max(total.peak_bytes, state.recent_peak_bytes());
  };
  if (RunState* state = hot_.exchange(nullptr, std::memory_order_acquire)) {  // as in lease
    add(*state);
    give_back(state);
  }
  const std::unique_lock<std::mutex> held(lock_, std::try_to_lock);
  if (!held.owns_lock()) return total;  // as in give_back
  for (const auto& state : idle_) add(*state);
  return total;
}

}  // namespace grainline
