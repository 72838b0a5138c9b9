// The page pool of one Run: spans of pages cut from segments, merged again when freed.
//
// Page: 4 KiB. CPU activations are mostly a few KiB to a few MiB; 64 KiB pages would multiply the
// footprint (and the cache and TLB reach) of small models for nothing, and 4 KiB is what the system
// can take back. Requests up to 2 KiB take a slot of a one-page slab (64, 128 ... 2048 bytes).
//
// allocate: exact page count, newest first; else the smallest larger idle span, of which the *tail*
// is given out; else a new segment. A large segment that was never split is spared a little while,
// so that the tensor it was made for finds it again. Growth is by a quarter of what is held, within
// [64 KiB, 8 MiB], or by exactly the request: never to a power of two.
//
// Single owner, no locks: only the Run that leases it may call it (hand-over is the lease's work).
// Once warm, neither allocate nor free asks the system for anything.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "memory/allocator.h"
#include "memory/memory_source.h"
#include "memory/object_pool.h"

namespace grainline {

// Invariants, asserted by check_invariants():
//   the spans of a segment tile it without gap or overlap, and no two neighbours are both idle;
//   a span is in layer lists  <=>  it is idle;   held = occupied + idle  (bytes);
//   non_empty_ bit n  <=>  layers_[n] is not empty;  large_ is sorted by page count.
class SpanAllocator {
 public:
  static constexpr size_t kPageBytes = 4 << 10;
  static constexpr size_t kSmallBytes = 2 << 10;  // largest request that takes a slab slot
  static constexpr size_t kMinGrowthBytes = 64 << 10;
  static constexpr size_t kMaxGrowthBytes = 8 << 20;

  // limit_bytes: never held beyond that; asked for more, allocate says nullptr.
  explicit SpanAllocator(MemorySource& source, size_t limit_bytes = SIZE_MAX);
  // Gives everything back, blocks in use included; call finalize first to hear of them.
  ~SpanAllocator();
  SpanAllocator(const SpanAllocator&) = delete;
  SpanAllocator& operator=(const SpanAllocator&) = delete;

  // nullptr: the source has no more, or the limit is met. Idle memory is not given back here,
  // because submitted work may still use it: that is its owner's business (see CachingAllocator).
  MemoryBlock* allocate(size_t size_bytes);
  // Whether the block, in use or not, is one of this allocator's.
  bool owns(const MemoryBlock* block) const { return block_pool_.holds(block); }
  // Whatever its count of uses says.
  void free(MemoryBlock* block);

  // Returns whole idle segments to the source, newest first, and discards the pages of other idle
  // spans, until no more than kept_bytes are held. Returns the bytes of the former.
  size_t recycle(size_t kept_bytes = 0);

  // Recycles. Fails with a list of what is still in use; ok <=> everything went back to the source.
  Status finalize();

  // Whether what is freed is used by nobody any more; AddressSanitizer then watches it. Default:
  // so.
  void set_forbids_idle(bool forbids_idle) noexcept { forbids_idle_ = forbids_idle; }

  AllocatorStatistics statistics() const noexcept;
  size_t held_bytes() const noexcept { return statistics_.held_bytes; }
  void check_invariants() const;

 private:
  static constexpr size_t kExactLayers = 512;  // page counts 1 .. 511 have a list of their own
  static constexpr int kSlabClasses = 6;

  MemoryBlock* wrap(std::byte* data, size_t size_bytes, size_t capacity_bytes, Span* span,
                    uint32_t slot);
  MemoryBlock* allocate_small(size_t size_bytes);
  void free_slot(Span* slab, uint32_t slot);
  Span* new_slab(int slab_class);

  Span* take_pages(size_t pages);
  Span* find_idle(size_t pages) const;
  bool spare(Span* span, size_t pages);
  Span* give_tail(Span* span, size_t pages);
  Span* grow(size_t pages);
  std::byte* acquire(size_t* bytes, size_t request) noexcept;
  void free_span(Span* span);
  void absorb_next(Span* span);

  void push_idle(Span* span);
  void remove_idle(Span* span);
  void release_slab(Span* slab);
  void release_segment(size_t index);
  void discard_idle(Span* first);
  std::string leak_report() const;

  MemorySource& source_;
  const size_t limit_bytes_;
  bool forbids_idle_ = true;
  ObjectPool<MemoryBlock> block_pool_;
  ObjectPool<Span> span_pool_;
  std::array<Span*, kExactLayers> layers_{};  // the newest idle span of each page count
  std::array<uint64_t, kExactLayers / 64> non_empty_{};
  Span* large_ = nullptr;
  std::array<Span*, kSlabClasses> partial_{};     // slabs with at least one free slot
  std::array<Span*, kSlabClasses> spare_slab_{};  // one empty slab kept, also in partial_
  std::vector<Span*> segments_;                   // first span of each
  AllocatorStatistics statistics_;
};

}  // namespace grainline
