// Prints what the allocators and asynchronous streams cost. "Relations on" is an allocation while
// an executor's gate is set and open; it is compared with "off" in pairs, and "off" with itself, so
// that the difference can be judged against what two equal things differ by here. No test.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"
#include "build_type.h"
#include "device/cpu_device.h"
#include "device/discrete_device.h"
#include "device/inline_stream.h"
#include "memory/caching_allocator.h"
#include "memory/host_memory.h"
#include "memory/stream_allocators.h"

using namespace grainline;

namespace {

constexpr int kRounds = 201;
constexpr int kRepeats = 10000;

struct OpenGate final : RecycleGate {
  Status wait() override {
    ++waits;
    return Status();
  }
  int waits = 0;
};

template <typename Body>
double sample_ns(int repeats, Body body) {
  const int64_t begin_ns = now_ns();
  for (int i = 0; i < repeats; ++i) body();
  return static_cast<double>(now_ns() - begin_ns) / repeats;
}

double median(std::vector<double> samples) {
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

template <typename Body>
double median_ns(int rounds, int repeats, Body body) {
  std::vector<double> samples;
  for (int round = 0; round < rounds; ++round) samples.push_back(sample_ns(repeats, body));
  return median(samples);
}

void row(const std::string& what, double ns) { std::printf("%-64s %9.1f ns\n", what.c_str(), ns); }

// Half of the samples lie within +- of the median.
double spread(std::vector<double> samples) {
  const double middle = median(samples);
  for (double& sample : samples) sample = std::abs(sample - middle);
  return median(samples);
}

void bench_relations(size_t size_bytes) {
  OpenGate gate;
  InlineStream stream;
  CachingAllocator allocator(HostMemory::process(), stream);
  Allocator& face = allocator;  // as the executor calls it
  const auto pair = [&] {
    MemoryBlock* block = nullptr;
    static_cast<void>(face.allocate(size_bytes, &block));
    face.free(block);
  };
  std::vector<double> off, on, off_less_off, on_less_off;
  for (int round = 0; round < kRounds; ++round) {
    allocator.set_gate(nullptr);
    const double first = sample_ns(kRepeats, pair);
    allocator.set_gate(&gate);
    const double with = sample_ns(kRepeats, pair);
    allocator.set_gate(nullptr);
    const double second = sample_ns(kRepeats, pair);
    off.push_back(first);
    on.push_back(with);
    off_less_off.push_back(second - first);
    on_less_off.push_back(with - (first + second) / 2);
  }
  const std::string what = "allocate + free, " + std::to_string(size_bytes) + " bytes, relations ";
  row(what + "off", median(off));
  row(what + "on", median(on));
  std::printf(
      "  paired difference on - off: %+.2f ns (half within %.2f); off - off: %+.2f ns (half "
      "within %.2f); gate calls: %d\n",
      median(on_less_off), spread(on_less_off), median(off_less_off), spread(off_less_off),
      gate.waits);
}

void bench_several_streams() {
  InlineStream streams[2];
  CachingAllocator first(HostMemory::process(), streams[0]),
      second(HostMemory::process(), streams[1]);
  const StreamAllocators::Lower lower[] = {{&first, &streams[0]}, {&second, &streams[1]}};
  StreamAllocators all(lower, 2);
  row("two streams: allocate + free on one", median_ns(kRounds, kRepeats, [&] {
        MemoryBlock* block = nullptr;
        static_cast<void>(all.of(0).allocate(5000, &block));
        all.of(0).free(block);
      }));
  row("two streams: born on 0, used on 1, home by two events", median_ns(kRounds, kRepeats, [&] {
        MemoryBlock* block = nullptr;
        static_cast<void>(all.of(0).allocate(5000, &block));
        all.access(1, block);
        all.of(0).free(block);
        all.send(0, 0);
        all.wait(1, 0);
        all.of(1).free(block);
        all.send(1, 1);
        all.wait(0, 1);
      }));
}

void bench_streams() {
  CpuDevice cpu;
  const std::unique_ptr<Stream> queued = cpu.create_asynchronous_stream();
  DiscreteDevice discrete;
  const std::unique_ptr<Stream> remote = discrete.create_stream();
  std::byte* memory = discrete.memory().acquire(4096);
  std::byte host[64] = {};
  constexpr int kBurst = 256;
  const auto burst = [&](Stream& stream, std::byte* data) {
    return median_ns(101, 1,
                     [&] {
                       for (int i = 0; i < kBurst; ++i)
                         static_cast<void>(stream.fill(data, {}, 64));
                     }) /
           kBurst;
  };
  row("asynchronous cpu stream: submit a fill", burst(*queued, host));
  static_cast<void>(queued->synchronize());
  row("discrete stream: submit a fill", burst(*remote, memory));
  static_cast<void>(remote->synchronize());
  row("discrete stream: submit a fill and synchronise", median_ns(101, 100, [&] {
        static_cast<void>(remote->fill(memory, {}, 64));
        static_cast<void>(remote->synchronize());
      }));
  row("discrete stream: buffered copy of 4 KiB and synchronise", median_ns(101, 100, [&] {
        static std::byte source[4096];
        static_cast<void>(remote->copy(memory, source, 4096, CopyKind::host_to_device_buffered));
        static_cast<void>(remote->synchronize());
      }));
  discrete.memory().release(memory, 4096);
}

}  // namespace

int main() {
  grainline::test::print_build();
  for (const size_t size_bytes : {size_t{100}, size_t{20000}, size_t{1} << 20})
    bench_relations(size_bytes);
  bench_several_streams();
  bench_streams();
}
