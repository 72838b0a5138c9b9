// When which thread of the pool worked on which dispatch; for traces.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace grainline {

// What one home did of one dispatch.
struct PoolSpan {
  int64_t begin_ns, end_ns;
  int32_t home;
  int64_t tasks;
};

// One per pool, never destroyed: a pool thread may write its span when the dispatch is over. Spans
// beyond the capacity are counted and dropped.
//
// Shared fields: everyone takes a number from count_ and writes that entry alone; end_ns is written
// last and says that the entry is whole.
class PoolLog {
 public:
  static constexpr size_t kCapacity = 1 << 14;

  // Begins anew. Dispatches that are under way may be missing.
  void start() noexcept;
  void stop() noexcept { is_on_.store(false, std::memory_order_relaxed); }
  // Relaxed: a late look costs or adds one span.
  bool is_on() const noexcept { return is_on_.load(std::memory_order_relaxed); }
  void add(const PoolSpan& span) noexcept;

  std::vector<PoolSpan> spans() const;
  size_t dropped() const noexcept;

 private:
  struct Entry {
    std::atomic<int64_t> begin_ns{0}, end_ns{0}, tasks{0};
    std::atomic<int32_t> home{0};
  };
  std::atomic<bool> is_on_{false};
  std::atomic<size_t> count_{0};
  std::array<Entry, kCapacity> entries_;
};

}  // namespace grainline
