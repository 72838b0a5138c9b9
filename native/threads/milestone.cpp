#include "threads/milestone.h"

#include "base/clock.h"
#include "base/relax.h"
#include "threads/parking.h"

namespace grainline {
namespace {

constexpr int kSpins = 256;  // about as long as a wake-up takes

}  // namespace

// seq_cst here and in announce and await: "store the count, then look who sleeps" against "say what
// is slept for, then look at the count". One of the two sees the other.
void Milestone::advance_to(uint32_t count) noexcept {
  count_.store(count, std::memory_order_seq_cst);
  if (nearest_.load(std::memory_order_seq_cst) != kNobody) wake_reached(count);
}

// Everybody wakes, and who has to sleep on announces anew. Whoever announced before the exchange
// sleeps on an older number of wakes_ than the one that follows it, and so does not sleep.
void Milestone::wake_reached(uint32_t count) noexcept {
  uint64_t nearest = nearest_.load(std::memory_order_seq_cst);
  do {
    if (nearest == kNobody || !is_behind(static_cast<uint32_t>(nearest), count)) return;
  } while (!nearest_.compare_exchange_weak(nearest, kNobody, std::memory_order_seq_cst));
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  wake_all_sleepers(wakes_);
}

void Milestone::announce(uint32_t count) noexcept {
  uint64_t nearest = nearest_.load(std::memory_order_seq_cst);
  while (nearest == kNobody || !is_behind(static_cast<uint32_t>(nearest), count))
    if (nearest_.compare_exchange_weak(nearest, count, std::memory_order_seq_cst)) return;
}

bool Milestone::await(uint32_t count, int64_t timeout_ns) noexcept {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (has_reached(count)) return true;
    cpu_relax();
  }
  const int64_t end_ns = timeout_ns < 0 ? 0 : now_ns() + timeout_ns;
  for (;;) {
    const uint32_t wakes = wakes_.load(std::memory_order_seq_cst);  // before announcing
    announce(count);
    if (is_behind(count, count_.load(std::memory_order_seq_cst))) return true;
    const int64_t left_ns = timeout_ns < 0 ? -1 : end_ns - now_ns();
    if (timeout_ns >= 0 && left_ns <= 0) return false;
    sleep_on(wakes_, wakes, left_ns);
  }
}

}  // namespace grainline
