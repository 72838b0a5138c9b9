// The life of the pool threads: start, spin, sleep, fork. And what says how many there may be.
#include <pthread.h>

#include <algorithm>
#include <climits>
#include <cstdio>

#include "base/clock.h"
#include "base/relax.h"
#include "threads/parking.h"
#include "threads/pool.h"
#include "threads/start_thread.h"
#include "threads/topology.h"

namespace grainline {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr int kPausesPerLook = 32;  // between two looks at the clock and the active runs

// RunScopes that the calling thread holds: the ones that survive a fork.
thread_local int runs_of_this_thread = 0;

void name_this_thread([[maybe_unused]] int home) noexcept {
#if defined(__linux__)
  char name[16];
  std::snprintf(name, sizeof name, "grainline-%d", home);
  pthread_setname_np(pthread_self(), name);
#endif
}

}  // namespace

// Relaxed throughout: numbers that steer, and publish nothing.
int Pool::processors() noexcept {
  const int known = processors_.load(relaxed);
  if (known > 0) [[likely]]
    return known;
  const int found = allowed_processors();
  processors_.store(found, relaxed);
  return found;
}

int Pool::homes_allowed() noexcept {
  const int override_count = processors_override_.load(relaxed);
  const int real = processors();
  const int available = override_count > 0 ? override_count : real;
  const int limit = thread_limit_.load(relaxed);
  const int others = std::max(active_runs_.load(relaxed) - 1, 0);
  const int homes = std::min(available - others, limit > 0 ? limit : INT_MAX);
  return std::clamp(homes, 1, kMaxHomes);
}

bool Pool::pool_threads_hot() const noexcept {
  return started_.load(relaxed) > 0 && !slots_[1].sleeper.is_announced();
}

void Pool::set_thread_limit(int limit) noexcept {
  thread_limit_.store(std::max(limit, 0), relaxed);
}

void Pool::override_processors_for_test(int processors) noexcept {
  processors_override_.store(std::max(processors, 0), relaxed);
}

// A thread spins only where a processor is left over: one for each active run, one for each pool
// thread before it.
bool Pool::may_spin(int home) const noexcept {
  const int runs = active_runs_.load(relaxed);
  return keeps_threads_hot() && runs > 0 && runs + home <= processors_.load(relaxed);
}

bool Pool::has_processor_for_all() const noexcept {
  const int runs = std::max(active_runs_.load(relaxed), 1);
  return runs + started_.load(relaxed) <= processors_.load(relaxed);
}

// Under busy_. Returns how many homes there are threads for.
int Pool::start_threads(int homes) noexcept {
  int started = started_.load(relaxed);
  if (started + 1 >= homes) [[likely]]
    return homes;
  set_fork_hook();
  while (started + 1 < homes) {
    const intptr_t home = started + 1;
    if (!start_detached_thread(&Pool::thread_main, reinterpret_cast<void*>(home))) break;
    started_.store(++started, relaxed);
  }
  return std::min(homes, started + 1);
}

void* Pool::thread_main(void* home) {
  const auto index = static_cast<int>(reinterpret_cast<intptr_t>(home));
  name_this_thread(index);
  // Inherited from whoever started the thread; must not stay.
  const DefaultFloatScope float_scope;
  process().serve(index);
  return nullptr;
}

[[noreturn]] void Pool::serve(int home) noexcept {
  uint32_t seen = 0;
  slots_[home].thread.store(current_thread(), relaxed);
  keep_off_the_caller(home);
  int64_t hot_until_ns = now_ns() + kHotNs;
  for (;;) {
    seen = await_offer(home, seen, hot_until_ns);
    // Relaxed: it steers, and may be that of another dispatch already.
    const uint64_t cut = offers_[home].cut.load(relaxed);
    const auto homes = static_cast<int>(cut & UINT32_MAX);
    for (int child = 2 * home; child <= 2 * home + 1 && child < homes; ++child) wake(child);
    work_logged(home, seen, cut);
    hot_until_ns = now_ns() + kHotNs;
  }
}

// The epoch of an offer that is not `seen`. Acquire: the offers of those whom we wake for it come
// before it.
uint32_t Pool::await_offer(int home, uint32_t seen, int64_t hot_until_ns) noexcept {
  const std::atomic<uint64_t>& cursor = offers_[home].cursor;
  while (may_spin(home)) {
    for (int pause = 0; pause < kPausesPerLook; ++pause) {
      const uint64_t word = cursor.load(std::memory_order_acquire);
      if (word >> 32 != seen) return static_cast<uint32_t>(word >> 32);
      cpu_relax();
    }
    if (now_ns() > hot_until_ns) break;
  }
  return park(home, seen);
}

uint32_t Pool::park(int home, uint32_t seen) noexcept {
  Sleeper& sleeper = slots_[home].sleeper;
  for (;;) {
    // seq_cst both, against publish: "store the cursor, then wake".
    sleeper.announce(!keeps_threads_hot());
    const uint64_t word = offers_[home].cursor.load(std::memory_order_seq_cst);
    if (word >> 32 != seen) {
      sleeper.withdraw();
      return static_cast<uint32_t>(word >> 32);
    }
    sleeper.sleep();
  }
}

void Pool::wake(int home) noexcept {
  if (slots_[home].sleeper.is_announced()) keep_off_the_caller(home);
  slots_[home].sleeper.wake();
}

// Relaxed: hints, and what is written twice is written alike.
void Pool::keep_off_the_caller(int home) noexcept {
  Slot& slot = slots_[home];
  const int processor = caller_processor_.load(relaxed);
  const int before = slot.avoided.load(relaxed);
  if (processor != before && avoid_processor(slot.thread.load(relaxed), processor, before))
    slot.avoided.store(processor, relaxed);
}

// Once per process, before there is anything that a child must forget. Relaxed: a second caller
// that comes too early loses nothing but a hook for a fork at this very moment.
void Pool::set_fork_hook() noexcept {
  if (has_fork_hook_.load(relaxed) || has_fork_hook_.exchange(true, relaxed)) return;
  pthread_atfork(nullptr, nullptr, &Pool::after_fork_in_child);
}

// Only the forking thread lives on. Others may have held busy_ or a RunScope, or been in the middle
// of a dispatch: their marks are wiped, and what is left of their tasks, or a new pool thread would
// claim it.
void Pool::after_fork_in_child() {
  Pool& pool = process();
  pool.started_.store(0, relaxed);
  pool.processors_.store(0, relaxed);
  pool.active_runs_.store(runs_of_this_thread, relaxed);
  pool.caller_parked_.store(0, relaxed);
  for (Offer& offer : pool.offers_) offer.cursor.store(0, relaxed);
  for (Slot& slot : pool.slots_) {
    slot.sleeper.reset();
    slot.avoided.store(-1, relaxed);
  }
  pool.busy_.store(0, relaxed);
}

// Relaxed: a count that spinning threads look at now and then.
RunScope::RunScope() noexcept {
  Pool::process().set_fork_hook();
  ++runs_of_this_thread;
  Pool::process().active_runs_.fetch_add(1, relaxed);
}

RunScope::~RunScope() {
  --runs_of_this_thread;
  Pool::process().active_runs_.fetch_sub(1, relaxed);
}

}  // namespace grainline
