// What one Run changes. A RunState serves one Run at a time (the lease of Executor sees to that)
// and keeps its memory, and everything it derived from the input shapes, for the next one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cost/launch.h"
#include "device/device.h"
#include "device/inline_stream.h"
#include "exec/copies.h"
#include "exec/observer.h"
#include "exec/program.h"
#include "exec/run_streams.h"
#include "exec/walk.h"
#include "memory/caching_allocator.h"
#include "threads/pool.h"

namespace grainline {

// Invariants: block != nullptr => data == block->data; block == nullptr and data != nullptr: a
// borrowed address, or one that was kept when its block was freed. object is opaque, owned by the
// slot when the slot is of kind object, borrowed from the caller when it is an input.
struct SlotState {
  std::byte* data = nullptr;
  MemoryBlock* block = nullptr;
  void* object = nullptr;
};

// How a Run reaches the language that embeds it. Every function may be called from any thread
// without that language's lock. All null when there is none.
struct Host {
  void* context = nullptr;
  // Runs the host operation: fills data and object of every result slot. false: it put a Status
  // into the state.
  bool (*call)(void* context, RunState& state, const HostCallRow& row) = nullptr;
  // Rank (-1: not a tensor) and extents of an object that a call made.
  int (*shape_of)(const void* object, const int64_t** dims) = nullptr;
  void (*release)(void* object) = nullptr;
  // Whether the user wants the run to end now; asked a few times a second.
  bool (*is_interrupted)(void* context) = nullptr;
};

class RunState {
 public:
  // device outlives the state.
  RunState(std::shared_ptr<const Program> program, Device& run_on);
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  // Before a run, for every input. dims must stay valid until the run ends. Fails on a wrong rank.
  Status bind_input(size_t input, std::byte* data, void* object, int rank, const int64_t* dims);

  // Makes the extents of a group known; cheap while the shapes stay. Group 0 reads the inputs.
  bool infer_shape(size_t group);
  // Ends the run with this status, unless another node failed before. Any thread. Always true.
  bool fail(Status failure);
  bool fail(StatusCode code, std::string message) { return fail(Status(code, std::move(message))); }
  // After fail by the same thread: the node that it was. Ignored for all but the first failure.
  void blame(size_t node);

  // Records a block of the slot's allocator and the peak of this run.
  bool allocate(int32_t slot, int64_t size_bytes);
  // The same without giving it to the slot.
  bool take(int32_t slot, int64_t size_bytes, MemoryBlock** block);
  // The slot frees what it has and gets this; block may be nullptr: a borrowed address.
  void own(int32_t slot, std::byte* data, MemoryBlock* block);
  // `to` becomes one more owner of what `from` holds.
  void share(int32_t from, int32_t to);
  void free(int32_t slot);
  // The block goes back, the raw address stays until the slot is filled again.
  void free_holding_address(int32_t slot);
  void release_object(int32_t slot);
  // What `from` owns becomes the property of `to`, which frees its own first; a borrowed address is
  // then borrowed by both.
  void move(int32_t from, int32_t to);

  // A larger block in the place of the one that the slot has, if any, with the same bytes at its
  // begin.
  bool grow(int32_t slot, int64_t size_bytes);
  // Words [begin, end) become the dims from `first` on, for the InferShape that reads them. turn is
  // not 0: they must be what they were.
  bool pass_extents(size_t first, size_t begin, size_t end, int64_t turn);

  // Frees whatever a failed run left behind, results included.
  void clean_up();
  // Releases the results that nobody took over: memory of outputs, objects that are outputs.
  void drop_outputs();
  // For who looks at memory in the middle of a run: waits until what was submitted is done. What
  // failed is reported by the end of the run.
  void await_device() { await_device(nullptr); }
  // For a switch, which reads the slot: does so where the device may be writing it still.
  void await_contents(int64_t slot);
  // Counters of the run that ended at now_ns; gives memory back after a spike.
  void settle_memory(int64_t now_ns);
  // Gives idle memory back, but for kept_bytes of the device's; returns the bytes.
  size_t trim(size_t kept_bytes);
  size_t held_bytes() const;
  AllocatorStatistics statistics() const;
  // Of all streams; between runs. See Stream::log_commands.
  void log_commands(CommandLog* log);
  // For a node behind which the host goes on: waits for what the stream was given. The caller looks
  // meanwhile whether the run is to end.
  Status await_stream(Stream& waited) {
    return synchronize_asking(waited, walk->is_in_caller() ? &by_caller_ : nullptr);
  }
  // Waits for all streams, unless the user wants the run to end before. The first failure.
  Status synchronize() {
    return streams ? streams->synchronize(&by_caller_) : synchronize_asking(*stream, &by_caller_);
  }
  // Of the memory blocks in use. Any thread; relaxed: a number for observers.
  size_t live_bytes() const { return live_bytes_.load(std::memory_order_relaxed); }
  // The most memory that a run of the last one or two windows of kWindowNs used at a time.
  size_t recent_peak_bytes() const;
  // Whether the user wants the run to end; then it has failed.
  bool is_interrupted();
  // A copy of the first failure. Any thread.
  Status failure();
  // Called between launches; true: the run must end (the Status is set).
  bool charge(int64_t cost_ps) {
    poll_budget_ps_ -= cost_ps > kMinCharge ? cost_ps : kMinCharge;
    return poll_budget_ps_ < 0 && poll();
  }

  void choose(const Node& node, uint32_t branch) { choices[number_of(node)] = branch; }
  // The stream that the node submits to.
  Stream& stream_of(const Node& node) {
    if (streams == nullptr) [[likely]]
      return *stream;
    return streams->stream(static_cast<size_t>(program_->node_streams[number_of(node)]));
  }

