// The memory of the discrete device: one range with a capacity, from which pieces are taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "memory/memory_source.h"

namespace grainline {

// Thread-safe: the driver below all allocators of the device. First fit, neighbours merge.
class Arena final : public MemorySource {
 public:
  static constexpr size_t kPageBytes = 4 << 10;

  struct Options {
    size_t capacity_bytes = size_t{256} << 20;
    // Nonzero: the capacity consists of fragments of this size, and no piece crosses a border.
    size_t fragment_bytes = 0;
    bool poisons = true;  // what goes back is overwritten with kPoison
  };
  // on_release sees a piece before it goes back; may be null.
  using OnRelease = std::function<void(const std::byte*, size_t)>;

  explicit Arena(const Options& options, OnRelease on_release = nullptr);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* acquire(size_t size_bytes) noexcept override;
  void release(std::byte* memory, size_t size_bytes) noexcept override;
  void discard(std::byte* memory, size_t size_bytes) noexcept override;

  bool contains(const void* memory) const noexcept;
  struct Statistics {
    size_t capacity_bytes;
    size_t live_bytes;
    size_t peak_bytes;
    size_t largest_free_bytes;
    uint64_t acquires;  // that succeeded
    uint64_t releases;
  };
  Statistics statistics() const;

 private:
  bool may_join(size_t offset) const;

  const Options options_;
  const OnRelease on_release_;
  std::byte* base_ = nullptr;
  mutable std::mutex lock_;
  std::map<size_t, size_t> free_;  // offset -> bytes
  Statistics statistics_{};
};

}  // namespace grainline
