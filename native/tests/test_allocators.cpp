// The caching allocator's slow path, call by call, and memory on several streams.
#include <algorithm>
#include <bitset>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "device/discrete_device.h"
#include "device/inline_stream.h"
#include "memory/caching_allocator.h"
#include "memory/foreign_memory.h"
#include "memory/host_memory.h"
#include "memory/poison.h"
#include "memory/stream_allocators.h"
#include "random_seed.h"

using namespace grainline;
using namespace grainline::test;

namespace {

constexpr size_t kPage = SpanAllocator::kPageBytes;
constexpr size_t kMegabyte = size_t{1} << 20;

// Who was called, in order: a(cquire), r(elease), w(ait), s(ynchronise).
struct Spy final : MemorySource, RecycleGate, StreamOrder {
  std::byte* acquire(size_t size_bytes) noexcept override {
    std::byte* data = memory.acquire(size_bytes);
    calls += data ? "A" : "a";  // a capital succeeded
    return data;
  }
  void release(std::byte* data, size_t size_bytes) noexcept override {
    calls += "R";
    memory.release(data, size_bytes);
  }
  void discard(std::byte*, size_t) noexcept override {}
  Status wait() override {
    calls += "W";
    return wait_status;
  }
  Status synchronize(int64_t timeout_ns) override {
    calls += "S";
    last_timeout_ns = timeout_ns;
    return synchronize_status;
  }
  Status fill(std::byte* data, std::byte value, size_t size_bytes) override {
    calls += "F";
    std::memset(data, static_cast<int>(value), size_bytes);
    return Status();
  }
  bool is_inline() const noexcept override { return true; }
  std::string taken() { return std::exchange(calls, ""); }

  HostMemory memory;
  std::string calls;
  Status wait_status, synchronize_status;
  int64_t last_timeout_ns = 0;
};

MemoryBlock* allocated(Allocator& allocator, size_t size_bytes) {
  MemoryBlock* block = nullptr;
  if (!EXPECT(allocator.allocate(size_bytes, &block).is_ok(), "there is memory")) std::abort();
  return block;
}

}  // namespace

TEST(stream_clocks_learn_through_others) {
  StreamClocks clocks(3);
  StreamClocks::Snapshot news;
  const uint64_t early = clocks.now(0);
  clocks.send(0, &news);
  const uint64_t late = clocks.now(0);
  clocks.receive(1, news);
  clocks.send(1, &news);
  clocks.receive(2, news);
  EXPECT(clocks.is_over(2, 0, early), "what 0 told 1, 1 told 2");
  EXPECT(!clocks.is_over(2, 0, late) && !clocks.is_over(1, 0, late), "but not what came after");
  EXPECT(clocks.is_over(0, 0, late), "a stream follows itself");
  EXPECT(!clocks.is_over(0, 1, clocks.now(1) - 1), "nobody told 0 anything");
  EXPECT(!clocks.is_over_for_host(0, early), "nor the host");
  clocks.send(2, &news);
  clocks.receive_everywhere(news);
  EXPECT(clocks.is_over_for_host(0, early) && clocks.is_over(0, 1, 1), "the host tells everyone");
}

TEST(R62_successful_allocation_calls_nobody) {
  Spy spy;
  CachingAllocator allocator(spy, spy);
  allocator.set_gate(&spy);
  for (int round = 0; round < 100; ++round) {
    MemoryBlock* blocks[] = {allocated(allocator, 100), allocated(allocator, 3 * kPage)};
    for (MemoryBlock* block : blocks) allocator.free(block);
  }
  EXPECT(spy.calls == "A", "memory was acquired once; no wait, no synchronise");
  EXPECT(allocator.statistics().waits == 0 && allocator.statistics().allocations == 200, "counted");
}

TEST(R63_wait_then_synchronise_then_recycle_then_retry) {
  Spy spy;
  spy.memory.set_limit(4 * kMegabyte);
  CachingAllocator allocator(spy, spy, {.synchronize_timeout_ns = 77});
  allocator.set_gate(&spy);
  allocator.free(allocated(allocator, 2 * kMegabyte));
  spy.taken();
  MemoryBlock* block = allocated(allocator, 3 * kMegabyte);
  EXPECT(spy.taken() == "aWSRA", "try, wait, synchronise, recycle, retry");
  EXPECT(spy.last_timeout_ns == 77, "with the timeout of the options");
  MemoryBlock* none = block;
  EXPECT(allocator.allocate(2 * kMegabyte, &none).code() == StatusCode::out_of_memory, "no room");
  EXPECT(spy.taken() == "aWSa" && none == nullptr,
         "nothing to recycle, one retry, then it is over");
  allocator.free(block);
  EXPECT(allocator.finalize().is_ok() && spy.taken() == "WSR", "so does a finalize");
  EXPECT(allocator.trim() == 0 && spy.taken() == "WS", "and a trim");
}

