#include "exec/worker_team.h"

#include <sched.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/float_environment.h"
#include "base/relax.h"
#include "threads/parking.h"
#include "threads/start_thread.h"
#include "threads/topology.h"

namespace grainline {

WorkerTeam::WorkerTeam(const WorkerPlan& plan, const Program& program)
    : plan_(plan),
      program_(program),
      has_relations_(!program.relations.ids.empty()),
      frames_(plan.frames),
      done_(plan.workers[WorkerPlan::kMemory].steps.size()),
      desks_(plan.workers.size()) {
  const Status status = relations_.prepare(program.relations, program.node_rows.size());
  CHECK(status.is_ok(), "the relations were checked with the program");
  for (Desk& desk : desks_) desk.places.resize(desks_.size());
}

WorkerTeam::~WorkerTeam() {
  if (process_ == getpid()) join_threads();  // after a fork there is nothing to join
}

void WorkerTeam::join_threads() {
  is_stopping_.store(true, std::memory_order_relaxed);  // ordered by run_
  run_.fetch_add(1, std::memory_order_release);
  wake_all_sleepers(run_);
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
  threads_.clear();
}

// All of them, or none.
Status WorkerTeam::start_threads() {
  if (process_ == getpid()) return {};
  threads_.clear();  // of the parent, after a fork
  memory_thread_.store(0, std::memory_order_relaxed);
  avoided_ = -1;
  threads_.reserve(plan_.workers.size());
  const uint32_t seen = run_.load(std::memory_order_relaxed);  // written by this thread
  is_stopping_.store(false, std::memory_order_relaxed);  // published by the start of the threads
  for (size_t worker = 1; worker < plan_.workers.size(); ++worker) {
    pthread_t thread;
    Status status = start_thread([this, worker, seen] { serve(worker, seen); }, &thread);
    if (!status.is_ok()) {
      join_threads();
      return status;
    }
    threads_.push_back(thread);
  }
  process_ = getpid();
  return {};
}

// The system likes to wake a thread where its waker runs. There the caller waits for memory, and
// the memory worker for the caller to sleep.
void WorkerTeam::keep_off_the_caller() {
  const int thread = memory_thread_.load(std::memory_order_relaxed);
  const int processor = current_processor();
  if (thread != 0 && processor != avoided_ && avoid_processor(thread, processor, avoided_))
    avoided_ = processor;
}

bool WorkerTeam::has_processors_for_all() const {
  if (state_->stream->is_inline()) return true;  // the caller's own calls are the device
  const size_t threads = desks_.size() + program_.stream_count();
  return threads <= static_cast<size_t>(Pool::process().processors());
}

void WorkerTeam::serve(size_t worker, uint32_t seen) {
  if (worker == WorkerPlan::kMemory)
    memory_thread_.store(current_thread(), std::memory_order_relaxed);
  const DefaultFloatScope float_scope;
  while (true) {
    // Acquire: sees what the caller prepared for this run.
    while (run_.load(std::memory_order_acquire) == seen) sleep_on(run_, seen);
    if (is_stopping_.load(std::memory_order_relaxed)) return;
    ++seen;
    work(worker);
    // Release: the caller sees the effects of all steps. The last one wakes it.
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) wake_sleepers();
  }
}

void WorkerTeam::reset(RunState& state) {
  state_ = &state;
  caller_ = std::this_thread::get_id();
  // Relaxed all: published by run_.
  if (control_.exchange(0, std::memory_order_relaxed) & kDisordered)
    for (std::atomic<uint8_t>& done : done_) done.store(0, std::memory_order_relaxed);
  for (Desk& desk : desks_) {
    desk.steps_done.store(0, std::memory_order_relaxed);
    desk.blocked_at.store(0, std::memory_order_relaxed);
  }
  working_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
}

bool WorkerTeam::run(RunState& state) {
  if (Status status = start_threads(); !status.is_ok()) return state.fail(std::move(status));
  reset(state);
  if (has_relations_) {
    Status status = relations_.begin_epoch();
    if (!status.is_ok()) return state.fail(std::move(status));
    state.allocator.set_gate(&relations_);
  }
  keep_off_the_caller();
  hot_ns_ = has_processors_for_all() ? kHotNs : 0;
  run_.fetch_add(1, std::memory_order_release);
  wake_all_sleepers(run_);
  work(WorkerPlan::kCaller);
  await_end();
  state.allocator.set_gate(nullptr);
  return is_halted();
}

// ---- the steps of one worker --------------------------------------------------------------------

void WorkerTeam::work(size_t worker) {
  work_in_order(worker);
  desks_[worker].blocked_at.store(kFinished, std::memory_order_release);
}

void WorkerTeam::work_in_order(size_t worker) {
  const WorkerSteps& mine = plan_.workers[worker];
  const std::atomic<int32_t>& terminate = *state_->terminate;
  const auto count = static_cast<uint32_t>(mine.steps.size());
  for (uint32_t i = 0; i < count; ++i) {
    const WorkerStep& step = mine.steps[i];
    for (uint32_t w = step.wait_begin; w < step.wait_end; ++w) await(worker, i, mine.waits[w]);
    // Relaxed: kDisordered is seen by whoever saw a step that ran after it (see publish); the rest
    // carries no data.
    if (control_.load(std::memory_order_relaxed) |
        static_cast<uint32_t>(terminate.load(std::memory_order_relaxed))) [[unlikely]]
      if (!may_run(worker, i)) return;
    const Outcome outcome = step.is_frame ? execute_frame(step.node) : execute(worker, step);
    if (outcome != Outcome::done) [[unlikely]]
      return outcome == Outcome::parked ? work_out_of_order(i) : void();
    if (step.is_awaited) publish(worker, i + 1);
  }
  publish(worker, count);
}

