// Blocks, slabs, and the life cycle. The spans themselves: span_pages.cpp.
#include "memory/span_allocator.h"

#include <algorithm>
#include <bit>
#include <cstdio>

#include "base/check.h"
#include "memory/poison.h"
#include "memory/span.h"

namespace grainline {
namespace {

constexpr size_t kPage = SpanAllocator::kPageBytes;
constexpr size_t kDiscardPages = 16;  // a smaller idle span is not worth a system call

size_t slot_bytes(int slab_class) { return kMemoryAlignment << slab_class; }

uint64_t all_slots(int slab_class) {
  const size_t count = kPage / slot_bytes(slab_class);
  return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

int slab_class_of(size_t size_bytes) {
  const size_t units = (std::max<size_t>(size_bytes, 1) + kMemoryAlignment - 1) / kMemoryAlignment;
  return std::bit_width(units - 1);
}

}  // namespace

SpanAllocator::SpanAllocator(MemorySource& source, size_t limit_bytes)
    : source_(source), limit_bytes_(limit_bytes) {}

SpanAllocator::~SpanAllocator() {
  for (Span* first : segments_) {
    size_t pages = 0;
    for (Span* span = first; span; span = span->next) pages += span->pages;
    allow_access(first->base, pages * kPage);
    source_.release(first->base, pages * kPage);
  }
}

MemoryBlock* SpanAllocator::wrap(std::byte* data, size_t size_bytes, size_t capacity_bytes,
                                 Span* span, uint32_t slot) {
  MemoryBlock* block = block_pool_.take();
  block->data = data;
  block->size_bytes = size_bytes;
  block->capacity_bytes = capacity_bytes;
  block->span = span;
  block->slot = slot;
  block->uses = 1;
  allow_access(data, capacity_bytes);
  ++statistics_.allocations;
  ++statistics_.live_blocks;
  statistics_.live_bytes += size_bytes;
  statistics_.peak_live_bytes = std::max(statistics_.peak_live_bytes, statistics_.live_bytes);
  return block;
}

MemoryBlock* SpanAllocator::allocate(size_t size_bytes) {
  if (size_bytes <= kSmallBytes) return allocate_small(size_bytes);
  if (size_bytes > SIZE_MAX / 4) return nullptr;
  Span* span = take_pages((size_bytes + kPage - 1) / kPage);
  if (span == nullptr) return nullptr;
  return wrap(span->base, size_bytes, span->pages * kPage, span, 0);
}

MemoryBlock* SpanAllocator::allocate_small(size_t size_bytes) {
  const int slab_class = slab_class_of(size_bytes);
  Span* slab = partial_[slab_class];
  if (slab == nullptr) slab = new_slab(slab_class);
  if (slab == nullptr) return nullptr;
  const auto slot = static_cast<uint32_t>(std::countr_zero(slab->free_slots));
  if (slab == spare_slab_[slab_class]) spare_slab_[slab_class] = nullptr;
  slab->free_slots &= slab->free_slots - 1;
  if (slab->free_slots == 0) unlink(partial_[slab_class], slab);
  const size_t capacity = slot_bytes(slab_class);
  return wrap(slab->base + slot * capacity, size_bytes, capacity, slab, slot);
}

Span* SpanAllocator::new_slab(int slab_class) {
  Span* slab = take_pages(1);
  if (slab == nullptr) return nullptr;
  slab->slab_class = slab_class;
  slab->free_slots = all_slots(slab_class);
  link_newest(partial_[slab_class], slab);
  return slab;
}

void SpanAllocator::free(MemoryBlock* block) {
  CHECK(block != nullptr && block->data != nullptr, "a memory block is freed once");
  Span* span = block->span;
  if (span->slab_class >= 0) {
    free_slot(span, block->slot);
  } else {
    free_span(span);
  }
  block->data = nullptr;
  block->span = nullptr;
  block->uses = 0;
  ++block->version;
  --statistics_.live_blocks;
  statistics_.live_bytes -= block->size_bytes;
  block_pool_.drop(block);
}

void SpanAllocator::free_slot(Span* slab, uint32_t slot) {
  const int slab_class = slab->slab_class;
  const size_t capacity = slot_bytes(slab_class);
  if (forbids_idle_) forbid_access(slab->base + slot * capacity, capacity);
  if (slab->free_slots == 0) link_newest(partial_[slab_class], slab);
  slab->free_slots |= uint64_t{1} << slot;
  if (slab->free_slots != all_slots(slab_class)) return;
  // One empty slab per class stays, or a lone small tensor would cut and merge a page each time.
  if (spare_slab_[slab_class] == nullptr) {
    spare_slab_[slab_class] = slab;
    return;
  }
  release_slab(slab);
}

void SpanAllocator::release_slab(Span* slab) {
  unlink(partial_[slab->slab_class], slab);
  slab->slab_class = -1;
  free_span(slab);
}

size_t SpanAllocator::recycle(size_t kept_bytes) {
  for (Span*& slab : spare_slab_) {
    if (slab) release_slab(slab);
    slab = nullptr;
  }
  const size_t held_before = statistics_.held_bytes;
  // Backwards, because release_segment fills the gap with the last one.
  for (size_t i = segments_.size(); i-- > 0 && statistics_.held_bytes > kept_bytes;) {
    if (segments_[i]->is_idle && segments_[i]->is_whole_segment()) {
      release_segment(i);
    } else {
      discard_idle(segments_[i]);
    }
  }
  return held_before - statistics_.held_bytes;
}

void SpanAllocator::discard_idle(Span* first) {
  for (Span* span = first; span; span = span->next) {
    if (span->is_idle && span->pages >= kDiscardPages)
      source_.discard(span->base, span->pages * kPage);
  }
}

Status SpanAllocator::finalize() {
  recycle();
  if (statistics_.live_blocks != 0) return Status(StatusCode::internal, leak_report());
  CHECK(segments_.empty(), "without blocks in use every segment goes back");
  return Status();
}

std::string SpanAllocator::leak_report() const {
  constexpr int kMaxLines = 16;
  std::string report = std::to_string(statistics_.live_blocks) + " memory blocks still in use";
  int lines = 0;
  for (const Span* first : segments_) {
    for (const Span* span = first; span && lines < kMaxLines; span = span->next) {
      if (span->is_idle) continue;
      char line[96];
      if (span->slab_class >= 0) {
        const int used = std::popcount(all_slots(span->slab_class) & ~span->free_slots);
        std::snprintf(line, sizeof line, "; %d of %zu bytes in the slab at %p", used,
                      slot_bytes(span->slab_class), static_cast<const void*>(span->base));
      } else {
        std::snprintf(line, sizeof line, "; one of %zu bytes at %p", span->pages * kPage,
                      static_cast<const void*>(span->base));
      }
      report += line;
      ++lines;
    }
  }
  return report;
}

AllocatorStatistics SpanAllocator::statistics() const noexcept {
  AllocatorStatistics result = statistics_;
  result.idle_bytes = result.held_bytes - result.occupied_bytes;
  return result;
}

}  // namespace grainline
