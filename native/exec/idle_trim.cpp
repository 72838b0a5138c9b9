#include "exec/idle_trim.h"

#include <algorithm>

#include "base/clock.h"
#include "exec/executor.h"
#include "memory/output_pool.h"
#include "threads/parking.h"
#include "threads/start_thread.h"

namespace grainline {
namespace {

void pause_for(int64_t duration_ns) noexcept {
  timespec left{duration_ns / 1'000'000'000, duration_ns % 1'000'000'000};
  while (nanosleep(&left, &left) != 0) {
  }
}

}  // namespace

IdleTrim& IdleTrim::process() {
  static IdleTrim* const instance = [] {
    pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
    return new IdleTrim;
  }();
  return *instance;
}

void IdleTrim::add(Executor* executor) {
  const std::scoped_lock held(lock_);
  executors_.push_back(executor);
}

void IdleTrim::remove(Executor* executor) {
  const std::scoped_lock held(lock_);
  std::erase(executors_, executor);
}

// The exchange makes one of several callers pay for the system call.
void IdleTrim::wake_thread() noexcept {
  if (armed_.exchange(1, std::memory_order_seq_cst) != 0) return;
  const std::unique_lock held(lock_, std::try_to_lock);
  // Taken: the thread itself is at it, or another model comes or goes. The next Run arms again.
  if (!held.owns_lock() || !(is_started_ || start_thread())) {
    armed_.store(0, std::memory_order_seq_cst);
    return;
  }
  wake_sleeper(armed_);
}

// Without a thread memory comes back by trim() only.
bool IdleTrim::start_thread() noexcept {
  is_started_ = start_detached_thread(&IdleTrim::thread_main, this);
  return is_started_;
}

void* IdleTrim::thread_main(void* self) { static_cast<IdleTrim*>(self)->serve(); }

void IdleTrim::serve() noexcept {
  for (;;) {
    while (armed_.load(std::memory_order_seq_cst) == 0) sleep_on(armed_, 0);
    bool is_anything_left = true;
    while (is_anything_left) {
      pause_for(kLookNs);
      // Cleared before the look: a Run that ends meanwhile arms again.
      armed_.store(0, std::memory_order_seq_cst);
      is_anything_left = trim_the_resting();
      if (is_anything_left) armed_.store(1, std::memory_order_seq_cst);
    }
  }
}

// Returns whether somebody who does not rest yet may have something to give back.
bool IdleTrim::trim_the_resting() noexcept {
  const int64_t rests_since_ns = coarse_now_ns() - kRestNs;
  const std::scoped_lock held(lock_);
  bool is_anyone_busy = false;
  for (Executor* executor : executors_) {
    if (executor->last_run_ns() > rests_since_ns) {
      is_anyone_busy = true;
    } else {
      executor->trim(kKeptBytes);
    }
  }
  OutputPool::process().give_back_older_than(rests_since_ns);
  return is_anyone_busy;
}

// The lock is held over a fork, so that the child finds it free and the list whole.
void IdleTrim::before_fork() { process().lock_.lock(); }

void IdleTrim::after_fork_in_parent() { process().lock_.unlock(); }

void IdleTrim::after_fork_in_child() {
  IdleTrim& self = process();
  self.is_started_ = false;
  self.armed_.store(0, std::memory_order_seq_cst);
  self.lock_.unlock();
}

}  // namespace grainline
