// The memory worker out of order: from the first allocation that was parked to the end of the run.
#include <sched.h>

#include <algorithm>

#include "base/relax.h"
#include "exec/kernels.h"
#include "exec/worker_team.h"
#include "threads/parking.h"

namespace grainline {

// first: all steps before it are done. parked: in the order in which they were parked.
struct WorkerTeam::Pending {
  const std::vector<WorkerStep>& steps;
  uint32_t first;
  std::vector<uint32_t> parked;
  bool has_freed = false;  // since the parked allocations were tried last

  bool is_parked(uint32_t step) const { return std::ranges::find(parked, step) != parked.end(); }
  std::vector<size_t> parked_nodes() const {
    std::vector<size_t> nodes;
    for (const uint32_t step : parked) nodes.push_back(steps[step].node);
    return nodes;
  }
};

void WorkerTeam::work_out_of_order(uint32_t parked_step) {
  constexpr size_t kMe = WorkerPlan::kMemory;
  Pending pending{plan_.workers[kMe].steps, parked_step, {parked_step}};
  publish(kMe, parked_step);
  control_.fetch_or(kDisordered, std::memory_order_seq_cst);  // before any step overtakes
  wake_sleepers();
  for (int idle = 0; pending.first < pending.steps.size() && !is_halted();) {
    if (is_cancelled()) return fail(StatusCode::cancelled, "the run was cancelled");
    if (advance(pending, false)) {
      idle = 0;
    } else if (++idle < kSpins) {
      cpu_relax();
    } else if (!are_others_stuck(kMe)) {
      sleep_on(desks_[kMe].is_asleep, 0, kDozeNs);  // nobody wakes for a requirement that was met
    } else if (!advance(pending, false) && !advance(pending, true)) {
      return fail(StatusCode::out_of_memory, stall_report(pending.parked_nodes()));
    }
  }
}

// Runs one step that may run now. false: there is none.
bool WorkerTeam::advance(Pending& pending, bool may_allocate) {
  if (!pending.parked.empty() && (relations_.is_met() || std::exchange(pending.has_freed, false)))
    if (run_pending(pending, pending.parked.front())) return true;
  const auto end = static_cast<uint32_t>(pending.steps.size());
  for (uint32_t step = pending.first; step < end && !is_halted(); ++step) {
    if (may_overtake(pending, step, may_allocate)) return run_pending(pending, step);
    if (pending.parked.empty() && !done_[step].load(std::memory_order_relaxed)) return false;
  }
  return false;
}

bool WorkerTeam::may_overtake(const Pending& pending, uint32_t step, bool may_allocate) const {
  // Relaxed: this worker's own flags.
  if (done_[step].load(std::memory_order_relaxed) || pending.is_parked(step)) return false;
  const WorkerStep& row = pending.steps[step];
  if (!pending.parked.empty()) {
    if (row.is_related || (row.may_park && !may_allocate)) return false;
  }
  return are_predecessors_done(row.node);
}

// Whether the step got done.
bool WorkerTeam::run_pending(Pending& pending, uint32_t step) {
  const bool was_parked = pending.is_parked(step);
  const WorkerStep& row = pending.steps[step];
  if (was_parked && state_->observer != nullptr)
    state_->observer->on_event(
        {EventKind::node_resumed, WorkerPlan::kMemory, row.node, state_->live_bytes()});
  const Outcome outcome = execute(WorkerPlan::kMemory, row);
  if (outcome == Outcome::parked && !was_parked) pending.parked.push_back(step);
  if (outcome != Outcome::done) return outcome == Outcome::halted;
  if (was_parked) std::erase(pending.parked, step);
  pending.has_freed |= !row.may_park;
  done_[step].store(1, std::memory_order_release);  // see is_done
  while (pending.first < pending.steps.size() &&
         done_[pending.first].load(std::memory_order_relaxed))
    ++pending.first;
  publish(WorkerPlan::kMemory, pending.first);
  return true;
}

}  // namespace grainline
