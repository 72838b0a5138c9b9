// What a test may do to the discrete device: slow it down, hold it, let commands fail.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace grainline {

enum class Moment : int8_t { submission, completion };

// Thread-safe. Commands are launches, copies and fills, counted over all streams of the device.
class Disturbance {
 public:
  // Every command takes this much longer.
  void set_delay(int64_t delay_ns) noexcept {
    delay_ns_.store(delay_ns, std::memory_order_relaxed);
  }
  // While held, nothing completes; submitting goes on.
  void hold();
  void resume();
  // The command after `successes` more of them fails at that moment, once. code is not ok;
  // end_of_sequence ends a run without being an error.
  void inject(Moment moment, int64_t successes, StatusCode code);

  Status at_submission();
  // On the thread of a stream; waits as asked.
  Status at_completion();

 private:
  struct Fault {
    Moment moment;
    int64_t successes;
    StatusCode code;
  };
  Status fault(Moment moment);

  std::atomic<int64_t> delay_ns_{0};  // relaxed: steers, publishes nothing
  std::mutex lock_;
  std::condition_variable resumed_;
  bool is_held_ = false;
  std::vector<Fault> faults_;
};

}  // namespace grainline
