#include "device/cpu_device.h"

#include <cstring>

namespace grainline {

Status CpuStream::launch(const Dispatch& dispatch) {
  const int32_t fault = Pool::process().dispatch(dispatch);
  if (fault == 0) [[likely]]
    return Status();
  return status_of_fault(fault);
}

Status CpuStream::copy(void* destination, const void* source, size_t size_bytes) {
  // An empty tensor may have no address, and memmove may not be given one then.
  if (size_bytes != 0) std::memmove(destination, source, size_bytes);
  return Status();
}

Status CpuStream::synchronize() { return Status(); }

std::unique_ptr<Stream> CpuDevice::create_stream() { return std::make_unique<CpuStream>(); }

}  // namespace grainline
