// Sleeping on a word until someone changes it.
#pragma once

#include <atomic>
#include <cstdint>

namespace grainline {

// Returns when woken, or at once if the word is not `expected` (any more), or for no reason at all:
// call in a loop that tests its condition.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected) noexcept;
// The same, and returns after timeout_ns at the latest; a negative time never passes.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) noexcept;
void wake_sleeper(std::atomic<uint32_t>& word) noexcept;
void wake_all_sleepers(std::atomic<uint32_t>& word) noexcept;

}  // namespace grainline
