// The allocator of one stream: a page pool, and what happens when it has nothing left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/allocator.h"
#include "memory/recycle_gate.h"
#include "memory/span_allocator.h"

namespace grainline {

// A request that the pool can serve touches neither gate nor stream, and takes no lock. Otherwise,
// in this order: gate, synchronise, recycle, retry; then the same for each peer. A wait that fails
// ends the allocation with its status, and nothing after it happens.
class CachingAllocator final : public Allocator {
 public:
  struct Options {
    size_t limit_bytes = SIZE_MAX;  // the pool never holds more
    int64_t synchronize_timeout_ns = kNoTimeout;
    // The stream overwrites what is handed out with kPoison: a launch that is submitted later and
    // still needs what lay there computes nonsense, where it might go unnoticed otherwise. Not
    // while there is a gate: a Free may then run before the last launch that reads its memory is
    // submitted, and so would the overwriting.
    bool poisons = false;
  };

  // source and stream must outlive the allocator.
  CachingAllocator(MemorySource& source, StreamOrder& stream, Options options);
  CachingAllocator(MemorySource& source, StreamOrder& stream)
      : CachingAllocator(source, stream, Options{}) {}
  // Synchronises: no memory goes back under work that was submitted.
  ~CachingAllocator() override;

  // nullptr: no relations, nothing to wait for. Set by the Run that leases the allocator.
  void set_gate(RecycleGate* gate) noexcept;
  // Allocators of the same Run, whose idle memory this one may have returned to the source.
  void set_peers(std::vector<CachingAllocator*> peers) { peers_ = std::move(peers); }

  Status allocate(size_t size_bytes, MemoryBlock** block) override {
    *block = pages_.allocate(size_bytes);
    if (*block != nullptr && !poisons_) [[likely]]
      return Status();
    return *block != nullptr ? hand_out_poisoned(block) : allocate_after_recycle(size_bytes, block);
  }
  void free(MemoryBlock* block) override {
    if (--block->uses == 0) pages_.free(block);
  }

  Status recycle(size_t kept_bytes, size_t* released_bytes) override;
  bool owns(const MemoryBlock* block) const { return pages_.owns(block); }
  size_t held_bytes() const noexcept { return pages_.held_bytes(); }
  Status finalize() override;
  AllocatorStatistics statistics() const override;

 private:
  Status allocate_after_recycle(size_t size_bytes, MemoryBlock** block);
  Status hand_out_poisoned(MemoryBlock** block);

  SpanAllocator pages_;
  StreamOrder& stream_;
  RecycleGate* gate_ = nullptr;
  std::vector<CachingAllocator*> peers_;
  const int64_t synchronize_timeout_ns_;
  const bool may_poison_;
  bool poisons_ = false;  // may_poison_ and no gate
  uint64_t waits_ = 0;
};

}  // namespace grainline
