// The steady clock in nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace grainline {

inline int64_t now_ns() noexcept {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_start).count();
}

}  // namespace grainline
