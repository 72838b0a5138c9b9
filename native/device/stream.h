// An ordered queue of device work. Submitting is one moment, completing another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "device/command_log.h"
#include "device/event.h"
#include "memory/recycle_gate.h"
#include "threads/pool.h"

namespace grainline {

enum class CopyKind : int8_t {
  within_device,
  // Host bytes are read when the copy runs: the buffer must live and stay as it is until then.
  host_to_device,
  // Host bytes are read during the call: the buffer is the caller's again when it returns.
  host_to_device_buffered,
  device_to_host,
};

// A part of device memory that a launch touches; what a checked device looks at.
struct MemoryAccess {
  const std::byte* data;
  size_t size_bytes;
  bool is_written;
};

// What a launch is given at dispatch.args. inner: the words that are addresses within these words;
// they move with them when a stream takes a copy.
struct ArgumentWords {
  size_t count = 0;
  std::span<const uint32_t> inner;
};

// Work that was submitted before other work of the same stream has its effects first. Several
// threads may submit, each command whole; `synchronize` may run beside them.
//
// On an inline stream a command is complete when the call returns, and the Status is its own. On
// any other the Status is the submission's; the first failure of a command is kept, what follows it
// is skipped, and the next synchronize reports it and clears it.
class Stream : public StreamOrder {
 public:
  virtual ~Stream() = default;

  // The words are read during the call. accesses: the memory that the kernel touches; a checked
  // device then finds missing synchronisation. May be empty.
  virtual Status launch(const Dispatch& dispatch, ArgumentWords words,
                        std::span<const MemoryAccess> accesses) = 0;
  // Ranges may overlap. Size 0 may have null addresses.
  virtual Status copy(void* destination, const void* source, size_t size_bytes, CopyKind kind) = 0;
  Status fill(std::byte* memory, std::byte value, size_t size_bytes) override = 0;
  // The event is complete when all work submitted so far is.
  virtual Status record(Event& event) = 0;
  // Work submitted from now on runs after the newest record of the event, of whatever stream.
  virtual Status wait(Event& event) = 0;
  Status synchronize(int64_t timeout_ns) override = 0;
  Status synchronize() { return synchronize(kNoTimeout); }
  bool is_inline() const noexcept override = 0;
  // false in the child of a fork, where the thread of an asynchronous stream is missing: every call
  // then fails with invalid_argument.
  virtual bool is_usable() const noexcept { return true; }
  // What is submitted from now on leaves its times in the log, as those of stream `number`; null:
  // no longer. An inline stream leaves none: its commands run while they are submitted.
  virtual void log_commands(CommandLog*, int /* number */) {}
};

}  // namespace grainline