TEST(R63_failed_wait_skips_the_rest) {
  Spy spy;
  spy.memory.set_limit(2 * kMegabyte);
  CachingAllocator allocator(spy, spy);
  allocator.set_gate(&spy);
  allocator.free(allocated(allocator, kMegabyte));
  spy.taken();
  MemoryBlock* block = nullptr;
  spy.wait_status = Status(StatusCode::end_of_sequence, "aborted");
  EXPECT(allocator.allocate(2 * kMegabyte, &block).code() == StatusCode::end_of_sequence,
         "the status of the gate, unchanged");
  EXPECT(spy.taken() == "aW" && block == nullptr, "no synchronise, no recycle, no retry");
  EXPECT(allocator.trim() == 0 && spy.taken() == "W", "a trim gives up too");
  spy.wait_status = Status();
  spy.synchronize_status = Status(StatusCode::timed_out, "slow");
  EXPECT(allocator.allocate(2 * kMegabyte, &block).code() == StatusCode::timed_out, "the stream's");
  EXPECT(spy.taken() == "aWS", "no recycle, no retry");
  EXPECT(allocator.statistics().held_bytes == kMegabyte, "the idle memory is untouched");
  spy.synchronize_status = Status();
  block = allocated(allocator, 2 * kMegabyte);
  EXPECT(spy.taken() == "aWSRA", "the next try goes through");
  allocator.free(block);
}

TEST(without_relations_only_the_stream_is_waited_for) {
  Spy spy;
  CachingAllocator allocator(spy, spy, {.limit_bytes = 2 * kMegabyte});
  MemoryBlock* block = allocated(allocator, kMegabyte);
  allocator.free(block);
  block = allocated(allocator, 2 * kMegabyte);
  EXPECT(spy.taken() == "ASRA", "the limit of the allocator is met before the source is asked");
  allocator.free(block);
}

TEST(peers_give_back_one_after_the_other) {
  Spy spy, near, far;
  near.memory.set_limit(0);
  far.memory.set_limit(0);
  spy.memory.set_limit(3 * kMegabyte);
  CachingAllocator first(spy, near), second(spy, far), needy(spy, spy);
  needy.set_peers({&first, &second});
  first.free(allocated(first, kMegabyte));
  second.free(allocated(second, kMegabyte));
  spy.taken();
  MemoryBlock* block = allocated(needy, 2 * kMegabyte);
  EXPECT(near.taken() == "S" && far.taken() == "", "the first peer's memory was enough");
  EXPECT(spy.taken() == "aSaRA", "own recycle, retry, the peer's recycle, retry");
  EXPECT(second.statistics().held_bytes == kMegabyte, "the second kept its own");
  needy.free(block);
}

TEST(shared_blocks_go_back_with_the_last_use) {
  Spy spy;
  CachingAllocator allocator(spy, spy);
  MemoryBlock* block = allocated(allocator, 100);
  allocator.share(block);
  allocator.free(block);
  EXPECT(block->data != nullptr && block->uses == 1, "somebody still uses it");
  const Status leak = allocator.finalize();
  EXPECT(leak.code() == StatusCode::internal &&
             leak.message().find("1 memory blocks") != std::string_view::npos,
         "a finalize says so");
  allocator.free(block);
  EXPECT(allocator.finalize().is_ok(), "the last one took it");
}

TEST(an_allocator_knows_its_blocks) {
  Spy spy;
  CachingAllocator one(spy, spy), other(spy, spy);
  std::vector<MemoryBlock*> blocks(100);  // more than the wrappers of one chunk
  for (MemoryBlock*& block : blocks) {
    block = allocated(one, 100);
    EXPECT(one.owns(block) && !other.owns(block), "each block has one allocator");
  }
  for (MemoryBlock* block : blocks) one.free(block);
  EXPECT(one.owns(blocks.back()), "whether it is in use or not");
}

