// What the executor knows of a device: a place with memory, and streams that keep order.
#pragma once

#include <memory>
#include <string_view>

#include "device/stream.h"
#include "memory/memory_source.h"

namespace grainline {

// Streams must be gone before their device.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const noexcept = 0;
  // Host pointers are device pointers, so a copy between them can be left out.
  virtual bool is_unified() const noexcept = 0;
  // Whether its launches can work on this memory as it is.
  virtual bool holds(const void* data) const noexcept = 0;
  // Whether mistakes in the order of work are to be found out: allocators then poison what they
  // hand out.
  virtual bool is_checked() const noexcept = 0;
  virtual MemorySource& memory() noexcept = 0;
  // The device's own kind: inline where the host is the device.
  virtual std::unique_ptr<Stream> create_stream() = 0;
};

}  // namespace grainline
