// The memory of one stream, block by block: what a kernel asks for and gives back.
//
// Host calls on the allocators of one Run come from one thread at a time (its memory worker, or the
// thread that calls run), so there are no locks. A block that was freed may be handed out again
// while submitted work still uses it: work of the same stream that is submitted later runs later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace grainline {

struct Span;
struct StreamUses;

// What allocate hands out. The owner may read all fields and write none.
// Invariants: data == nullptr  <=>  uses == 0  <=>  the wrapper lies in its pool.
struct MemoryBlock {
  std::byte* data = nullptr;
  size_t size_bytes = 0;      // as requested, may be 0
  size_t capacity_bytes = 0;  // >= size_bytes
  uint64_t version = 0;       // grows with every life of this wrapper: a stale pointer can be told
  Span* span = nullptr;
  uint32_t slot = 0;
  uint32_t uses = 0;              // allocate: 1; share: one more; free: one less
  StreamUses* streams = nullptr;  // several streams only: the same count stream by stream
};

struct AllocatorStatistics {
  size_t held_bytes = 0;      // taken from the source
  size_t occupied_bytes = 0;  // in spans in use (a slab counts as one page)
  size_t idle_bytes = 0;      // held - occupied
  size_t live_bytes = 0;      // as requested, of the blocks in use
  size_t live_blocks = 0;
  size_t peak_held_bytes = 0;
  size_t peak_occupied_bytes = 0;
  size_t peak_live_bytes = 0;  // no allocator could have held less than this
  uint64_t allocations = 0;
  uint64_t growths = 0;   // pieces taken from the source
  uint64_t recycles = 0;  // pieces given back to it
  uint64_t waits = 0;     // slow paths: gate and stream were waited for
};

class Allocator {
 public:
  virtual ~Allocator() = default;

  // *block gets a block with one use; its contents are undefined, and it is aligned to
  // kMemoryAlignment. out_of_memory: nothing is left even after a recycle. Any other failure is the
  // one of the gate or of the stream. *block is nullptr after a failure.
  virtual Status allocate(size_t size_bytes, MemoryBlock** block) = 0;
  // One more use of the same memory on the same stream.
  virtual void share(MemoryBlock* block) { ++block->uses; }
  // One use less; the memory goes back to the pool with the last.
  virtual void free(MemoryBlock* block) = 0;

  // Gate, stream, then idle memory back to the source, until no more than kept_bytes are held.
  // Fails, and recycles nothing, when a wait fails.
  virtual Status recycle(size_t kept_bytes, size_t* released_bytes) = 0;
  // The same for whoever can live without: the bytes, 0 after a failure.
  size_t trim(size_t kept_bytes = 0) {
    size_t released_bytes = 0;
    return recycle(kept_bytes, &released_bytes).is_ok() ? released_bytes : 0;
  }
  // Recycles. internal, with a list of what is still in use, unless everything went back.
  virtual Status finalize() = 0;
  virtual AllocatorStatistics statistics() const = 0;
};

}  // namespace grainline
