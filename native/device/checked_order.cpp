#include "device/checked_order.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace grainline {
namespace {

bool overlap(const std::byte* begin, const std::byte* end, const std::byte* data, size_t size) {
  return begin < data + size && data < end;
}

Status missing(const char* sentence, int first, int second, const std::byte* data, size_t size) {
  char text[200];
  std::snprintf(text, sizeof text, sentence, first, static_cast<const void*>(data), size, second);
  return Status(StatusCode::missing_synchronization, text);
}

}  // namespace

int CheckedOrder::add_stream() {
  const std::lock_guard<std::mutex> held(lock_);
  return clocks_.add_stream();
}

const CheckedOrder::Access* CheckedOrder::conflict(int stream, const MemoryAccess& access) const {
  const auto found = std::ranges::find_if(accesses_, [&](const Access& earlier) {
    return (earlier.is_written || access.is_written) &&
           overlap(earlier.begin, earlier.end, access.data, access.size_bytes) &&
           !clocks_.is_over(stream, earlier.stream, earlier.time);
  });
  return found == accesses_.end() ? nullptr : &*found;
}

void CheckedOrder::remember(int stream, const MemoryAccess& access) {
  const Access now{access.data, access.data + access.size_bytes, stream, clocks_.now(stream),
                   access.is_written};
  const auto same = std::ranges::find_if(accesses_, [&](const Access& earlier) {
    return earlier.begin == now.begin && earlier.end == now.end && earlier.stream == stream &&
           earlier.is_written == now.is_written;
  });
  if (same == accesses_.end())
    accesses_.push_back(now);
  else
    *same = now;
}

Status CheckedOrder::submit(int stream, std::span<const MemoryAccess> accesses) {
  const std::lock_guard<std::mutex> held(lock_);
  if (!violation_.is_ok()) return std::exchange(violation_, Status());
  for (const MemoryAccess& access : accesses) {
    if (access.size_bytes == 0) continue;
    if (const Access* earlier = conflict(stream, access))
      return missing(
          "stream %d used the memory at %p (%zu bytes), and stream %d does so without "
          "having waited for it: record an event and wait for it, or synchronise",
          earlier->stream, stream, access.data, access.size_bytes);
  }
  for (const MemoryAccess& access : accesses)
    if (access.size_bytes != 0) remember(stream, access);
  return Status();
}

void CheckedOrder::record(int stream, const Event& event) {
  const std::lock_guard<std::mutex> held(lock_);
  clocks_.send(stream, &events_[&event]);
}

void CheckedOrder::wait(int stream, const Event& event) {
  const std::lock_guard<std::mutex> held(lock_);
  const auto found = events_.find(&event);
  if (found != events_.end()) clocks_.receive(stream, found->second);
}

StreamClocks::Snapshot CheckedOrder::begin_synchronize(int stream) {
  const std::lock_guard<std::mutex> held(lock_);
  StreamClocks::Snapshot covered;
  clocks_.send(stream, &covered);
  return covered;
}

void CheckedOrder::end_synchronize(const StreamClocks::Snapshot& covered) {
  const std::lock_guard<std::mutex> held(lock_);
  clocks_.receive_everywhere(covered);
  std::erase_if(accesses_, [&](const Access& earlier) {
    return clocks_.is_over_for_host(earlier.stream, earlier.time);
  });
}

void CheckedOrder::release(const std::byte* memory, size_t size_bytes) {
  const std::lock_guard<std::mutex> held(lock_);
  std::erase_if(accesses_, [&](const Access& earlier) {
    if (!overlap(earlier.begin, earlier.end, memory, size_bytes)) return false;
    if (violation_.is_ok() && !clocks_.is_over_for_host(earlier.stream, earlier.time))
      violation_ = missing(
          "stream %d used the memory at %p (%zu bytes), which went back to the "
          "device before the host had waited for stream %d",
          earlier.stream, earlier.stream, memory, size_bytes);
    return true;
  });
}

Status CheckedOrder::take_violation() {
  const std::lock_guard<std::mutex> held(lock_);
  return std::exchange(violation_, Status());
}

}  // namespace grainline
