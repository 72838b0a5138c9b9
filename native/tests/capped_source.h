// Host memory up to a capacity; what comes back is poisoned where tests look.
#pragma once

#include <cstddef>
#include <cstring>

#include "memory/host_memory.h"

namespace grainline::test {

class CappedSource final : public MemorySource {
 public:
  static constexpr size_t kPoisonStride = 1 << 20;  // 8 bytes at the start of each are poisoned

  explicit CappedSource(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}
  std::byte* acquire(size_t size_bytes) noexcept override {
    if (held_bytes_ + size_bytes > capacity_bytes_) return nullptr;
    held_bytes_ += size_bytes;
    peak_bytes_ = held_bytes_ > peak_bytes_ ? held_bytes_ : peak_bytes_;
    return HostMemory::process().acquire(size_bytes);
  }
  void release(std::byte* memory, size_t size_bytes) noexcept override {
    for (size_t at = 0; at < size_bytes; at += kPoisonStride) std::memset(memory + at, 0xDB, 8);
    held_bytes_ -= size_bytes;
    HostMemory::process().release(memory, size_bytes);
  }
  void discard(std::byte*, size_t) noexcept override {}
  size_t held_bytes() const { return held_bytes_; }
  size_t peak_bytes() const { return peak_bytes_; }

 private:
  const size_t capacity_bytes_;
  size_t held_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace grainline::test