  const Program& program() const { return *program_; }
  int64_t value(int64_t index) const { return values[static_cast<size_t>(index)]; }

  std::vector<SlotState> slots;
  std::vector<int64_t> values;
  std::vector<Dispatch> dispatches;    // per launch, filled by its tiling
  std::vector<int64_t> costs_ps;       // per launch, of the chosen variant
  std::vector<int64_t> variants;       // per launch, the chosen one, counted from its first
  std::vector<uint64_t> arguments;     // of all launches, at Program::argument_begin
  std::vector<size_t> argument_words;  // per launch, of the chosen variant
  std::vector<CopyState> copies;
  std::vector<CopyFlowState> copy_flows;
  std::vector<uint32_t> choices;  // per node: the branch that a switch chose; none: no switches
  Observer* observer = nullptr;   // null: nobody watches
  Device& device;
  Event looked_at;  // of await_device
  const std::unique_ptr<Stream> stream;
  CachingAllocator allocator;
  std::unique_ptr<RunStreams> streams;  // null: the program has one
  InlineStream host_order;              // the host uses its memory in the order of the calls
  CachingAllocator host_allocator;      // of slots that are on the host
  std::unique_ptr<Walk> walk;           // set by whoever makes the state
  Host host;
  // Nonzero ends the run. Set by any thread, read between nodes; relaxed: it carries no data.
  const std::atomic<int32_t>* terminate = nullptr;
  bool is_cancellable = false;  // terminate is the caller's word
  Status status;  // the first failure; read and written under failure_lock_ while workers run
  int failed_node = -1;

  int homes_allowed = 1;       // for this run
  int homes_wanted = 1;        // the most that a launch of the current tiling uses
  bool wants_threads = false;  // the launches that are known first are worth waking pool threads
  const MachineCosts costs = machine_costs();

 private:
  static constexpr int64_t kPollEveryPs = 20'000'000;
  static constexpr int64_t kMinCharge = kPollEveryPs / 64;
  static constexpr int64_t kSignalEveryNs = 50'000'000;
  // Of one thread: a launch that takes longer can be left in between, about so often.
  static constexpr int64_t kLongLaunchPs = 20'000'000'000;
  static constexpr int64_t kLookEveryPs = 2'000'000'000;
  // Long enough that shapes which take turns keep their memory.
  static constexpr int64_t kWindowNs = 2'000'000'000;
  static constexpr size_t kSlackBytes = 16 << 20;

  Allocator& allocator_of(int32_t slot) {
    const SlotRow& row = program_->slots[static_cast<size_t>(slot)];
    if (row.is_on_host) return host_allocator;
    return streams ? streams->allocator(static_cast<size_t>(row.stream)) : allocator;
  }
  size_t number_of(const Node& node) const {
    return static_cast<size_t>(&node - program_->nodes.data());
  }
  void give_back(int32_t slot, MemoryBlock* block);
  void set_live_bytes(size_t bytes) { live_bytes_.store(bytes, std::memory_order_relaxed); }
  bool poll();
  static bool is_over_for_caller(void* state);
  static bool is_over_for_stream(void* state);
  void await_device(const Interrupt* asked);
  bool observe(const Group& group, size_t index);
  bool evaluate(const Group& group);
  bool report_bad_value(size_t instruction);
  bool verify(const Group& group, bool is_feed);
  bool holds(const Check& check) const;
  bool fail_check(const Check& check, bool is_feed);
  bool tile(const Group& group, bool is_first);
  bool is_worth_waking(const Group& group);
  LaunchChoice choose(const VariantRow& variant, int homes) const;
  const TableRow* tabulated(const LaunchRow& launch) const;
  LaunchChoice choose_variant(size_t launch, int homes, const VariantRow** best) const;
  void tile_launch(size_t launch, int homes);

  std::shared_ptr<const Program> program_;
  std::mutex failure_lock_;
  std::thread::id failed_thread_;
  std::vector<const int64_t*> input_dims_;
  std::vector<int64_t> dims_;                 // observed now
  std::vector<int64_t> seen_dims_;            // that the values of each group were derived from
  std::vector<uint8_t> is_known_;             // per group: values and tilings fit seen_dims_
  std::vector<LaunchChoice> shared_choices_;  // per launch, of its first variant on homes_allowed
  int tiled_homes_ = 0;                       // homes_allowed that the tilings were made with
  bool is_splittable_ = true;  // some launch is large enough for homes_allowed to matter
  int64_t poll_budget_ps_ = 0;
  int64_t last_poll_ns_ = 0;  // 0: not polled in this run
  // The caller met a signal. Read by threads of streams; relaxed: it carries no data.
  std::atomic<bool> was_interrupted_{false};
  // Who works on launches of an inline stream, or waits; and who works for another stream.
  const Interrupt by_caller_{is_over_for_caller, this}, by_stream_{is_over_for_stream, this};
  std::atomic<size_t> live_bytes_{0};  // written by one thread at a time, who takes memory
  size_t peak_bytes_ = 0;
  int64_t window_begin_ns_ = 0;
  size_t window_peak_bytes_ = 0;
  size_t last_window_peak_bytes_ = 0;

  friend class Executor;
};

// Runs a node, tells the observer, and blames the node when it failed. Returns whether it did.
template <bool kObserved>
inline bool run_node(RunState& state, const Node& node, size_t number, int worker) {
  const auto tell = [&](EventKind kind) {
    state.observer->on_event({kind, worker, number, state.live_bytes()});
  };
  if constexpr (kObserved) tell(EventKind::node_started);
  const bool has_failed = node.fn(state, node);
  if (has_failed) [[unlikely]]
    state.blame(number);
  if constexpr (kObserved) tell(has_failed ? EventKind::node_failed : EventKind::node_ended);
  return has_failed;
}

}  // namespace grainline
