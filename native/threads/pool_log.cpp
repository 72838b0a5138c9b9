#include "threads/pool_log.h"

#include <algorithm>

namespace grainline {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

}  // namespace

void PoolLog::start() noexcept {
  for (Entry& entry : entries_) entry.end_ns.store(0, relaxed);
  count_.store(0, relaxed);
  is_on_.store(true, relaxed);
}

void PoolLog::add(const PoolSpan& span) noexcept {
  const size_t number = count_.fetch_add(1, relaxed);
  if (number >= kCapacity) return;
  Entry& entry = entries_[number];
  entry.begin_ns.store(span.begin_ns, relaxed);
  entry.home.store(span.home, relaxed);
  entry.tasks.store(span.tasks, relaxed);
  // Release: whoever reads the end reads the rest.
  entry.end_ns.store(span.end_ns, std::memory_order_release);
}

std::vector<PoolSpan> PoolLog::spans() const {
  std::vector<PoolSpan> whole;
  const size_t count = std::min(count_.load(relaxed), kCapacity);
  for (size_t number = 0; number < count; ++number) {
    const Entry& entry = entries_[number];
    const int64_t end_ns = entry.end_ns.load(std::memory_order_acquire);
    if (end_ns == 0) continue;
    whole.push_back({entry.begin_ns.load(relaxed), end_ns, entry.home.load(relaxed),
                     entry.tasks.load(relaxed)});
  }
  return whole;
}

size_t PoolLog::dropped() const noexcept {
  const size_t count = count_.load(relaxed);
  return count > kCapacity ? count - kCapacity : 0;
}

}  // namespace grainline
