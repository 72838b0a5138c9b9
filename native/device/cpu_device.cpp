#include "device/cpu_device.h"

#include "device/inline_stream.h"
#include "device/queued_stream.h"

namespace grainline {

CpuDevice& CpuDevice::process() noexcept {
  static CpuDevice* const instance = new CpuDevice;
  return *instance;
}

std::unique_ptr<Stream> CpuDevice::create_stream() { return std::make_unique<InlineStream>(); }

std::unique_ptr<Stream> CpuDevice::create_asynchronous_stream() {
  return std::make_unique<QueuedStream>();
}

}  // namespace grainline
