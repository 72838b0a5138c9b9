// The steady clock in nanoseconds.
#pragma once

#include <time.h>

#include <cstdint>

namespace grainline {

inline int64_t read_clock_ns(clockid_t clock) noexcept {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

inline int64_t now_ns() noexcept { return read_clock_ns(CLOCK_MONOTONIC); }

// The same time, up to a scheduler tick late, for a few nanoseconds.
inline int64_t coarse_now_ns() noexcept {
#ifdef CLOCK_MONOTONIC_COARSE
  return read_clock_ns(CLOCK_MONOTONIC_COARSE);
#else
  return now_ns();
#endif
}

}  // namespace grainline
