#include "memory/caching_allocator.h"

#include <string>
#include <utility>

#include "memory/poison.h"

namespace grainline {
namespace {

Status no_memory(size_t size_bytes, const AllocatorStatistics& s) {
  return Status(StatusCode::out_of_memory, "no memory for " + std::to_string(size_bytes) +
                                               " bytes: " + std::to_string(s.held_bytes) +
                                               " bytes held, " + std::to_string(s.occupied_bytes) +
                                               " of them in use by " +
                                               std::to_string(s.live_blocks) + " memory blocks");
}

}  // namespace

CachingAllocator::CachingAllocator(MemorySource& source, StreamOrder& stream, Options options)
    : pages_(source, options.limit_bytes),
      stream_(stream),
      synchronize_timeout_ns_(options.synchronize_timeout_ns),
      may_poison_(options.poisons) {
  set_gate(nullptr);
}

void CachingAllocator::set_gate(RecycleGate* gate) noexcept {
  gate_ = gate;
  poisons_ = may_poison_ && gate == nullptr;
  pages_.set_forbids_idle(gate == nullptr && stream_.is_inline());
}

CachingAllocator::~CachingAllocator() { static_cast<void>(stream_.synchronize(kNoTimeout)); }

// The order is the contract: what was freed may belong to a launch that is still to be submitted
// (gate), then to submitted work (stream), and only then to nobody.
Status CachingAllocator::recycle(size_t kept_bytes, size_t* released_bytes) {
  ++waits_;
  *released_bytes = 0;
  if (gate_ != nullptr)
    if (Status status = gate_->wait(); !status.is_ok()) return status;
  if (Status status = stream_.synchronize(synchronize_timeout_ns_); !status.is_ok()) return status;
  *released_bytes = pages_.recycle(kept_bytes);
  return Status();
}

Status CachingAllocator::allocate_after_recycle(size_t size_bytes, MemoryBlock** block) {
  size_t released_bytes = 0;
  if (Status status = recycle(0, &released_bytes); !status.is_ok()) return status;
  *block = pages_.allocate(size_bytes);
  for (CachingAllocator* peer : peers_) {
    if (*block != nullptr) break;
    if (Status status = peer->recycle(0, &released_bytes); !status.is_ok()) return status;
    *block = pages_.allocate(size_bytes);
  }
  if (*block == nullptr) return no_memory(size_bytes, pages_.statistics());
  return poisons_ ? hand_out_poisoned(block) : Status();
}

Status CachingAllocator::hand_out_poisoned(MemoryBlock** block) {
  Status status = stream_.fill((*block)->data, kPoison, (*block)->capacity_bytes);
  if (!status.is_ok()) pages_.free(std::exchange(*block, nullptr));
  return status;
}

Status CachingAllocator::finalize() {
  size_t released_bytes = 0;
  if (Status status = recycle(0, &released_bytes); !status.is_ok()) return status;
  return pages_.finalize();
}

AllocatorStatistics CachingAllocator::statistics() const {
  AllocatorStatistics result = pages_.statistics();
  result.waits = waits_;
  return result;
}

}  // namespace grainline