TEST(statistics_tell_what_no_allocator_could_avoid) {
  Spy spy;
  CachingAllocator allocator(spy, spy);
  MemoryBlock* first = allocated(allocator, 1000);
  MemoryBlock* second = allocated(allocator, 5000);
  allocator.free(first);
  AllocatorStatistics s = allocator.statistics();
  EXPECT(s.live_bytes == 5000 && s.peak_live_bytes == 6000 && s.live_blocks == 1, "live");
  EXPECT(s.peak_held_bytes >= s.peak_occupied_bytes && s.peak_occupied_bytes >= s.peak_live_bytes,
         "held covers occupied covers live");
  allocator.free(second);
  EXPECT(allocator.finalize().is_ok() &&
             allocator.statistics().growths == allocator.statistics().recycles,
         "what was taken was given back");
}

TEST(poisoned_reuse_reaches_a_launch_that_was_submitted_too_late) {
  DiscreteDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream();
  CachingAllocator allocator(device.memory(), *stream, {.poisons = true});
  MemoryBlock* block = allocated(allocator, 3 * kPage);
  std::byte* const data = block->data;
  EXPECT(stream->fill(data, std::byte{5}, kPage).is_ok(), "an early use");
  allocator.free(block);
  char seen = 0;
  EXPECT(stream->copy(&seen, data, 1, CopyKind::device_to_host).is_ok(), "freed, not reused");
  EXPECT(stream->synchronize().is_ok() && seen == 5, "still readable in stream order");
  block = allocated(allocator, 3 * kPage);
  EXPECT(block->data == data, "now it is reused");
  EXPECT(stream->copy(&seen, data, 1, CopyKind::device_to_host).is_ok(), "a late use");
  EXPECT(stream->synchronize().is_ok() && static_cast<std::byte>(seen) == kPoison, "is poisoned");
  allocator.free(block);
  EXPECT(allocator.finalize().is_ok(), "nothing leaks");
}

TEST(recycling_on_a_checked_device_is_never_too_early) {
  std::mt19937_64 random(printed_seed("recycling stress"));
  DiscreteDevice::Options options;
  options.arena = {.capacity_bytes = kMegabyte, .fragment_bytes = kMegabyte / 4};
  options.is_checked = true;
  DiscreteDevice device(options);
  const std::unique_ptr<Stream> stream = device.create_stream();
  CachingAllocator allocator(device.memory(), *stream, {.poisons = true});
  std::vector<MemoryBlock*> live;
  size_t refused = 0;
  for (int step = 0; step < 4000; ++step) {
    if (random() % 5 < 3) {
      MemoryBlock* block = nullptr;
      const Status status = allocator.allocate(random() % (kMegabyte / 6) + 1, &block);
      if (status.is_ok()) {
        EXPECT(stream->fill(block->data, std::byte{1}, block->size_bytes).is_ok(), "used");
        live.push_back(block);
        continue;
      }
      EXPECT(status.code() == StatusCode::out_of_memory, "full is the only failure");
      ++refused;
    }
    if (live.empty()) continue;
    std::swap(live[random() % live.size()], live.back());
    allocator.free(live.back());
    live.pop_back();
  }
  EXPECT(refused > 0 && allocator.statistics().recycles > 0, "the capacity was met, and recycled");
  for (MemoryBlock* block : live) allocator.free(block);
  EXPECT(allocator.finalize().is_ok() && device.arena().statistics().live_bytes == 0, "no leak");
  EXPECT(stream->synchronize().is_ok(), "and nothing went back before it was waited for");
}

TEST(borrowed_memory_comes_from_the_functions_of_its_owner) {
  HostMemory owner;
  ForeignMemory memory({&owner,
                        [](void* context, size_t size_bytes) -> void* {
                          return static_cast<HostMemory*>(context)->acquire(size_bytes);
                        },
                        [](void* context, void* data, size_t size_bytes) {
                          static_cast<HostMemory*>(context)->release(static_cast<std::byte*>(data),
                                                                     size_bytes);
                        }});
  InlineStream stream;
  CachingAllocator allocator(memory, stream);
  MemoryBlock* block = allocated(allocator, kMegabyte);
  EXPECT(owner.statistics().live_bytes >= kMegabyte, "it is the owner's");
  allocator.free(block);
  EXPECT(allocator.finalize().is_ok() && owner.statistics().live_bytes == 0, "and went back");
}

