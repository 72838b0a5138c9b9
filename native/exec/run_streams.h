// The streams of a run, where a program has several: one beside the other on the same device, with
// events between them and memory that knows which of them still use it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "memory/caching_allocator.h"
#include "memory/stream_allocators.h"

namespace grainline {

// Waits for a stream or an event, and asks kLookEveryNs apart.
template <typename Waited>
Status synchronize_asking(Waited& waited, const Interrupt* asked) {
  constexpr int64_t kLookEveryNs = 50'000'000;
  if (asked == nullptr) return waited.synchronize(kNoTimeout);
  for (;;) {
    Status status = waited.synchronize(kLookEveryNs);
    if (status.code() != StatusCode::timed_out) return status;
    static_cast<void>(asked->is_due(asked->context));
  }
}

// Memory and events are touched by one thread at a time (the memory worker's, or in a frame the
// caller); any thread may submit to a stream.
// What waits asks an Interrupt now and then, which stops by itself what it waits for; null: nobody.
class RunStreams {
 public:
  // Stream 0 and its allocator are the run's own and outlive this.
  RunStreams(Device& device, Stream& first, CachingAllocator& first_allocator, size_t streams,
             size_t events);
  ~RunStreams();

  Stream& stream(size_t number) { return *streams_[number]; }
  // Allocates, shares and frees as work of this stream does.
  Allocator& allocator(size_t number) { return memory_->of(static_cast<int>(number)); }

  // What was submitted to the stream so far comes before what follows a wait for the event.
  Status send(size_t stream, size_t event);
  Status wait(size_t stream, size_t event);

  // Waits for all streams, whatever fails, then every freed block is home. The first failure.
  Status synchronize(const Interrupt* asked);
  // Waits for what was submitted; failures stay for synchronize.
  void await(const Interrupt* asked);

  void log_commands(CommandLog* log);

  // Of the allocators beside the first.
  size_t held_bytes() const;
  size_t trim(size_t kept_bytes);
  AllocatorStatistics statistics() const;

 private:
  struct Side {
    explicit Side(Device& device)
        : stream(device.create_stream()),
          allocator(device.memory(), *stream, {.poisons = device.is_checked()}) {}
    std::unique_ptr<Stream> stream;
    CachingAllocator allocator;
  };

  // Before the streams: commands name them.
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Event>> looked_at_;  // by stream
  std::vector<std::unique_ptr<Side>> sides_;
  std::vector<Stream*> streams_;
  std::optional<StreamAllocators> memory_;
};

}  // namespace grainline
