// Buffers that become arrays in the user's hands: they come back from any thread at any time.
//
// A bounded cache in front of the system. Size classes are four to a doubling, so at most a fifth
// of a buffer is slack. A released buffer is kept if the cache stays within its bound, and given
// back once it lay unused for longer than max_idle_ns (noticed by the next call of any kind).
//
// Thread-safe without ever waiting: a size class that another thread is using at this moment is
// bypassed, the system serves instead. So a fork at a bad moment costs a class its cache in the
// child, and never hangs it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory/memory_source.h"

namespace grainline {

class OutputPool {
 public:
  static constexpr size_t kDefaultBoundBytes = 64 << 20;
  static constexpr int64_t kDefaultMaxIdleNs = 2'000'000'000;

  constexpr explicit OutputPool(MemorySource& source, size_t bound_bytes = kDefaultBoundBytes,
                                int64_t max_idle_ns = kDefaultMaxIdleNs)
      : source_(source), bound_bytes_(bound_bytes), max_idle_ns_(max_idle_ns) {}
  OutputPool(const OutputPool&) = delete;
  OutputPool& operator=(const OutputPool&) = delete;

  // The process-wide instance; it is never destroyed (arrays may outlive everything).
  static OutputPool& process() noexcept;

  // kMemoryAlignment aligned, contents undefined, size 0 allowed. nullptr: out of memory.
  std::byte* acquire(size_t size_bytes) noexcept;
  // nullptr is allowed.
  void release(std::byte* data) noexcept;
  // Gives back all that is cached. Returns its bytes.
  size_t trim() noexcept;
  // The same for what was released before a moment of the steady clock.
  size_t give_back_older_than(int64_t released_before_ns) noexcept;

  size_t cached_bytes() const noexcept { return cached_bytes_.load(std::memory_order_relaxed); }

 private:
  // In front of every buffer, one alignment unit long.
  struct Entry {
    size_t capacity_bytes;  // of the whole entry, this header included
    int64_t released_ns;
    Entry* older;
    int32_t size_class;
  };
  // newest is read and written only by the holder of taken.
  struct alignas(64) SizeClass {
    std::atomic<bool> taken{false};
    Entry* newest = nullptr;
  };
  static constexpr int kClassesPerDoubling = 4;
  static constexpr int kClasses = 40 * kClassesPerDoubling;

  static int class_of(size_t entry_bytes) noexcept;
  static size_t bytes_of(int size_class) noexcept;
  static bool try_take(SizeClass& size_class) noexcept;
  static void leave(SizeClass& size_class) noexcept;

  Entry* pop(int size_class) noexcept;
  bool push(Entry* entry, int64_t now_ns) noexcept;
  void sweep_if_due(int64_t now_ns) noexcept;

  MemorySource& source_;
  const size_t bound_bytes_;
  const int64_t max_idle_ns_;
  // Written by everyone. Relaxed: a bound and a due time, nothing is published through them.
  alignas(64) std::atomic<size_t> cached_bytes_{0};
  std::atomic<int64_t> next_sweep_ns_{0};
  SizeClass classes_[kClasses];
};

}  // namespace grainline
