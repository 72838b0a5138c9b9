#include "exec/run_streams.h"

#include <algorithm>

namespace grainline {

RunStreams::RunStreams(Device& device, Stream& first, CachingAllocator& first_allocator,
                       size_t streams, size_t events) {
  for (size_t event = 0; event < events; ++event) events_.push_back(std::make_unique<Event>());
  std::vector<CachingAllocator*> allocators{&first_allocator};
  streams_.push_back(&first);
  for (size_t side = 1; side < streams; ++side) {
    sides_.push_back(std::make_unique<Side>(device));
    streams_.push_back(sides_.back()->stream.get());
    allocators.push_back(&sides_.back()->allocator);
  }
  std::vector<StreamAllocators::Lower> lower;
  for (size_t number = 0; number < streams; ++number) {
    looked_at_.push_back(std::make_unique<Event>());
    lower.push_back({allocators[number], streams_[number]});
    std::vector<CachingAllocator*> peers = allocators;
    std::erase(peers, allocators[number]);
    allocators[number]->set_peers(std::move(peers));
  }
  memory_.emplace(lower, events);
}

RunStreams::~RunStreams() { static_cast<void>(synchronize(nullptr)); }

Status RunStreams::send(size_t stream, size_t event) {
  Status status = streams_[stream]->record(*events_[event]);
  if (status.is_ok()) memory_->send(static_cast<int>(stream), event);
  return status;
}

Status RunStreams::wait(size_t stream, size_t event) {
  Status status = streams_[stream]->wait(*events_[event]);
  if (status.is_ok()) memory_->wait(static_cast<int>(stream), event);
  return status;
}

Status RunStreams::synchronize(const Interrupt* asked) {
  Status first;
  for (Stream* stream : streams_)
    if (Status status = synchronize_asking(*stream, asked); first.is_ok())
      first = std::move(status);
  Status settled = memory_->synchronize();  // nothing is left to wait for
  return first.is_ok() ? std::move(settled) : std::move(first);
}

void RunStreams::await(const Interrupt* asked) {
  for (size_t number = 0; number < streams_.size(); ++number) {
    if (streams_[number]->is_inline()) continue;
    if (streams_[number]->record(*looked_at_[number]).is_ok())
      static_cast<void>(synchronize_asking(*looked_at_[number], asked));
  }
}

void RunStreams::log_commands(CommandLog* log) {
  for (size_t number = 0; number < streams_.size(); ++number)
    streams_[number]->log_commands(log, static_cast<int>(number));
}

size_t RunStreams::held_bytes() const {
  size_t bytes = 0;
  for (const auto& side : sides_) bytes += side->allocator.held_bytes();
  return bytes;
}

size_t RunStreams::trim(size_t kept_bytes) {
  size_t bytes = 0;
  for (const auto& side : sides_) bytes += side->allocator.trim(kept_bytes);
  return bytes;
}

AllocatorStatistics RunStreams::statistics() const {
  AllocatorStatistics total;
  for (const auto& side : sides_) {
    const AllocatorStatistics one = side->allocator.statistics();
    total.allocations += one.allocations;
    total.growths += one.growths;
  }
  return total;
}

}  // namespace grainline
