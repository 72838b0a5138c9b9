#include "memory/stream_allocators.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace grainline {

class StreamAllocators::Face final : public Allocator {
 public:
  Face(StreamAllocators& all, int stream) : all_(all), stream_(stream) {}

  Status allocate(size_t size_bytes, MemoryBlock** block) override {
    return all_.allocate(stream_, size_bytes, block);
  }
  void share(MemoryBlock* block) override { all_.begin(stream_, block); }
  void free(MemoryBlock* block) override { all_.free(stream_, block); }
  Status recycle(size_t kept_bytes, size_t* released_bytes) override {
    *released_bytes = 0;
    if (Status status = all_.synchronize(); !status.is_ok()) return status;
    return lower().recycle(kept_bytes, released_bytes);
  }
  Status finalize() override {
    if (Status status = all_.synchronize(); !status.is_ok()) return status;
    return lower().finalize();
  }
  AllocatorStatistics statistics() const override { return lower().statistics(); }

 private:
  Allocator& lower() const { return *all_.lower_[static_cast<size_t>(stream_)].allocator; }

  StreamAllocators& all_;
  const int stream_;
};

StreamAllocators::StreamAllocators(std::span<const Lower> lower, size_t events)
    : lower_(lower.begin(), lower.end()),
      clocks_(static_cast<int>(lower.size())),
      events_(events, StreamClocks::Snapshot(lower.size())) {
  for (int stream = 0; stream < clocks_.streams(); ++stream)
    faces_.push_back(std::make_unique<Face>(*this, stream));
}

StreamAllocators::~StreamAllocators() {
  CHECK(away_.empty(), "blocks that are away come home with synchronize before this goes");
}

Status StreamAllocators::allocate(int stream, size_t size_bytes, MemoryBlock** block) {
  Status status = lower_[static_cast<size_t>(stream)].allocator->allocate(size_bytes, block);
  if (status.code() == StatusCode::out_of_memory) {
    if ((*block = borrow(stream, size_bytes)) != nullptr) return Status();
    if (away_.empty()) return status;
    if (Status failure = synchronize(); !failure.is_ok()) return failure;
    status = lower_[static_cast<size_t>(stream)].allocator->allocate(size_bytes, block);
  }
  if (!status.is_ok()) return status;
  StreamUses* uses = uses_pool_.take();
  uses->birth = stream;
  uses->uses.assign(faces_.size(), 0);
  uses->last_time.assign(faces_.size(), 0);
  (*block)->streams = uses;
  (*block)->uses = 0;
  begin(stream, *block);
  return Status();
}

void StreamAllocators::begin(int stream, MemoryBlock* block) {
  ++block->uses;
  ++block->streams->uses[static_cast<size_t>(stream)];
}

void StreamAllocators::access(int stream, MemoryBlock* block) { begin(stream, block); }

void StreamAllocators::free(int stream, MemoryBlock* block) {
  StreamUses& uses = *block->streams;
  const auto index = static_cast<size_t>(stream);
  CHECK(uses.uses[index] > 0, "a stream frees what it uses");
  --block->uses;
  if (--uses.uses[index] > 0) return;
  uses.last_time[index] = clocks_.now(stream);
  if (block->uses > 0) return;
  if (may_use(uses.birth, block)) {
    ++statistics_.returned_at_once;
    send_home(block);
  } else {
    away_.push_back(block);
  }
}

// Whether all work that used the block comes before what the stream submits from now on.
bool StreamAllocators::may_use(int stream, const MemoryBlock* block) const {
  for (int other = 0; other < clocks_.streams(); ++other) {
    const uint64_t time = block->streams->last_time[static_cast<size_t>(other)];
    if (time != 0 && !clocks_.is_over(stream, other, time)) return false;
  }
  return true;
}

void StreamAllocators::send_home(MemoryBlock* block) {
  StreamUses* uses = block->streams;
  block->streams = nullptr;
  block->uses = 1;  // the one that the lower allocator gave
  lower_[static_cast<size_t>(uses->birth)].allocator->free(block);
  uses_pool_.drop(uses);
}

void StreamAllocators::send_home_all_known_to(int stream) {
  std::erase_if(away_, [&](MemoryBlock* block) {
    if (block->streams->birth != stream || !may_use(stream, block)) return false;
    ++statistics_.returned_later;
    send_home(block);
    return true;
  });
}

// The smallest that is large enough.
MemoryBlock* StreamAllocators::borrow(int stream, size_t size_bytes) {
  MemoryBlock* best = nullptr;
  for (MemoryBlock* block : away_) {
    const bool is_better = best == nullptr || block->capacity_bytes < best->capacity_bytes;
    if (block->capacity_bytes >= size_bytes && is_better && may_use(stream, block)) best = block;
  }
  if (best == nullptr) return nullptr;
  std::erase(away_, best);
  begin(stream, best);
  ++statistics_.borrowed;
  return best;
}

void StreamAllocators::send(int stream, size_t event) { clocks_.send(stream, &events_[event]); }

void StreamAllocators::wait(int stream, size_t event) {
  clocks_.receive(stream, events_[event]);
  send_home_all_known_to(stream);
}

Status StreamAllocators::synchronize() {
  for (int stream = 0; stream < streams(); ++stream) {
    const Lower& lower = lower_[static_cast<size_t>(stream)];
    if (Status status = lower.stream->synchronize(kNoTimeout); !status.is_ok()) return status;
    StreamClocks::Snapshot covered;
    clocks_.send(stream, &covered);
    clocks_.receive_everywhere(covered);
  }
  for (int stream = 0; stream < streams(); ++stream) send_home_all_known_to(stream);
  return Status();
}

}  // namespace grainline
