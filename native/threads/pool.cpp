// Dispatching: who may, how the job is published, claimed and settled. The life of the pool
// threads: pool_threads.cpp.
#include "threads/pool.h"

#include <sched.h>

#include <algorithm>

#include "base/clock.h"
#include "base/relax.h"
#include "threads/parking.h"
#include "threads/topology.h"

namespace grainline {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

constexpr int kTasksPerHome = 32;            // when the caller leaves the grain to the pool
constexpr int kWaitSpins = 1000;             // pauses before the waiting caller lets others run
constexpr int64_t kWaitYieldNs = 1'000'000;  // and how long it does so before it sleeps

constinit Pool process_pool;

uint64_t pack(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }
uint32_t high_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
uint32_t low_of(uint64_t word) { return static_cast<uint32_t>(word); }

int64_t ceil_div(int64_t value, int64_t unit) { return (value - 1) / unit + 1; }

// The first task of a home; it owns those up to the first of the next home.
int64_t first_task(int64_t tasks, int64_t homes, int64_t home) { return home * tasks / homes; }

}  // namespace

Pool& Pool::process() noexcept { return process_pool; }

int32_t Pool::dispatch_parallel(const Dispatch& d) noexcept {
  int homes = std::min(d.homes, homes_allowed());
  int64_t grain = d.grain > 0 ? d.grain : ceil_div(d.blocks, int64_t{kTasksPerHome} * homes);
  grain = std::max(grain, ceil_div(d.blocks, kMaxTasks));
  const int64_t tasks = ceil_div(d.blocks, grain);
  homes = static_cast<int>(std::min<int64_t>(homes, tasks));
  if (homes <= 1 || !try_lock()) return run_whole(d);
  homes = start_threads(homes);
  if (homes <= 1) {
    unlock();
    return run_whole(d);
  }
  const Job job{d.fn, d.args, d.blocks, grain, d.scratch, d.interrupt != nullptr ? &d : nullptr};
  const uint64_t cut = pack(static_cast<uint32_t>(tasks), static_cast<uint32_t>(homes));
  const uint32_t epoch = publish(job, d.scratch_stride, cut);
  const int64_t own = work_logged(0, epoch, cut);
  await_settled(epoch, homes, static_cast<uint32_t>(tasks - own));
  // Relaxed: whoever set it settled its task afterwards, and all tasks are settled.
  const int32_t fault = fault_.load(relaxed);
  unlock();
  return fault;
}

// Acquire: what the last holder wrote to the job is seen before we write it again.
bool Pool::try_lock() noexcept {
  return busy_.load(relaxed) == 0 && busy_.exchange(1, std::memory_order_acquire) == 0;
}

void Pool::unlock() noexcept { busy_.store(0, std::memory_order_release); }

// The caller's cursor comes first, so that whoever begins may steal from it, and home 1 last: what
// it wakes has its offer by then.
uint32_t Pool::publish(const Job& job, size_t scratch_stride, uint64_t cut) noexcept {
  // Else a home that did nothing since would seem to have done what it did 2^32 dispatches ago.
  // Relaxed: all tasks are settled, so nobody writes, and we alone read.
  if (++epoch_ == 0) [[unlikely]]
    for (Done& done : done_) done.word.store(0, relaxed);
  const uint32_t epoch = epoch_;
  const int64_t tasks = high_of(cut), homes = low_of(cut);
  // Relaxed: the stores of the cursors publish them. Nothing is written that is so already, or
  // everyone's copy of the line would be lost.
  if (const int here = current_processor(); caller_processor_.load(relaxed) != here)
    caller_processor_.store(here, relaxed);
  if (fault_.load(relaxed) != 0) fault_.store(0, relaxed);
  const auto cursor_of_filled = [&](int64_t home) -> std::atomic<uint64_t>& {
    Offer& offer = offers_[home];
    offer.job = job;
    offer.job.scratch += static_cast<size_t>(home) * scratch_stride;
    offer.cut.store(cut, relaxed);
    return offer.cursor;
  };
  const auto left = [epoch](int64_t count) { return pack(epoch, static_cast<uint32_t>(count)); };
  const int64_t callers = tasks / homes;
  // Release: a successful claim (acquire) sees the job and what was reset.
  cursor_of_filled(0).store(left(callers - (tasks > 0)), std::memory_order_release);
  int64_t end = tasks;
  for (int64_t home = homes - 1; home > 1; --home) {
    const int64_t begin = first_task(tasks, homes, home);
    cursor_of_filled(home).store(left(end - begin), std::memory_order_release);
    end = begin;
  }
  // seq_cst, against the parking thread's "announce, then read the cursor": one of us sees the
  // other. Others are woken by those that home 1 wakes; one that is missed costs its help alone.
  cursor_of_filled(1).store(left(end - callers), std::memory_order_seq_cst);
  wake(1);
  return epoch;
}

void Pool::warm(int homes) noexcept {
  homes = std::min(homes, homes_allowed());
  if (homes <= 1 || !keeps_threads_hot() || !try_lock()) return;
  homes = start_threads(homes);
  // A dispatch without tasks: everyone comes, finds nothing, and is hot.
  if (homes > 1) publish(Job{}, 0, pack(0, static_cast<uint32_t>(homes)));
  unlock();
}

