// Sleeping on a word until someone changes it.
#pragma once

#include <atomic>
#include <cstdint>

namespace grainline {

// Returns when woken, or at once if the word is not `expected` (any more), or for no reason at all:
// call in a loop that tests its condition.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected) noexcept;
void wake_sleeper(std::atomic<uint32_t>& word) noexcept;

}  // namespace grainline
