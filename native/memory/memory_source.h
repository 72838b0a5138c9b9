// Where an allocator gets large pieces of memory from: the system here, an arena for a device.
#pragma once

#include <cstddef>

namespace grainline {

// Nobody owns a source through this interface, so its destructor is not public.
class MemorySource {
 public:
  // At least kMemoryAlignment aligned; contents undefined. nullptr: no memory, or above the limit.
  virtual std::byte* acquire(size_t size_bytes) noexcept = 0;
  // With the size that was acquired.
  virtual void release(std::byte* memory, size_t size_bytes) noexcept = 0;
  // Contents of this part of an acquired piece are no longer needed; the address stays valid.
  virtual void discard(std::byte* memory, size_t size_bytes) noexcept = 0;

 protected:
  ~MemorySource() = default;
};

// A cache line, and the widest vector.
inline constexpr size_t kMemoryAlignment = 64;

}  // namespace grainline
