#include "memory/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace grainline {

constinit HostMemory process_host_memory;

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr size_t kHugePageBytes = 4 << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// What the system really hands out for a request; the same at acquire and release.
size_t granted_bytes(size_t size_bytes) {
  const bool is_mapped = size_bytes >= HostMemory::kMapBytes;
  return round_up(size_bytes == 0 ? 1 : size_bytes, is_mapped ? 4096 : kMemoryAlignment);
}

std::byte* map(size_t size_bytes) {
  void* memory =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
#ifdef MADV_HUGEPAGE
  // Page faults dominate the first use of a large tensor. A refusal costs nothing.
  if (size_bytes >= kHugePageBytes) madvise(memory, size_bytes, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(memory);
}

}  // namespace

HostMemory& HostMemory::process() noexcept { return process_host_memory; }

bool HostMemory::reserve(size_t size_bytes) noexcept {
  const size_t before = live_bytes_.fetch_add(size_bytes, relaxed);
  const size_t limit = limit_bytes_.load(relaxed);
  if (before > limit || size_bytes > limit - before) {
    live_bytes_.fetch_sub(size_bytes, relaxed);
    return false;
  }
  size_t peak = peak_bytes_.load(relaxed);
  while (peak < before + size_bytes &&
         !peak_bytes_.compare_exchange_weak(peak, before + size_bytes, relaxed)) {
  }
  return true;
}

std::byte* HostMemory::acquire(size_t size_bytes) noexcept {
  if (size_bytes > SIZE_MAX / 4) return nullptr;
  const size_t granted = granted_bytes(size_bytes);
  if (!reserve(granted)) return nullptr;
  system_calls_.fetch_add(1, relaxed);
  std::byte* memory = granted >= kMapBytes
                          ? map(granted)
                          : static_cast<std::byte*>(std::aligned_alloc(kMemoryAlignment, granted));
  if (memory == nullptr) live_bytes_.fetch_sub(granted, relaxed);
  return memory;
}

void HostMemory::release(std::byte* memory, size_t size_bytes) noexcept {
  if (memory == nullptr) return;
  const size_t granted = granted_bytes(size_bytes);
  system_calls_.fetch_add(1, relaxed);
  if (granted >= kMapBytes) {
    munmap(memory, granted);
  } else {
    std::free(memory);
  }
  live_bytes_.fetch_sub(granted, relaxed);
}

void HostMemory::discard(std::byte* memory, size_t size_bytes) noexcept {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (first + page - 1) / page * page;
  const uintptr_t end = (first + size_bytes) / page * page;
  if (begin >= end) return;
  system_calls_.fetch_add(1, relaxed);
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

HostMemory::Statistics HostMemory::statistics() const noexcept {
  return {live_bytes_.load(relaxed), peak_bytes_.load(relaxed), system_calls_.load(relaxed)};
}

}  // namespace grainline
