// The page side of SpanAllocator: layers, splitting, merging, segments.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "memory/poison.h"
#include "memory/span.h"
#include "memory/span_allocator.h"

namespace grainline {
namespace {

constexpr size_t kPage = SpanAllocator::kPageBytes;
constexpr size_t kSpareMinPages = (1 << 20) / kPage;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Span* SpanAllocator::take_pages(size_t pages) {
  Span* span = find_idle(pages);
  if (span != nullptr && spare(span, pages)) {
    Span* fresh = grow(pages);
    if (fresh != nullptr) span = fresh;
  }
  if (span == nullptr) span = grow(pages);
  if (span == nullptr) return nullptr;
  remove_idle(span);
  if (span->pages > pages) span = give_tail(span, pages);
  statistics_.occupied_bytes += pages * kPage;
  statistics_.peak_occupied_bytes =
      std::max(statistics_.peak_occupied_bytes, statistics_.occupied_bytes);
  return span;
}

// The newest of the exact layer, else of the smallest larger one.
Span* SpanAllocator::find_idle(size_t pages) const {
  for (size_t word = pages / 64; word < non_empty_.size(); ++word) {
    uint64_t bits = non_empty_[word];
    if (word == pages / 64) bits &= ~uint64_t{0} << (pages % 64);
    if (bits != 0) return layers_[word * 64 + static_cast<size_t>(std::countr_zero(bits))];
  }
  Span* span = large_;
  while (span != nullptr && span->pages < pages) span = span->older;
  return span;
}

// Delayed split: a segment made for one large tensor waits for its like until what was asked of it
// meanwhile exceeds one per cent of it.
bool SpanAllocator::spare(Span* span, size_t pages) {
  if (span->was_split || span->pages < kSpareMinPages || pages > span->pages / 2) return false;
  if (!span->is_whole_segment()) return false;
  span->spared_pages += pages;
  return span->spared_pages * 100 <= span->pages;
}

// span is in no list. The head goes back to a layer, the tail is returned.
Span* SpanAllocator::give_tail(Span* span, size_t pages) {
  Span* tail = span_pool_.take();
  *tail = Span{};
  span->was_split = true;
  span->pages -= pages;
  tail->base = span->base + span->pages * kPage;
  tail->pages = pages;
  tail->was_split = true;
  tail->previous = span;
  tail->next = span->next;
  if (tail->next) tail->next->previous = tail;
  span->next = tail;
  push_idle(span);
  return tail;
}

// *bytes if they are to be had within the limit, else what was asked for.
std::byte* SpanAllocator::acquire(size_t* bytes, size_t request) noexcept {
  const size_t left = limit_bytes_ - std::min(limit_bytes_, statistics_.held_bytes);
  if (request > left) return nullptr;
  if (*bytes > left) *bytes = request;
  std::byte* memory = source_.acquire(*bytes);
  if (memory == nullptr && *bytes > request) memory = source_.acquire(*bytes = request);
  return memory;
}

// A new segment as one idle span, in its layer.
Span* SpanAllocator::grow(size_t pages) {
  const size_t request = pages * kPage;
  size_t bytes =
      std::clamp(round_up(statistics_.held_bytes / 4, kPage), kMinGrowthBytes, kMaxGrowthBytes);
  bytes = std::max(bytes, request);
  std::byte* memory = acquire(&bytes, request);
  if (memory == nullptr) return nullptr;
  if (forbids_idle_) forbid_access(memory, bytes);
  Span* span = span_pool_.take();
  *span = Span{};
  span->base = memory;
  span->pages = bytes / kPage;
  segments_.push_back(span);
  push_idle(span);
  ++statistics_.growths;
  statistics_.held_bytes += bytes;
  statistics_.peak_held_bytes = std::max(statistics_.peak_held_bytes, statistics_.held_bytes);
  return span;
}

void SpanAllocator::free_span(Span* span) {
  CHECK(!span->is_idle, "a span is freed once");
  if (forbids_idle_) forbid_access(span->base, span->pages * kPage);
  statistics_.occupied_bytes -= span->pages * kPage;
  if (span->next && span->next->is_idle) absorb_next(span);
  if (span->previous && span->previous->is_idle) {
    span = span->previous;
    remove_idle(span);
    absorb_next(span);
  }
  push_idle(span);
}

// span is in no list; its next may be in one.
void SpanAllocator::absorb_next(Span* span) {
  Span* next = span->next;
  if (next->is_idle) remove_idle(next);
  span->pages += next->pages;
  span->next = next->next;
  if (span->next) span->next->previous = span;
  span_pool_.drop(next);
}

void SpanAllocator::push_idle(Span* span) {
  span->is_idle = true;
  if (span->pages < kExactLayers) {
    link_newest(layers_[span->pages], span);
    non_empty_[span->pages / 64] |= uint64_t{1} << (span->pages % 64);
    return;
  }
  Span* smaller = nullptr;
  Span* position = large_;
  while (position != nullptr && position->pages < span->pages) {
    smaller = position;
    position = position->older;
  }
  span->newer = smaller;
  span->older = position;
  if (position) position->newer = span;
  (smaller ? smaller->older : large_) = span;
}

void SpanAllocator::remove_idle(Span* span) {
  span->is_idle = false;
  if (span->pages >= kExactLayers) {
    unlink(large_, span);
    return;
  }
  unlink(layers_[span->pages], span);
  if (layers_[span->pages] == nullptr)
    non_empty_[span->pages / 64] &= ~(uint64_t{1} << (span->pages % 64));
}

void SpanAllocator::release_segment(size_t index) {
  Span* whole = segments_[index];
  const size_t bytes = whole->pages * kPage;
  remove_idle(whole);
  allow_access(whole->base, bytes);
  source_.release(whole->base, bytes);
  span_pool_.drop(whole);
  segments_[index] = segments_.back();
  segments_.pop_back();
  ++statistics_.recycles;
  statistics_.held_bytes -= bytes;
}

void SpanAllocator::check_invariants() const {
  size_t held = 0, occupied = 0, idle_spans = 0, listed = 0;
  for (const Span* first : segments_) {
    CHECK(first->previous == nullptr, "a segment starts with its first span");
    for (const Span* span = first; span; span = span->next) {
      held += span->pages * kPage;
      if (span->is_idle) ++idle_spans;
      if (!span->is_idle) occupied += span->pages * kPage;
      if (span->next == nullptr) continue;
      CHECK(span->next->previous == span, "neighbours know each other");
      CHECK(span->next->base == span->base + span->pages * kPage, "spans tile their segment");
      CHECK(!(span->is_idle && span->next->is_idle), "idle neighbours are merged");
    }
  }
  for (size_t pages = 0; pages < kExactLayers; ++pages) {
    const bool bit = (non_empty_[pages / 64] >> (pages % 64)) & 1;
    CHECK(bit == (layers_[pages] != nullptr), "a layer's bit says whether it is empty");
    for (const Span* span = layers_[pages]; span; span = span->older, ++listed)
      CHECK(span->is_idle && span->pages == pages, "a layer holds idle spans of its size");
  }
  for (const Span* span = large_; span; span = span->older, ++listed)
    CHECK(span->older == nullptr || span->pages <= span->older->pages, "large_ is sorted");
  CHECK(listed == idle_spans, "a span is listed if and only if it is idle");
  CHECK(held == statistics_.held_bytes, "held is the sum of the segments");
  CHECK(occupied == statistics_.occupied_bytes, "occupied is the sum of the spans in use");
}

}  // namespace grainline
