#include "device/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

#include "memory/poison.h"

namespace grainline {
namespace {

size_t round_up(size_t size_bytes) {
  return (std::max(size_bytes, size_t{1}) + Arena::kPageBytes - 1) & ~(Arena::kPageBytes - 1);
}

Arena::Options rounded(Arena::Options options) {
  options.capacity_bytes = round_up(options.capacity_bytes);
  if (options.fragment_bytes != 0) options.fragment_bytes = round_up(options.fragment_bytes);
  return options;
}

}  // namespace

Arena::Arena(const Options& options, OnRelease on_release)
    : options_(rounded(options)), on_release_(std::move(on_release)) {
  const size_t capacity = options_.capacity_bytes;
  void* memory = mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // As weights of the host: with small pages the address translation alone slows a product down.
  madvise(memory, capacity, MADV_HUGEPAGE);
  base_ = static_cast<std::byte*>(memory);
  statistics_.capacity_bytes = capacity;
  const size_t fragment = options_.fragment_bytes == 0 ? capacity : options_.fragment_bytes;
  for (size_t offset = 0; offset < capacity; offset += fragment)
    free_[offset] = std::min(fragment, capacity - offset);
}

Arena::~Arena() { munmap(base_, options_.capacity_bytes); }

std::byte* Arena::acquire(size_t size_bytes) noexcept {
  if (size_bytes > options_.capacity_bytes) return nullptr;
  const size_t bytes = round_up(size_bytes);
  const std::lock_guard<std::mutex> held(lock_);
  const auto found = std::ranges::find_if(free_, [&](const auto& f) { return f.second >= bytes; });
  if (found == free_.end()) return nullptr;
  const auto [offset, free_bytes] = *found;
  free_.erase(found);
  if (free_bytes > bytes) free_[offset + bytes] = free_bytes - bytes;
  ++statistics_.acquires;
  statistics_.live_bytes += bytes;
  statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.live_bytes);
  return base_ + offset;
}

void Arena::release(std::byte* memory, size_t size_bytes) noexcept {
  const size_t bytes = round_up(size_bytes);
  if (on_release_) on_release_(memory, bytes);
  if (options_.poisons) std::memset(memory, static_cast<int>(kPoison), bytes);
  const std::lock_guard<std::mutex> held(lock_);
  auto here = free_.emplace(static_cast<size_t>(memory - base_), bytes).first;
  const auto next = std::next(here);
  if (next != free_.end() && here->first + here->second == next->first && may_join(next->first)) {
    here->second += next->second;
    free_.erase(next);
  }
  if (here != free_.begin()) {
    const auto previous = std::prev(here);
    if (previous->first + previous->second == here->first && may_join(here->first)) {
      previous->second += here->second;
      free_.erase(here);
    }
  }
  ++statistics_.releases;
  statistics_.live_bytes -= bytes;
}

bool Arena::may_join(size_t offset) const {
  return options_.fragment_bytes == 0 || offset % options_.fragment_bytes != 0;
}

void Arena::discard(std::byte* memory, size_t size_bytes) noexcept {
  if (options_.poisons) std::memset(memory, static_cast<int>(kPoison), size_bytes);
}

bool Arena::contains(const void* memory) const noexcept {
  const auto* byte = static_cast<const std::byte*>(memory);
  return byte >= base_ && byte < base_ + options_.capacity_bytes;
}

Arena::Statistics Arena::statistics() const {
  const std::lock_guard<std::mutex> held(lock_);
  Statistics result = statistics_;
  for (const auto& [offset, bytes] : free_)
    result.largest_free_bytes = std::max(result.largest_free_bytes, bytes);
  return result;
}

}  // namespace grainline