namespace {

// A stream that tells when it was waited for.
struct WatchedOrder final : StreamOrder {
  Status synchronize(int64_t timeout_ns) override {
    if (on_synchronize) on_synchronize();
    return stream->synchronize(timeout_ns);
  }
  Status fill(std::byte* memory, std::byte value, size_t size_bytes) override {
    return stream->fill(memory, value, size_bytes);
  }
  bool is_inline() const noexcept override { return false; }
  Stream* stream = nullptr;
  std::function<void()> on_synchronize;
};

// Two or more streams of one checked device, each with an allocator of its own.
struct Streams {
  explicit Streams(int count, size_t capacity_bytes = 64 * kMegabyte, size_t events = 8)
      : device({.arena = {.capacity_bytes = capacity_bytes}, .is_checked = true}), events_(events) {
    std::vector<StreamAllocators::Lower> lower;
    for (int i = 0; i < count; ++i) {
      streams.push_back(device.create_stream());
      orders.push_back(std::make_unique<WatchedOrder>());
      orders.back()->stream = streams.back().get();
      allocators.push_back(std::make_unique<CachingAllocator>(device.memory(), *orders.back()));
      lower.push_back({allocators.back().get(), orders.back().get()});
    }
    all = std::make_unique<StreamAllocators>(lower, events);
  }
  ~Streams() {
    EXPECT(all->synchronize().is_ok() && all->blocks_away() == 0, "all blocks come home");
    for (auto& allocator : allocators) EXPECT(allocator->finalize().is_ok(), "nothing leaks");
    EXPECT(device.arena().statistics().live_bytes == 0, "the device is empty");
  }

  void send(int stream, size_t event) {
    EXPECT(streams[static_cast<size_t>(stream)]->record(events_[event]).is_ok(), "recorded");
    all->send(stream, event);
  }
  void wait(int stream, size_t event) {
    EXPECT(streams[static_cast<size_t>(stream)]->wait(events_[event]).is_ok(), "awaited");
    all->wait(stream, event);
  }
  Status work(int stream, const MemoryBlock* block) {
    return streams[static_cast<size_t>(stream)]->fill(block->data, std::byte{1}, block->size_bytes);
  }

  DiscreteDevice device;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<WatchedOrder>> orders;
  std::vector<std::unique_ptr<CachingAllocator>> allocators;
  std::unique_ptr<StreamAllocators> all;
  std::vector<Event> events_;
};

}  // namespace

TEST(a_block_goes_home_when_its_birth_stream_knows) {
  Streams s(2);
  MemoryBlock* block = allocated(s.all->of(0), kPage);
  EXPECT(s.work(0, block).is_ok(), "used where it was born");
  s.send(0, 0);
  s.wait(1, 0);
  s.all->access(1, block);
  EXPECT(s.work(1, block).is_ok(), "used on the other stream, which waited");
  s.all->of(0).free(block);
  EXPECT(block->uses == 1 && s.all->blocks_away() == 0, "the other one still uses it");
  s.all->of(1).free(block);
  EXPECT(s.all->blocks_away() == 1, "free, but its birth stream does not know yet");
  MemoryBlock* other = allocated(s.all->of(0), kPage);
  EXPECT(other->data != block->data, "so it is not handed out there");
  s.send(1, 1);
  EXPECT(s.all->blocks_away() == 1, "telling is not hearing");
  s.wait(0, 1);
  EXPECT(s.all->blocks_away() == 0, "now it knows");
  EXPECT(s.work(0, other).is_ok(), "and may work");
  s.all->of(0).free(other);
  EXPECT(s.all->statistics().returned_at_once == 1 && s.all->statistics().returned_later == 1,
         "counted");
}

TEST(a_stream_that_knows_may_borrow) {
  Streams s(2, 3 * kMegabyte);
  MemoryBlock* block = allocated(s.all->of(0), 2 * kMegabyte);
  s.all->access(1, block);
  s.all->of(0).free(block);
  s.send(0, 0);  // behind the free: what stream 0 did with it until then is covered
  s.wait(1, 0);
  EXPECT(s.work(1, block).is_ok(), "used elsewhere");
  s.all->of(1).free(block);
  MemoryBlock* borrowed = allocated(s.all->of(1), 2 * kMegabyte - 1);
  EXPECT(borrowed == block && s.all->statistics().borrowed == 1, "there is no room for another");
  EXPECT(s.work(1, borrowed).is_ok(), "in the order of its own stream");
  s.all->of(1).free(borrowed);
}

TEST(the_last_resort_waits_for_every_stream) {
  Streams s(2, 3 * kMegabyte);
  MemoryBlock* block = allocated(s.all->of(0), 2 * kMegabyte);
  s.send(0, 0);
  s.wait(1, 0);
  s.all->access(1, block);
  s.all->of(0).free(block);
  EXPECT(s.work(1, block).is_ok(), "used elsewhere");
  s.all->of(1).free(block);
  MemoryBlock* again = allocated(s.all->of(0), 2 * kMegabyte);
  EXPECT(s.all->blocks_away() == 0 && again->data != nullptr, "the block came home for it");
  EXPECT(s.work(0, again).is_ok(), "and the device agrees that it was time");
  s.all->of(0).free(again);
}

