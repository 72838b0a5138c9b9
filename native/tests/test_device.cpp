#include <numeric>
#include <vector>

#include "check.h"
#include "device/cpu_device.h"
#include "device/event.h"

using namespace grainline;

TEST(cpu_stream_does_everything_at_once_and_in_order) {
  CpuDevice device;
  EXPECT(device.name() == "cpu" && device.is_unified(), "the host is the device");
  const std::unique_ptr<Stream> stream = device.create_stream();
  std::vector<int> source(1000), target(1000);
  std::iota(source.begin(), source.end(), 0);
  EXPECT(stream->copy(target.data(), source.data(), 4000, CopyKind::host_to_device).is_ok(),
         "a copy");
  EXPECT(target == source, "is done when it returns");
  const TileKernel twice = [](const uint64_t* args, int64_t begin, int64_t end, void*) -> int32_t {
    auto* data = reinterpret_cast<int*>(args[0]);
    for (int64_t i = begin; i < end; ++i) data[i] *= 2;
    return 0;
  };
  const uint64_t args[] = {reinterpret_cast<uint64_t>(target.data())};
  EXPECT(stream->launch({twice, args, 1000, 10, 2, nullptr, 0}, {1, {}}, {}).is_ok(), "a launch");
  EXPECT(target[999] == 1998 && target[1] == 2, "has its effects at once");
  EXPECT(stream->copy(target.data() + 1, target.data(), 3996, CopyKind::within_device).is_ok(),
         "overlapping");
  EXPECT(target[999] == 1996 && target[1] == 0, "ranges may overlap");
  EXPECT(stream->copy(nullptr, nullptr, 0, CopyKind::device_to_host).is_ok(),
         "an empty tensor may have no address");
  EXPECT(stream->synchronize().is_ok(), "nothing to wait for");
}

TEST(cpu_device_memory_is_host_memory) {
  HostMemory memory;
  CpuDevice device(memory);
  std::byte* data = device.memory().acquire(1 << 20);
  EXPECT(memory.statistics().live_bytes == 1 << 20, "counted by the memory it was given");
  device.memory().release(data, 1 << 20);
}
