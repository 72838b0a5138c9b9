#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "memory/host_memory.h"
#include "memory/output_pool.h"
#include "memory/span_allocator.h"
#include "random_seed.h"

using namespace grainline;
using namespace grainline::test;

namespace {

constexpr size_t kPage = SpanAllocator::kPageBytes;

bool is_aligned(const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % kMemoryAlignment == 0;
}

}  // namespace

TEST(host_memory_counts_and_gives_back) {
  HostMemory memory;
  for (size_t size : {size_t{0}, size_t{1}, size_t{64}, HostMemory::kMapBytes - 1,
                      HostMemory::kMapBytes, size_t{5} << 20}) {
    std::byte* data = memory.acquire(size);
    EXPECT(data != nullptr && is_aligned(data), "aligned memory of any size");
    std::memset(data, 1, size);
    EXPECT(memory.statistics().live_bytes >= size, "live bytes cover the request");
    memory.release(data, size);
    EXPECT(memory.statistics().live_bytes == 0, "all bytes went back");
  }
  EXPECT(memory.acquire(SIZE_MAX) == nullptr, "an absurd size is refused");
  EXPECT(memory.statistics().system_calls == 12, "two system calls for each piece");
}

TEST(host_memory_respects_its_limit) {
  HostMemory memory;
  memory.set_limit(1 << 20);
  std::byte* half = memory.acquire(512 << 10);
  EXPECT(half != nullptr, "below the limit");
  EXPECT(memory.acquire(513 << 10) == nullptr, "above the limit");
  std::byte* rest = memory.acquire(512 << 10);
  EXPECT(rest != nullptr, "exactly the limit");
  memory.release(half, 512 << 10);
  memory.release(rest, 512 << 10);
  EXPECT(memory.statistics().peak_bytes == 1 << 20, "the peak is remembered");
}

TEST(discarded_pages_read_as_zero) {
  HostMemory memory;
  std::byte* data = memory.acquire(1 << 20);
  std::memset(data, 7, 1 << 20);
  memory.discard(data + 1, (1 << 20) - 1);
  EXPECT(data[0] == std::byte{7}, "a page that is only partly named stays");
  EXPECT(data[(1 << 20) - 1] == std::byte{0}, "whole pages went back to the system");
  memory.release(data, 1 << 20);
}

TEST(span_allocator_is_quiet_once_warm) {
  HostMemory memory;
  SpanAllocator allocator(memory);
  const size_t sizes[] = {0, 1, 64, 65, 700, 2048, 2049, 4096, 5000, 100000, 3 << 20};
  std::vector<MemoryBlock*> blocks;
  uint64_t calls_when_warm = 0;
  for (int round = 0; round < 100; ++round) {
    for (size_t size : sizes) blocks.push_back(allocator.allocate(size));
    for (MemoryBlock* block : blocks) allocator.free(block);
    blocks.clear();
    if (round == 1) calls_when_warm = memory.statistics().system_calls;
  }
  EXPECT(memory.statistics().system_calls == calls_when_warm, "no system call once warm");
  allocator.check_invariants();
  EXPECT(allocator.finalize().is_ok(), "nothing leaks");
  EXPECT(memory.statistics().live_bytes == 0, "everything went back");
}

TEST(span_allocator_prefers_the_newest_of_the_exact_size) {
  HostMemory memory;
  SpanAllocator allocator(memory);
  MemoryBlock* first = allocator.allocate(3 * kPage);
  MemoryBlock* wall = allocator.allocate(kPage);
  MemoryBlock* second = allocator.allocate(3 * kPage);
  MemoryBlock* wall_too = allocator.allocate(kPage);
  std::byte* const second_data = second->data;
  allocator.free(first);
  allocator.free(second);
  MemoryBlock* again = allocator.allocate(3 * kPage - 5);
  EXPECT(again->data == second_data, "the span that was freed last, still in the cache");
  EXPECT(again->capacity_bytes == 3 * kPage && again->size_bytes == 3 * kPage - 5, "its sizes");
  for (MemoryBlock* block : {wall, wall_too, again}) allocator.free(block);
  EXPECT(allocator.finalize().is_ok(), "nothing leaks");
}

TEST(growth_is_not_rounded_to_powers_of_two) {
  HostMemory memory;
  SpanAllocator allocator(memory);
  MemoryBlock* block = allocator.allocate((65 << 20) + 1);
  EXPECT(allocator.statistics().held_bytes == (65 << 20) + kPage, "a large tensor takes its size");
  allocator.free(block);
  allocator.allocate(100);
  EXPECT(!allocator.finalize().is_ok(), "the small one is still in use");
  EXPECT(allocator.statistics().held_bytes <= (9 << 20), "the large segment went back");
}

