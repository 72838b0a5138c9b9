// The host as a device: unified memory, and by default a stream that does everything at once.
#pragma once

#include "device/device.h"
#include "memory/host_memory.h"

namespace grainline {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(MemorySource& memory = HostMemory::process()) noexcept : memory_(memory) {}

  // The process-wide one. Never destroyed.
  static CpuDevice& process() noexcept;

  std::string_view name() const noexcept override { return "cpu"; }
  bool is_unified() const noexcept override { return true; }
  bool holds(const void*) const noexcept override { return true; }
  bool is_checked() const noexcept override { return false; }
  MemorySource& memory() noexcept override { return memory_; }
  std::unique_ptr<Stream> create_stream() override;
  // With a thread of its own: submitting and completing are two moments.
  std::unique_ptr<Stream> create_asynchronous_stream();

 private:
  MemorySource& memory_;
};

}  // namespace grainline
