// Runs a Program: leases a RunState, walks the node array, returns the first failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/cpu_device.h"
#include "exec/executor_kind.h"
#include "exec/run_state.h"
#include "exec/topological.h"
#include "exec/worker_plan.h"

namespace grainline {

// The executor of one loaded model. Any number of threads may run it at once; each Run
// leases a RunState of its own.
//
// Shared fields: hot_ (exchanged by everyone, see lease), idle_ (under lock_), last_run_ns_ and
// statistics (relaxed: nothing is published through them).
// Weights are set before the first lease and constant from then on.
class Executor {
 public:
  // options: such that choose_kind accepts them. device outlives the executor.
  Executor(std::shared_ptr<const Program> program, const ExecutorOptions& options,
           Device& device = CpuDevice::process());
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Program& program() const { return *program_; }
  ExecutorKind kind() const { return kind_; }
  int active_runs() const { return active_runs_.load(std::memory_order_relaxed); }

  // The memory behind a weight slot; the caller keeps it alive. Before the first lease.
  void set_weight(size_t slot, std::byte* data) { weights_[slot] = data; }
  // The slot holds a copy of `data` in the memory of the device. `data` must stay until
  // finish_weights, which waits for all copies. Before the first lease.
  Status copy_weight(size_t slot, const std::byte* data, size_t size_bytes);
  Status finish_weights();

  // The state's inputs are to be bound, then run, then its output slots read, then given back.
  RunState* lease();
  void give_back(RunState* state);

  // One execution of the program. Results stay in the output slots until drop_outputs. After a
  // failure everything is free again. Either way the state can run again.
  Status run(RunState& state);

  // Gives the memory of idle RunStates back to the system, but for kept_bytes of each. Returns the
  // bytes.
  size_t trim(size_t kept_bytes = 0);
  // End of the newest Run, steady clock.
  int64_t last_run_ns() const { return last_run_ns_.load(std::memory_order_relaxed); }

  struct Statistics {
    size_t states;      // RunStates that exist
    size_t held_bytes;  // of the idle ones
    uint64_t allocations;
    uint64_t growths;
    size_t peak_bytes;  // the most that one of the last runs used at a time
  };
  Statistics statistics();

 private:
  // Weights in the memory of the device, and the stream that copies them.
  struct DeviceWeights {
    explicit DeviceWeights(Device& device);
    std::unique_ptr<Stream> stream;
    CachingAllocator allocator;
  };

  RunState* idle_state();
  std::unique_ptr<Walk> new_walk() const;
  void name_failure(RunState& state);

  std::shared_ptr<const Program> program_;
  Device& device_;
  const int thread_limit_;
  ExecutorKind kind_;
  std::optional<TopologicalPlan> topological_;
  std::optional<WorkerPlan> workers_;
  std::vector<std::byte*> weights_;  // by slot
  std::optional<DeviceWeights> device_weights_;
  std::atomic<RunState*> hot_{nullptr};
  std::mutex lock_;
  std::vector<std::unique_ptr<RunState>> idle_;
  std::atomic<size_t> states_{0};
  std::atomic<int> active_runs_{0};  // relaxed: a count, nothing is published through it
  std::atomic<int64_t> last_run_ns_{0};
};

}  // namespace grainline
