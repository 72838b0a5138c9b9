#include "threads/forks.h"

#include <pthread.h>

#include <atomic>

namespace grainline {
namespace {

// Relaxed: a fork is ordered with everything that its own thread did.
constexpr auto relaxed = std::memory_order_relaxed;
constinit std::atomic<uint32_t> count{0};
constinit std::atomic<bool> has_hook{false};

}  // namespace

uint32_t forks() noexcept {
  if (!has_hook.load(relaxed) && !has_hook.exchange(true, relaxed))
    pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, relaxed); });
  return count.load(relaxed);
}

}  // namespace grainline