TEST(a_large_segment_is_spared_for_its_like) {
  HostMemory memory;
  SpanAllocator allocator(memory);
  MemoryBlock* large = allocator.allocate(32 << 20);
  std::byte* const data = large->data;
  allocator.free(large);
  MemoryBlock* small = allocator.allocate(8 * kPage);
  large = allocator.allocate(32 << 20);
  EXPECT(large->data == data, "the small tensor did not cut the large segment");
  allocator.free(large);
  std::vector<MemoryBlock*> many;
  for (int i = 0; i < 40; ++i) many.push_back(allocator.allocate(64 * kPage));
  EXPECT(allocator.statistics().held_bytes < 50 << 20, "but it is not spared for ever");
  allocator.free(small);
  for (MemoryBlock* block : many) allocator.free(block);
  EXPECT(allocator.finalize().is_ok(), "nothing leaks");
}

TEST(out_of_memory_is_null_and_a_recycle_makes_room) {
  HostMemory memory;
  memory.set_limit(4 << 20);
  SpanAllocator allocator(memory);
  EXPECT(allocator.allocate(5 << 20) == nullptr, "more than the limit is refused");
  MemoryBlock* half = allocator.allocate(2 << 20);
  allocator.free(half);
  EXPECT(allocator.allocate(3 << 20) == nullptr, "idle memory is not given back unasked");
  MemoryBlock* large = (allocator.recycle(), allocator.allocate(3 << 20));
  EXPECT(large != nullptr, "after a recycle there is room");
  EXPECT(allocator.statistics().recycles == 1, "one segment went back");
  allocator.check_invariants();
  allocator.free(large);
  EXPECT(allocator.finalize().is_ok(), "and the allocator is whole");
}

TEST(finalize_names_what_is_still_in_use) {
  HostMemory memory;
  SpanAllocator allocator(memory);
  MemoryBlock* small = allocator.allocate(100);
  MemoryBlock* large = allocator.allocate(10 * kPage);
  const Status status = allocator.finalize();
  EXPECT(status.code() == StatusCode::internal, "a leak is our bug");
  EXPECT(status.message().find("2 memory blocks") != std::string_view::npos, "how many");
  EXPECT(status.message().find("1 of 128 bytes") != std::string_view::npos, "the small one");
  EXPECT(status.message().find("40960 bytes") != std::string_view::npos, "the large one");
  const uint64_t version = small->version;
  allocator.free(small);
  EXPECT(small->version == version + 1, "a free makes the old wrapper stale");
  allocator.free(large);
  EXPECT(allocator.finalize().is_ok(), "after the frees all is well");
}

namespace {

// The model: a list of live blocks, each filled with a value of its own.
struct Stress {
  explicit Stress(uint64_t seed) : random(seed) {}

  size_t random_size() {
    const int magnitude = static_cast<int>(random() % 24);
    return random() % (size_t{1} << magnitude);
  }

  MemoryBlock* allocate_or_recycle(size_t size) {
    MemoryBlock* block = allocator.allocate(size);
    return block != nullptr || allocator.recycle() == 0 ? block : allocator.allocate(size);
  }

  void allocate() {
    const size_t size = random_size();
    MemoryBlock* block = allocate_or_recycle(size);
    if (block == nullptr) return;
    EXPECT(is_aligned(block->data), "aligned");
    EXPECT(block->size_bytes == size && block->capacity_bytes >= size, "large enough");
    const auto value = static_cast<uint8_t>(random());
    std::memset(block->data, value, block->capacity_bytes);
    live.push_back({block, value});
  }

  void free_one() {
    if (live.empty()) return;
    std::swap(live[random() % live.size()], live.back());
    const auto [block, value] = live.back();
    live.pop_back();
    const auto expected = static_cast<std::byte>(value);
    EXPECT(block->data[0] == expected && block->data[block->capacity_bytes / 2] == expected &&
               block->data[block->capacity_bytes - 1] == expected,
           "nobody else wrote into the block");
    allocator.free(block);
  }

  struct Live {
    MemoryBlock* block;
    uint8_t value;
  };
  std::mt19937_64 random;
  HostMemory memory;
  SpanAllocator allocator{memory};
  std::vector<Live> live;
};

}  // namespace

