#include "device/disturbance.h"

#include <chrono>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/relax.h"

namespace grainline {
namespace {

constexpr int64_t kSleepFromNs = 100'000;  // a shorter sleep is mostly the wake-up

void pass(int64_t delay_ns) {
  const int64_t end_ns = now_ns() + delay_ns;
  if (delay_ns >= kSleepFromNs) std::this_thread::sleep_for(std::chrono::nanoseconds(delay_ns));
  while (now_ns() < end_ns) cpu_relax();
}

}  // namespace

void Disturbance::hold() {
  const std::lock_guard<std::mutex> held(lock_);
  is_held_ = true;
}

void Disturbance::resume() {
  const std::lock_guard<std::mutex> held(lock_);
  is_held_ = false;
  resumed_.notify_all();
}

void Disturbance::inject(Moment moment, int64_t successes, StatusCode code) {
  const std::lock_guard<std::mutex> held(lock_);
  faults_.push_back({moment, successes, code});
}

// Under lock_.
Status Disturbance::fault(Moment moment) {
  for (size_t i = 0; i < faults_.size(); ++i) {
    if (faults_[i].moment != moment || faults_[i].successes-- > 0) continue;
    const StatusCode code = faults_[i].code;
    faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(i));
    return Status(code, "a fault that was injected into the device");
  }
  return Status();
}

Status Disturbance::at_submission() {
  const std::lock_guard<std::mutex> held(lock_);
  return fault(Moment::submission);
}

Status Disturbance::at_completion() {
  if (const int64_t delay_ns = delay_ns_.load(std::memory_order_relaxed); delay_ns > 0)
    pass(delay_ns);
  std::unique_lock<std::mutex> held(lock_);
  resumed_.wait(held, [&] { return !is_held_; });
  return fault(Moment::completion);
}

}  // namespace grainline
