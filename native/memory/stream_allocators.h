// The memory of one execution graph on several streams: one allocator face per stream, and blocks
// that know which streams still use them.
//
// A block is born on the stream whose allocator made it and goes home there. Freed on its last
// stream, it can go home only when the birth stream's next work comes after all work that used it:
// at once, or when an event tells the birth stream so. Until then any stream that does know may
// borrow it, which happens when its own allocator has nothing left.
//
// Knowledge is kept per stream, as positions in the other streams (StreamClocks), not per block: an
// event costs one number per stream however many blocks are in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/allocator.h"
#include "memory/object_pool.h"
#include "memory/recycle_gate.h"
#include "memory/stream_clocks.h"

namespace grainline {

// What one block is to several streams. Invariant: the sum of uses == MemoryBlock::uses.
struct StreamUses {
  int birth = 0;
  std::vector<uint32_t> uses;       // by stream
  std::vector<uint64_t> last_time;  // by stream: stamp of the last free there; 0: never used there
};

// One thread at a time. Once warm, nothing here asks for memory but what the lower allocators do.
class StreamAllocators {
 public:
  // What lies below one stream: its allocator, which gives the memory, and the stream. Both are
  // borrowed and serve no one else meanwhile.
  struct Lower {
    Allocator* allocator;
    StreamOrder* stream;
  };
  StreamAllocators(std::span<const Lower> lower, size_t events);
  ~StreamAllocators();
  StreamAllocators(const StreamAllocators&) = delete;
  StreamAllocators& operator=(const StreamAllocators&) = delete;

  int streams() const noexcept { return static_cast<int>(faces_.size()); }
  // Allocate, share and free as work of this stream does.
  Allocator& of(int stream) { return *faces_[static_cast<size_t>(stream)]; }

  // The stream starts to use a block that another stream hands it: one more use, freed with of().
  void access(int stream, MemoryBlock* block);
  // Beside Stream::record and Stream::wait with the event of this number.
  void send(int stream, size_t event);
  void wait(int stream, size_t event);
  // The last wait: all streams are waited for, then every freed block goes home.
  Status synchronize();

  // Freed blocks that are not home yet.
  size_t blocks_away() const noexcept { return away_.size(); }
  struct Statistics {
    uint64_t returned_at_once;  // home with the last free
    uint64_t returned_later;    // home after an event or a synchronise
    uint64_t borrowed;
  };
  Statistics statistics() const noexcept { return statistics_; }

 private:
  class Face;

  Status allocate(int stream, size_t size_bytes, MemoryBlock** block);
  void begin(int stream, MemoryBlock* block);
  void free(int stream, MemoryBlock* block);
  bool may_use(int stream, const MemoryBlock* block) const;
  void send_home(MemoryBlock* block);
  void send_home_all_known_to(int stream);
  MemoryBlock* borrow(int stream, size_t size_bytes);

  std::vector<Lower> lower_;
  std::vector<std::unique_ptr<Allocator>> faces_;
  StreamClocks clocks_;
  std::vector<StreamClocks::Snapshot> events_;
  ObjectPool<StreamUses> uses_pool_;
  std::vector<MemoryBlock*> away_;
  Statistics statistics_{};
};

}  // namespace grainline
