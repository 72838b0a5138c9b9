// Memory that somebody else's functions give: an allocator of the program that embeds us.
#pragma once

#include <cstddef>

#include "memory/memory_source.h"

namespace grainline {

// Borrowed: the functions and their context must outlive it, and must be as thread-safe as its use.
class ForeignMemory final : public MemorySource {
 public:
  struct Functions {
    void* context = nullptr;
    // kMemoryAlignment aligned, or nullptr when there is none.
    void* (*acquire)(void* context, size_t size_bytes) = nullptr;
    void (*release)(void* context, void* memory, size_t size_bytes) = nullptr;
  };
  explicit ForeignMemory(const Functions& functions) noexcept : functions_(functions) {}

  std::byte* acquire(size_t size_bytes) noexcept override {
    return static_cast<std::byte*>(functions_.acquire(functions_.context, size_bytes));
  }
  void release(std::byte* memory, size_t size_bytes) noexcept override {
    functions_.release(functions_.context, memory, size_bytes);
  }
  void discard(std::byte*, size_t) noexcept override {}  // not ours to give pages of back

 private:
  const Functions functions_;
};

}  // namespace grainline
