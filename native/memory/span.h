// The span of SpanAllocator: a run of pages of one segment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace grainline {

// Invariants: next->base == base + pages * page size;  next->previous == this;
// the first span of a segment (previous == nullptr) is the same object for the segment's life.
struct Span {
  std::byte* base = nullptr;
  size_t pages = 0;
  Span* previous = nullptr;  // neighbours in address order, within the segment
  Span* next = nullptr;
  Span* newer = nullptr;  // neighbours in a layer list (idle) or in a list of partial slabs
  Span* older = nullptr;
  bool is_idle = false;
  bool was_split = false;   // the segment has been cut at least once
  size_t spared_pages = 0;  // asked of it while it was spared
  int slab_class = -1;      // >= 0: a slab
  uint64_t free_slots = 0;  // bit set: the slot is free

  bool is_whole_segment() const { return previous == nullptr && next == nullptr; }
};

// A doubly linked list through newer/older; head is the newest.
inline void link_newest(Span*& head, Span* span) {
  span->newer = nullptr;
  span->older = head;
  if (head) head->newer = span;
  head = span;
}

inline void unlink(Span*& head, Span* span) {
  if (span->newer) span->newer->older = span->older;
  if (span->older) span->older->newer = span->newer;
  if (head == span) head = span->older;
  span->newer = span->older = nullptr;
}

}  // namespace grainline
