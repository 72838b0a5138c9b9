// A stream that does everything at once, in the submitting thread, which works as home 0 of the
// process-wide pool.
#pragma once

#include "device/stream.h"

namespace grainline {

class InlineStream final : public Stream {
 public:
  using Stream::synchronize;

  Status launch(const Dispatch& dispatch, ArgumentWords words,
                std::span<const MemoryAccess> accesses) override;
  Status copy(void* destination, const void* source, size_t size_bytes, CopyKind kind) override;
  Status fill(std::byte* memory, std::byte value, size_t size_bytes) override;
  Status record(Event& event) override;
  Status wait(Event& event) override;
  Status synchronize(int64_t timeout_ns) override;
  bool is_inline() const noexcept override { return true; }
};

}  // namespace grainline