// Own tasks in order, then one at a time from the right neighbours, in rounds. Pool threads settle
// as they go; the caller returns how many it did and settles nothing. To a pool thread that comes
// late `cut` may be that of another dispatch: then it claims nothing.
int64_t Pool::work(int home, uint32_t epoch, uint64_t cut) noexcept {
  const auto homes = static_cast<int>(low_of(cut));
  const bool has_caller_one = high_of(cut) < 2 * low_of(cut);
  uint32_t total = 0;
  uint32_t left = home == 0 ? high_of(cut) / low_of(cut) : claim(home, epoch);
  for (; left != 0; left = claim(home, epoch)) total += run_task(home, home, left, epoch);
  if (home != 0 && total != 0) settle(home, epoch, total);
  for (bool has_found = true; has_found;) {
    has_found = false;
    for (int step = 1; step < homes; ++step) {
      const int owner = (home + step) % homes;
      left = owner == 0 && has_caller_one ? 0 : claim(owner, epoch);
      if (left == 0) continue;
      has_found = true;
      total += run_task(home, owner, left, epoch);
      if (home != 0) settle(home, epoch, total);
    }
  }
  return total;
}

int64_t Pool::work_logged(int home, uint32_t epoch, uint64_t cut) noexcept {
  if (!log_.is_on()) [[likely]]
    return work(home, epoch, cut);
  const int64_t begin_ns = now_ns();
  const int64_t tasks = work(home, epoch, cut);
  if (tasks > 0) log_.add({begin_ns, now_ns(), home, tasks});
  return tasks;
}

// 0: nothing left, or the dispatch of that epoch is over. Else the count before this claim.
uint32_t Pool::claim(int owner, uint32_t epoch) noexcept {
  std::atomic<uint64_t>& word = offers_[owner].cursor;
  uint64_t seen = word.load(relaxed);
  while (high_of(seen) == epoch && low_of(seen) != 0) {
    // Acquire: the job's fields as published (the store and all claims are one release sequence).
    if (word.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire, relaxed))
      return low_of(seen);
  }
  return 0;
}

// Everything that is left, to be skipped. Relaxed: nothing is read on the strength of it.
uint32_t Pool::claim_rest(int owner, uint32_t epoch) noexcept {
  std::atomic<uint64_t>& word = offers_[owner].cursor;
  uint64_t seen = word.load(relaxed);
  while (high_of(seen) == epoch && low_of(seen) != 0) {
    if (word.compare_exchange_weak(seen, pack(epoch, 0), relaxed, relaxed)) return low_of(seen);
  }
  return 0;
}

// Returns how many tasks are done with: this one, and after a fault the rest of its home.
uint32_t Pool::run_task(int home, int owner, uint32_t left, uint32_t epoch) noexcept {
  // Stable, both: we hold an unsettled claim.
  const Job& job = offers_[home].job;
  const uint64_t cut = offers_[home].cut.load(relaxed);
  if (fault_.load(relaxed) != 0) return 1 + claim_rest(owner, epoch);
  const int64_t begin = (first_task(high_of(cut), low_of(cut), owner + 1) - left) * job.grain;
  const int64_t end = begin + std::min(job.grain, job.blocks - begin);
  const int32_t result = job.in_pieces == nullptr
                             ? job.fn(job.args, begin, end, job.scratch)
                             : run_pieces(*job.in_pieces, begin, end, job.scratch, home == 0);
  if (result == 0) [[likely]]
    return 1;
  int32_t none = 0;
  // Relaxed: settling publishes it to the caller; to others it is only a hint to skip.
  fault_.compare_exchange_strong(none, result, relaxed, relaxed);
  return 1 + claim_rest(owner, epoch);
}

// The blocks [begin, end) with a look behind each piece: the caller asks whether to go on, and the
// others see in fault_ what it found, or that a kernel failed.
int32_t Pool::run_pieces(const Dispatch& d, int64_t begin, int64_t end, void* scratch,
                         bool is_caller) noexcept {
  while (begin < end) {
    const int64_t piece_end = begin + std::min(std::max<int64_t>(d.look_every, 1), end - begin);
    if (const int32_t result = d.fn(d.args, begin, piece_end, scratch); result != 0) return result;
    begin = piece_end;
    const bool is_over =
        is_caller ? d.interrupt->is_due(d.interrupt->context) : fault_.load(relaxed) != 0;
    if (is_over) return static_cast<int32_t>(KernelFault::interrupted);
  }
  return 0;
}

// `count`: all that this home has done of the dispatch.
void Pool::settle(int home, uint32_t epoch, uint32_t count) noexcept {
  // Release part: the kernel's results. seq_cst, against the caller's "set parked, then read what
  // is done". After this line the offer may be another dispatch's, and the flag below too: then the
  // wake-up is needless and harmless.
  done_[home].word.store(pack(epoch, count), std::memory_order_seq_cst);
  if (caller_parked_.load(std::memory_order_seq_cst) != 0 && caller_parked_.exchange(0) != 0)
    wake_sleeper(caller_parked_);
}

// Have the pool threads done `count` tasks? seq_cst, see settle; its acquire part: their results.
bool Pool::have_settled(uint32_t epoch, int homes, uint32_t count) const noexcept {
  uint32_t settled = 0;
  for (int home = 1; home < homes; ++home) {
    const uint64_t word = done_[home].word.load(std::memory_order_seq_cst);
    if (high_of(word) == epoch) settled += low_of(word);
  }
  return settled == count;
}

void Pool::await_settled(uint32_t epoch, int homes, uint32_t count) noexcept {
  if (count == 0) return;
  for (int spin = 0; spin < kWaitSpins && has_processor_for_all(); ++spin) {
    if (have_settled(epoch, homes, count)) return;
    cpu_relax();
  }
  const int64_t give_up_ns = now_ns() + kWaitYieldNs;
  while (!have_settled(epoch, homes, count)) {
    if (now_ns() < give_up_ns) {
      sched_yield();
      continue;
    }
    caller_parked_.store(1, std::memory_order_seq_cst);
    if (!have_settled(epoch, homes, count)) sleep_on(caller_parked_, 1);
    caller_parked_.store(0, relaxed);
  }
}

}  // namespace grainline