namespace {

// The oracle: every piece of work is a node, its ancestors are all work that surely comes before.
class Happened {
 public:
  static constexpr size_t kMostNodes = 4096;
  using Ancestors = std::bitset<kMostNodes>;

  explicit Happened(size_t streams, size_t events) : before_(streams), sent_(events) {}

  // Adds work on the stream; false when something that used this memory need not be over.
  bool work(size_t stream, const MemoryBlock* block, uint64_t life) {
    bool is_safe = true;
    const std::byte* end = block->data + block->capacity_bytes;
    for (const Use& use : uses_) {
      const bool overlaps = use.begin < end && block->data < use.end;
      if (overlaps && use.life != life) is_safe &= before_[stream][use.node];
    }
    uses_.push_back({block->data, end, nodes_, life});
    before_[stream].set(nodes_++);
    return is_safe;
  }
  void send(size_t stream, size_t event) { sent_[event] = before_[stream]; }
  void wait(size_t stream, size_t event) { before_[stream] |= sent_[event]; }
  // The host waited for the stream; whatever is submitted from now on comes after it.
  void synchronize(size_t stream) {
    for (Ancestors& other : before_) other |= before_[stream];
  }

 private:
  struct Use {
    const std::byte* begin;
    const std::byte* end;
    size_t node;
    uint64_t life;
  };
  std::vector<Ancestors> before_, sent_;
  std::vector<Use> uses_;
  size_t nodes_ = 0;
};

struct Shared {
  MemoryBlock* block;
  uint64_t life;
  std::vector<int> users;  // streams, one entry per use
};

}  // namespace

TEST(R69_memory_on_several_streams_is_reused_only_in_order) {
  std::mt19937_64 random(printed_seed("streams stress"));
  constexpr int kStreams = 3;
  constexpr size_t kEvents = 6;
  for (int round = 0; round < 6; ++round) {
    Streams s(kStreams, size_t{random() % 3 + 1} * kMegabyte, kEvents);
    Happened happened(kStreams, kEvents);
    for (size_t i = 0; i < kStreams; ++i)
      s.orders[i]->on_synchronize = [&happened, i] { happened.synchronize(i); };
    std::vector<Shared> live;
    uint64_t lives = 0;
    const auto use = [&](int stream, const Shared& shared) {
      EXPECT(happened.work(static_cast<size_t>(stream), shared.block, shared.life),
             "whoever had this memory before is over");
      EXPECT(s.work(stream, shared.block).is_ok(), "and the checked device agrees");
    };
    const auto drop_one_use = [&](size_t which) {
      Shared& shared = live[which];
      std::swap(shared.users[random() % shared.users.size()], shared.users.back());
      s.all->of(shared.users.back()).free(shared.block);
      shared.users.pop_back();
      if (shared.users.empty()) std::swap(shared, live.back()), live.pop_back();
    };
    for (int step = 0; step < 500; ++step) {
      const int stream = static_cast<int>(random() % kStreams);
      const int other =
          static_cast<int>((static_cast<size_t>(stream) + 1 + random() % 2) % kStreams);
      const size_t event = static_cast<size_t>(stream) * 2 + random() % 2;  // of this stream
      switch (random() % 6) {
        case 0:
        case 1: {
          MemoryBlock* block = nullptr;
          const Status status = s.all->of(stream).allocate(random() % (kMegabyte / 5) + 1, &block);
          if (status.code() == StatusCode::out_of_memory) break;
          EXPECT(status.is_ok(), "full is the only failure");
          live.push_back({block, ++lives, {stream}});
          use(stream, live.back());
          break;
        }
        case 2: {  // hand a block on, behind an event
          if (live.empty()) break;
          Shared& shared = live[random() % live.size()];
          if (std::ranges::find(shared.users, stream) == shared.users.end()) break;
          s.send(stream, event);
          happened.send(static_cast<size_t>(stream), event);
          s.wait(other, event);
          happened.wait(static_cast<size_t>(other), event);
          s.all->access(other, shared.block);
          shared.users.push_back(other);
          break;
        }
        case 3:
          s.send(stream, event);
          happened.send(static_cast<size_t>(stream), event);
          s.wait(other, event);
          happened.wait(static_cast<size_t>(other), event);
          break;
        default:
          if (!live.empty()) drop_one_use(random() % live.size());
      }
    }
    while (!live.empty()) drop_one_use(live.size() - 1);
    for (auto& order : s.orders) order->on_synchronize = nullptr;
  }
}
