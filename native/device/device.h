// What the executor knows of a device: a place with memory, and streams that keep order.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "memory/memory_source.h"
#include "threads/pool.h"

namespace grainline {

// An ordered queue. All calls from one thread. A command that was submitted before another one on
// the same stream has its effects first.
class Stream {
 public:
  virtual ~Stream() = default;

  // On an inline stream the Status is the kernel's; on an asynchronous one only the submission's,
  // and the dispatch and its args must live until synchronize.
  virtual Status launch(const Dispatch& dispatch) = 0;
  // Within the device, or between it and the host; ranges may overlap.
  virtual Status copy(void* destination, const void* source, size_t size_bytes) = 0;
  // Waits for submitted work and reports its first failure.
  virtual Status synchronize() = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const noexcept = 0;
  // Host pointers are device pointers, so a copy between them can be left out.
  virtual bool is_unified() const noexcept = 0;
  virtual MemorySource& memory() noexcept = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
};

}  // namespace grainline
