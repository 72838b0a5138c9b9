#include "threads/milestone.h"

#include "base/clock.h"
#include "base/relax.h"
#include "threads/parking.h"

namespace grainline {
namespace {

constexpr int kSpins = 256;  // about as long as a wake-up takes

}  // namespace

// seq_cst here and in await: "store the count, then look for waiters" against "become a waiter,
// then look at the count". One of the two sees the other.
void Milestone::advance_to(uint32_t count) noexcept {
  count_.store(count, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0) wake_all_sleepers(count_);
}

bool Milestone::await(uint32_t count, int64_t timeout_ns) noexcept {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (has_reached(count)) return true;
    cpu_relax();
  }
  const int64_t end_ns = timeout_ns < 0 ? 0 : now_ns() + timeout_ns;
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  bool is_reached = false;
  for (;;) {
    const uint32_t now = count_.load(std::memory_order_seq_cst);
    is_reached = static_cast<int32_t>(now - count) >= 0;
    const int64_t left_ns = timeout_ns < 0 ? -1 : end_ns - now_ns();
    if (is_reached || (timeout_ns >= 0 && left_ns <= 0)) break;
    sleep_on(count_, now, left_ns);
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);  // a waiter too many costs one system call
  return is_reached;
}

}  // namespace grainline