WorkerTeam::Outcome WorkerTeam::execute(size_t worker, const WorkerStep& step) {
  RunState& state = *state_;
  const auto tell = [&](EventKind kind) {
    if (state.observer != nullptr)
      state.observer->on_event({kind, static_cast<int>(worker), step.node, state.live_bytes()});
  };
  tell(EventKind::node_started);
  const Node& node = program_.nodes[step.node];
  if (node.fn(state, node)) [[unlikely]] {
    if (step.may_park && relations_.has_refused_wait()) {
      tell(EventKind::node_parked);
      return Outcome::parked;
    }
    state.blame(step.node);
    tell(EventKind::node_failed);
    abort();
    return Outcome::halted;
  }
  // Before anyone hears of the step: a Free that ran has activated its requirements.
  if (step.is_related && !relations_.record(step.node)) [[unlikely]] {
    tell(EventKind::node_failed);
    abort();
    return Outcome::halted;
  }
  tell(EventKind::node_ended);
  return Outcome::done;
}

// The nodes of a frame report for themselves. An allocation in there cannot be parked, and never
// has to be: every launch in front of the frame is submitted, and no Free in front of it has run
// ahead of one behind it.
WorkerTeam::Outcome WorkerTeam::execute_frame(uint32_t begin) {
  if (!frames_.run_frame(*state_, begin, control_, kHalt)) return Outcome::done;
  if (relations_.has_refused_wait())
    fail(StatusCode::internal, stall_report({begin}));
  else
    abort();
  return Outcome::halted;
}

// What else stands in the way of a step whose waits are over. false: the run ends.
bool WorkerTeam::may_run(size_t worker, uint32_t step) {
  if (is_cancelled()) fail(StatusCode::cancelled, "the run was cancelled");
  if (is_halted()) return false;
  const uint32_t node = plan_.workers[worker].steps[step].node;
  wait_until(worker, step, [&] { return is_halted() || are_predecessors_done(node); });
  return !is_halted();
}

void WorkerTeam::await(size_t worker, uint32_t step, const WorkerWait& wait) {
  // Acquire: pairs with publish, the effects of the steps are seen.
  const std::atomic<uint32_t>& done = desks_[wait.worker].steps_done;
  if (done.load(std::memory_order_acquire) >= wait.steps) [[likely]]
    return;
  wait_until(worker, step, [&] {
    return done.load(std::memory_order_acquire) >= wait.steps ||
           control_.load(std::memory_order_relaxed) != 0;
  });
}

bool WorkerTeam::is_done(size_t node) const {
  const uint32_t worker = plan_.worker_of[node], step = plan_.step_of[node];
  // Acquire both: pair with publish and with the memory worker's flag.
  return desks_[worker].steps_done.load(std::memory_order_acquire) > step ||
         (worker == WorkerPlan::kMemory && done_[step].load(std::memory_order_acquire));
}

bool WorkerTeam::are_predecessors_done(size_t node) const {
  for (const int64_t before : plan_.predecessors.row(node))
    if (!is_done(static_cast<size_t>(before))) return false;
  return true;
}

// ---- waiting and waking -------------------------------------------------------------------------

template <typename Condition>
void WorkerTeam::wait_until(size_t worker, uint32_t step, Condition is_due) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (is_due()) return;
    cpu_relax();
  }
  publish(worker, step);  // steps that nobody awaited in particular
  Desk& desk = desks_[worker];
  const bool is_at_end = step == plan_.workers[worker].steps.size();
  desk.blocked_at.store(is_at_end ? kFinished : step + 1, std::memory_order_release);
  const int64_t hot_until_ns = now_ns() + hot_ns_;
  while (!is_due()) {
    if (is_cancelled()) fail(StatusCode::cancelled, "the run was cancelled");
    if (now_ns() < hot_until_ns) {
      sched_yield();
      continue;
    }
    // Sequential, here and in publish: either the publisher sees the sleeper, or the sleeper sees
    // what was published.
    desk.is_asleep.store(1, std::memory_order_relaxed);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (!is_due()) sleep(worker, kLookAroundNs);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (!is_at_end) desk.blocked_at.store(0, std::memory_order_release);
}

void WorkerTeam::sleep(size_t worker, int64_t timeout_ns) {
  Desk& desk = desks_[worker];
  sleep_on(desk.is_asleep, 1, timeout_ns);
  if (desk.is_asleep.exchange(0, std::memory_order_relaxed) == 0) return;
  look_around(worker);
  if (worker == WorkerPlan::kCaller && state_->is_interrupted()) abort();
}

void WorkerTeam::publish(size_t worker, uint32_t steps_done) {
  desks_[worker].steps_done.store(steps_done, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
    wake_sleepers();
}

void WorkerTeam::wake_sleepers() {
  for (Desk& desk : desks_)
    if (desk.is_asleep.exchange(0, std::memory_order_relaxed) == 1) wake_sleeper(desk.is_asleep);
}

void WorkerTeam::await_end() {
  const auto count = static_cast<uint32_t>(plan_.workers[WorkerPlan::kCaller].steps.size());
  // Acquire: pairs with the countdown in serve.
  const auto is_over = [&] { return working_.load(std::memory_order_acquire) == 0; };
  if (!is_over()) wait_until(WorkerPlan::kCaller, count, is_over);
}

// ---- ends before the end ------------------------------------------------------------------------

void WorkerTeam::abort() {
  relations_.abort(state_->failure());
  control_.fetch_or(kHalt, std::memory_order_seq_cst);  // as publish
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_sleepers();
}

void WorkerTeam::fail(StatusCode code, std::string message) {
  state_->fail(code, std::move(message));
  abort();
}

}  // namespace grainline
