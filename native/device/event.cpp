#include "device/event.h"

namespace grainline {

Status Event::add_record(const void* stream, uint32_t* number) {
  const void* owner = nullptr;
  // Relaxed: an identity, nothing is read through it.
  if (!stream_.compare_exchange_strong(owner, stream, std::memory_order_relaxed) && owner != stream)
    return Status(StatusCode::invalid_argument, "the event belongs to another stream");
  // Release: who waits for this record sees what was submitted before it.
  *number = recorded_.fetch_add(1, std::memory_order_acq_rel) + 1;
  return Status();
}

Status Event::synchronize(int64_t timeout_ns) {
  if (completed_.await(recorded(), timeout_ns)) return Status();
  return Status(StatusCode::timed_out, "the event was not reached in time");
}

}  // namespace grainline
