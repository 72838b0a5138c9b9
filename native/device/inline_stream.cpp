#include "device/inline_stream.h"

#include <cstring>

namespace grainline {

Status InlineStream::launch(const Dispatch& dispatch, ArgumentWords,
                            std::span<const MemoryAccess>) {
  const int32_t fault = Pool::process().dispatch(dispatch);
  if (fault == 0) [[likely]]
    return Status();
  return status_of_fault(fault);
}

Status InlineStream::copy(void* destination, const void* source, size_t size_bytes, CopyKind) {
  // An empty tensor may have no address, and memmove may not be given one then.
  if (size_bytes != 0) std::memmove(destination, source, size_bytes);
  return Status();
}

Status InlineStream::fill(std::byte* memory, std::byte value, size_t size_bytes) {
  if (size_bytes != 0) std::memset(memory, static_cast<int>(value), size_bytes);
  return Status();
}

Status InlineStream::record(Event& event) {
  uint32_t number = 0;
  Status status = event.add_record(this, &number);
  if (status.is_ok()) event.completed().advance_to(number);
  return status;
}

Status InlineStream::wait(Event& event) { return event.synchronize(); }

Status InlineStream::synchronize(int64_t) { return Status(); }

}  // namespace grainline
