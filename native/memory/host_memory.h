// System memory: 64-byte aligned, counted, with a limit that tests can set.
// Pieces of at least kMapBytes are mapped, so that a release really returns them to the system.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory/memory_source.h"

namespace grainline {

// Thread-safe. The counters are statistics: relaxed order suffices, nothing is published through
// them. live_bytes_ also guards the limit, by one atomic addition that is undone when it exceeds.
class HostMemory final : public MemorySource {
 public:
  static constexpr size_t kMapBytes = 64 << 10;

  constexpr HostMemory() noexcept = default;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // The process-wide instance; it is never destroyed.
  static HostMemory& process() noexcept;

  std::byte* acquire(size_t size_bytes) noexcept override;
  void release(std::byte* memory, size_t size_bytes) noexcept override;
  void discard(std::byte* memory, size_t size_bytes) noexcept override;

  // acquire fails rather than let live_bytes exceed this. Default: no limit.
  void set_limit(size_t limit_bytes) noexcept { limit_bytes_.store(limit_bytes); }

  struct Statistics {
    size_t live_bytes;
    size_t peak_bytes;
    uint64_t system_calls;  // acquire + release + discard that reached the system
  };
  Statistics statistics() const noexcept;

 private:
  bool reserve(size_t size_bytes) noexcept;

  std::atomic<size_t> live_bytes_{0};
  std::atomic<size_t> peak_bytes_{0};
  std::atomic<size_t> limit_bytes_{SIZE_MAX};
  std::atomic<uint64_t> system_calls_{0};
};

// What process() returns; no guarded static, because a child of a fork may meet the guard half way
// and would wait for a thread that it does not have.
extern constinit HostMemory process_host_memory;

}  // namespace grainline
