// The multi-worker executor of one RunState: one memory worker, one launch worker, normal workers.
//
// Each worker runs its steps of a WorkerPlan in order. How far it got is one number, and a step
// that waits for another worker reads that number; there are no queues and no shared counters, and
// nothing has to be restored for the next run.
//
// Continuation. An allocation that would have to wait for launches (see relations.h) is parked
// instead, and the memory worker goes on out of order: from then to the end of the run a step
// counts as done by its own flag, and every worker tests all predecessors of its steps
// (`disordered`). The memory worker resumes a parked allocation when all requirements are met.
// While one is parked,
//   a Free with relations is not run: it would activate what the parked allocation waits for;
//   another allocation is run only when nothing else moves: it may take the memory that the parked
//     one would find.
// Nothing is parked while the caller runs a frame, which waits for every memory step in front of
// it. When nothing can move at all the run ends with out_of_memory and says what waits for what.
// Nobody can be woken for an earlier run, because what is parked lives no longer than the run.
//
// Waiting. A worker spins shortly, then gives its processor away between looks, then sleeps; where
// the device's streams have threads of their own and there are not processors for all, it sleeps at
// once: a thread that looks again and again keeps half of a processor that a launch could use. A
// sleeper looks around every kLookAroundNs: if all workers wait for each other, which the static
// order excludes, it aborts the run with a report instead of hanging.
//
// Threads start with the first run and sleep between runs. After a fork the child starts its own. A
// run for which the system starts too few fails with out_of_memory, and the next one tries again.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "exec/relations.h"
#include "exec/run_state.h"
#include "exec/walk.h"
#include "exec/worker_plan.h"

namespace grainline {

// Who writes and who reads what is shared:
//   desks_[i]    worker i writes, all read.
//   control_     bits are added by anyone, taken away by the caller between runs.
//   run_         the number of the run, by the caller; threads sleep on it.
//   working_     counts down as workers end their part.
//   state_, caller_, hot_ns_, done_ are written by the caller before run_ grows (release), and then
//   done_ by the memory worker alone.
class WorkerTeam final : public Walk {
 public:
  // plan and the program of the RunState must outlive the team.
  WorkerTeam(const WorkerPlan& plan, const Program& program);
  ~WorkerTeam() override;
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  bool run(RunState& state) override;
  bool is_in_caller() const override { return std::this_thread::get_id() == caller_; }

  const Relations& relations() const { return relations_; }

 private:
  static constexpr uint32_t kHalt = 1;        // the run ends as soon as everyone notices
  static constexpr uint32_t kDisordered = 2;  // see Continuation
  static constexpr uint32_t kFinished = UINT32_MAX;
  static constexpr int kSpins = 100;         // some microseconds: longer than a line takes to cross
  static constexpr int64_t kHotNs = 50'000;  // of giving the processor away between looks
  static constexpr int64_t kLookAroundNs = 20'000'000;
  static constexpr int64_t kDozeNs = 50'000;

  struct alignas(64) Desk {
    std::atomic<uint32_t> steps_done{0};
    // For those who look around: step + 1 where the worker waits, 0 while it runs, or kFinished.
    alignas(64) std::atomic<uint32_t> blocked_at{0};
    std::atomic<uint32_t> is_asleep{0};
    std::vector<uint32_t> places;  // the worker's own: where it saw the others wait
  };
  enum class Outcome : uint8_t { done, parked, halted };

  Status start_threads();
  void keep_off_the_caller();
  bool has_processors_for_all() const;
  void join_threads();
  void serve(size_t worker, uint32_t seen);
  void reset(RunState& state);

  void work(size_t worker);
  void work_in_order(size_t worker);
  Outcome execute(size_t worker, const WorkerStep& step);
  Outcome execute_frame(uint32_t begin);
  bool may_run(size_t worker, uint32_t step);
  void await(size_t worker, uint32_t step, const WorkerWait& wait);
  template <typename Condition>
  void wait_until(size_t worker, uint32_t step, Condition is_due);
  void publish(size_t worker, uint32_t steps_done);
  void sleep(size_t worker, int64_t timeout_ns);
  void wake_sleepers();
  void await_end();

  bool is_done(size_t node) const;
  bool are_predecessors_done(size_t node) const;
  bool is_halted() const { return control_.load(std::memory_order_relaxed) & kHalt; }
  bool is_cancelled() const { return state_->terminate->load(std::memory_order_relaxed) != 0; }
  void abort();
  void fail(StatusCode code, std::string message);

  // The memory worker out of order; worker_memory.cpp.
  struct Pending;
  void work_out_of_order(uint32_t parked_step);
  bool advance(Pending& pending, bool may_allocate);
  bool run_pending(Pending& pending, uint32_t step);
  bool may_overtake(const Pending& pending, uint32_t step, bool may_allocate) const;

  // Stalls; worker_stall.cpp.
  bool are_others_stuck(size_t worker);
  bool is_stuck(size_t worker, uint32_t blocked_at) const;
  void look_around(size_t worker);
  std::string stall_report(const std::vector<size_t>& waiting);
  std::string name_of_node(size_t node) const;

  const WorkerPlan& plan_;
  const Program& program_;
  Relations relations_;
  const bool has_relations_;
  TopologicalWalk<ReadyBits> frames_;  // the caller's

  RunState* state_ = nullptr;
  std::thread::id caller_;
  int64_t hot_ns_ = 0;                      // in this run
  std::vector<std::atomic<uint8_t>> done_;  // per step of the memory worker, when disordered
  std::vector<Desk> desks_;
  alignas(64) std::atomic<uint32_t> control_{0};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  alignas(64) std::atomic<uint32_t> run_{0};
  std::atomic<uint32_t> working_{0};
  std::atomic<bool> is_stopping_{false};
  std::vector<pthread_t> threads_;
  std::atomic<int> memory_thread_{0};  // its number, once it runs; relaxed: a hint
  int avoided_ = -1;                   // the processor that it is forbidden
  int64_t process_ = 0;                // that started all threads
};

}  // namespace grainline
