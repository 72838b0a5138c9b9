#include "memory/output_pool.h"

#include <bit>
#include <new>

#include "base/clock.h"
#include "base/relax.h"
#include "memory/host_memory.h"
#include "memory/poison.h"

namespace grainline {
namespace {

// No guarded static: see process_host_memory.
constinit OutputPool process_output_pool(process_host_memory);

constexpr size_t kHeaderBytes = kMemoryAlignment;
constexpr int kSmallestLog2 = 8;  // the smallest entry is 256 bytes
constexpr int kSweepsPerIdleTime = 4;
constexpr int kTakeAttempts = 64;

std::byte* data_of(void* entry) noexcept { return static_cast<std::byte*>(entry) + kHeaderBytes; }

}  // namespace

OutputPool& OutputPool::process() noexcept { return process_output_pool; }

// The smallest class whose bytes_of is at least entry_bytes.
int OutputPool::class_of(size_t entry_bytes) noexcept {
  if (entry_bytes <= size_t{1} << kSmallestLog2) return 0;
  const size_t last = entry_bytes - 1;
  const int log2 = std::bit_width(last) - 1;
  const int quarter = static_cast<int>(last >> (log2 - 2)) & (kClassesPerDoubling - 1);
  return (log2 - kSmallestLog2) * kClassesPerDoubling + quarter + 1;
}

size_t OutputPool::bytes_of(int size_class) noexcept {
  const int log2 = kSmallestLog2 + size_class / kClassesPerDoubling;
  const auto quarters = static_cast<size_t>(kClassesPerDoubling + size_class % kClassesPerDoubling);
  return quarters << (log2 - 2);
}

// Acquire: sees the list as the last holder left it.
bool OutputPool::try_take(SizeClass& size_class) noexcept {
  for (int attempt = 0; attempt < kTakeAttempts; ++attempt) {
    if (!size_class.taken.load(std::memory_order_relaxed) &&
        !size_class.taken.exchange(true, std::memory_order_acquire))
      return true;
    cpu_relax();
  }
  return false;
}

// Release: hands the list to the next holder.
void OutputPool::leave(SizeClass& size_class) noexcept {
  size_class.taken.store(false, std::memory_order_release);
}

std::byte* OutputPool::acquire(size_t size_bytes) noexcept {
  if (size_bytes > SIZE_MAX / 4) return nullptr;
  const int size_class = class_of(size_bytes + kHeaderBytes);
  if (size_class >= kClasses) return nullptr;
  sweep_if_due(coarse_now_ns());
  Entry* entry = pop(size_class);
  if (entry == nullptr) {
    const size_t bytes = bytes_of(size_class);
    std::byte* memory = source_.acquire(bytes);
    if (memory == nullptr && trim() > 0) memory = source_.acquire(bytes);
    if (memory == nullptr) return nullptr;
    entry = new (memory) Entry{bytes, 0, nullptr, size_class};
  }
  return data_of(entry);
}

void OutputPool::release(std::byte* data) noexcept {
  if (data == nullptr) return;
  auto* entry = reinterpret_cast<Entry*>(data - kHeaderBytes);
  const int64_t now_ns = coarse_now_ns();
  sweep_if_due(now_ns);
  if (!push(entry, now_ns))
    source_.release(reinterpret_cast<std::byte*>(entry), entry->capacity_bytes);
}

OutputPool::Entry* OutputPool::pop(int index) noexcept {
  SizeClass& size_class = classes_[index];
  if (!try_take(size_class)) return nullptr;
  Entry* entry = size_class.newest;
  if (entry != nullptr) size_class.newest = entry->older;
  leave(size_class);
  if (entry == nullptr) return nullptr;
  cached_bytes_.fetch_sub(entry->capacity_bytes, std::memory_order_relaxed);
  allow_access(data_of(entry), entry->capacity_bytes - kHeaderBytes);
  return entry;
}

bool OutputPool::push(Entry* entry, int64_t now_ns) noexcept {
  const size_t bytes = entry->capacity_bytes;
  if (bytes > bound_bytes_) return false;
  if (cached_bytes_.fetch_add(bytes, std::memory_order_relaxed) > bound_bytes_ - bytes ||
      !try_take(classes_[entry->size_class])) {
    cached_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  SizeClass& size_class = classes_[entry->size_class];
  forbid_access(data_of(entry), bytes - kHeaderBytes);
  entry->released_ns = now_ns;
  entry->older = size_class.newest;
  size_class.newest = entry;
  leave(size_class);
  return true;
}

void OutputPool::sweep_if_due(int64_t now_ns) noexcept {
  int64_t due_ns = next_sweep_ns_.load(std::memory_order_relaxed);
  if (now_ns < due_ns) [[likely]]
    return;
  // One thread wins; the others see the new due time.
  if (!next_sweep_ns_.compare_exchange_strong(due_ns, now_ns + max_idle_ns_ / kSweepsPerIdleTime,
                                              std::memory_order_relaxed))
    return;
  give_back_older_than(now_ns - max_idle_ns_);
}

size_t OutputPool::trim() noexcept { return give_back_older_than(INT64_MAX); }

size_t OutputPool::give_back_older_than(int64_t released_before_ns) noexcept {
  size_t bytes = 0;
  for (SizeClass& size_class : classes_) {
    if (!try_take(size_class)) continue;
    // Newest first, so the old ones are a tail.
    Entry** link = &size_class.newest;
    while (*link != nullptr && (*link)->released_ns >= released_before_ns) link = &(*link)->older;
    Entry* entry = *link;
    *link = nullptr;
    leave(size_class);
    while (entry != nullptr) {
      Entry* older = entry->older;
      bytes += entry->capacity_bytes;
      cached_bytes_.fetch_sub(entry->capacity_bytes, std::memory_order_relaxed);
      allow_access(data_of(entry), entry->capacity_bytes - kHeaderBytes);
      source_.release(reinterpret_cast<std::byte*>(entry), entry->capacity_bytes);
      entry = older;
    }
  }
  return bytes;
}

}  // namespace grainline