TEST(span_allocator_random_stress_against_a_model) {
  Stress stress(printed_seed("span allocator stress"));
  stress.memory.set_limit(64 << 20);
  for (int step = 0; step < 20000; ++step) {
    const bool grows = stress.live.size() < 40 + 200 * static_cast<size_t>(step / 4000 % 2);
    (stress.random() % 8 < (grows ? 5u : 3u)) ? stress.allocate() : stress.free_one();
    if (step % 997 == 0) stress.allocator.recycle();
    if (step % 101 == 0) stress.allocator.check_invariants();
    EXPECT(stress.allocator.statistics().live_blocks == stress.live.size(), "live blocks");
  }
  while (!stress.live.empty()) stress.free_one();
  stress.allocator.check_invariants();
  EXPECT(stress.allocator.statistics().occupied_bytes <= 6 * kPage, "only spare slabs remain");
  EXPECT(stress.allocator.finalize().is_ok(), "nothing leaks");
  EXPECT(stress.memory.statistics().live_bytes == 0, "everything went back");
}

TEST(output_pool_recycles_by_size) {
  HostMemory memory;
  OutputPool pool(memory, 1 << 20);
  std::byte* first = pool.acquire(1000);
  EXPECT(is_aligned(first), "aligned");
  std::memset(first, 1, 1000);
  pool.release(first);
  const uint64_t calls = memory.statistics().system_calls;
  for (size_t size : {1000, 990, 1010}) {
    std::byte* again = pool.acquire(size);
    EXPECT(again == first, "the same buffer for the same size class");
    pool.release(again);
  }
  EXPECT(memory.statistics().system_calls == calls, "without the system");
  EXPECT(pool.trim() > 0 && memory.statistics().live_bytes == 0, "trim gives all back");
  pool.release(nullptr);
  EXPECT(pool.acquire(SIZE_MAX) == nullptr && pool.acquire(SIZE_MAX / 8) == nullptr,
         "absurd sizes are refused");
}

TEST(output_pool_slack_is_bounded_for_every_size) {
  HostMemory memory;
  OutputPool pool(memory, 0);
  for (size_t size = 0; size < 300000; size += 1 + size / 7) {
    std::byte* data = pool.acquire(size);
    std::memset(data, 1, size);
    const size_t held = memory.statistics().live_bytes;
    EXPECT(held >= size + kMemoryAlignment, "room for all of it");
    EXPECT(held <= std::max<size_t>(256, (size + 64) * 5 / 4) + 4096, "and not much more");
    pool.release(data);
    EXPECT(memory.statistics().live_bytes == 0, "a cache of no size keeps nothing");
  }
}

TEST(output_pool_keeps_within_its_bound) {
  HostMemory memory;
  OutputPool pool(memory, 1 << 20);
  std::vector<std::byte*> buffers;
  for (int i = 0; i < 64; ++i) buffers.push_back(pool.acquire(100 << 10));
  for (std::byte* data : buffers) pool.release(data);
  EXPECT(pool.cached_bytes() <= 1 << 20, "within the bound");
  EXPECT(pool.cached_bytes() > 1 << 19, "but used");
  EXPECT(memory.statistics().live_bytes == pool.cached_bytes(), "the rest went back");
  pool.trim();
  EXPECT(memory.statistics().live_bytes == 0, "all went back");
}

TEST(output_pool_gives_back_what_lay_unused) {
  HostMemory memory;
  OutputPool pool(memory, 64 << 20, 40'000'000);
  pool.release(pool.acquire(32 << 20));
  EXPECT(pool.cached_bytes() > 0, "kept for now");
  for (int i = 0; i < 100 && pool.cached_bytes() > 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.release(pool.acquire(100));  // any use notices
  }
  EXPECT(pool.cached_bytes() <= 1000, "the old buffer went back, the small one in use did not");
  EXPECT(memory.statistics().live_bytes == pool.cached_bytes(), "to the system");
  pool.trim();
}

TEST(output_pool_serves_many_threads) {
  HostMemory memory;
  OutputPool pool(memory);
  std::atomic<int> clashes{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      std::vector<std::byte*> mine;
      for (int i = 0; i < 5000; ++i) {
        std::byte* data = pool.acquire(random() % 4000 + 8);
        *reinterpret_cast<int64_t*>(data) = t;
        mine.push_back(data);
        if (mine.size() < 16) continue;
        std::swap(mine[random() % mine.size()], mine.back());
        if (*reinterpret_cast<int64_t*>(mine.back()) != t) ++clashes;
        pool.release(mine.back());
        mine.pop_back();
      }
      for (std::byte* data : mine) pool.release(data);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(clashes == 0, "a buffer has one owner at a time");
  EXPECT(memory.statistics().live_bytes == pool.cached_bytes(), "the count of the cache is exact");
  pool.trim();
  EXPECT(memory.statistics().live_bytes == 0 && pool.cached_bytes() == 0, "all went back");
}
