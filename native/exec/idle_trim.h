// Gives back what a spike left behind, once nobody runs any more.
//
// A Run keeps its memory for the next one. A model that rests for kRestNs keeps at most kKeptBytes;
// one sleeping thread of the process sees to it. It starts with the first Run that holds more, so a
// process of small models never has it, and it sleeps without a deadline when there is nothing to
// give back.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace grainline {

class Executor;

// Shared fields: armed_ (runs set, the thread clears), executors_ and is_started_ (under lock_).
class IdleTrim {
 public:
  static constexpr int64_t kRestNs = 400'000'000;
  static constexpr int64_t kLookNs = 200'000'000;  // given back at most kRestNs + kLookNs later
  static constexpr size_t kKeptBytes = 8 << 20;

  // Never destroyed: executors may outlive every static.
  static IdleTrim& process();

  void add(Executor* executor);
  // Waits for a trim of this executor that is under way.
  void remove(Executor* executor);

  // At the end of a Run that holds more than kKeptBytes.
  void arm() noexcept {
    // Relaxed: a late look costs one kLookNs. seq_cst in wake_thread orders what matters.
    if (armed_.load(std::memory_order_relaxed) == 0) [[unlikely]]
      wake_thread();
  }

 private:
  static void* thread_main(void* self);
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  void wake_thread() noexcept;
  bool start_thread() noexcept;
  [[noreturn]] void serve() noexcept;
  bool trim_the_resting() noexcept;

  std::atomic<uint32_t> armed_{0};
  std::mutex lock_;
  std::vector<Executor*> executors_;
  bool is_started_ = false;
};

}  // namespace grainline
