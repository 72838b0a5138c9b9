// How often this process is a forked child of itself.
#pragma once

#include <cstdint>

namespace grainline {

// Grows in the child of a fork. Who has threads of its own compares it with the number it started
// them at: in the child they are gone. Watching begins with the first call.
uint32_t forks() noexcept;

}  // namespace grainline
