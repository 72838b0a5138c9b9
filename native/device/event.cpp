#include "device/event.h"

namespace grainline {

Status Event::synchronize(int64_t timeout_ns) {
  if (completed_.await(recorded(), timeout_ns)) return Status();
  return Status(StatusCode::timed_out, "the event was not reached in time");
}

}  // namespace grainline
