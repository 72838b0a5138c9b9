// Memory that nobody may rely on. kPoison is what a device that looks for mistakes writes there.
// Under AddressSanitizer, memory that lies idle in a pool is off limits; otherwise nothing happens.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace grainline {

inline constexpr std::byte kPoison{0xdb};

inline void forbid_access([[maybe_unused]] const std::byte* memory,
                          [[maybe_unused]] size_t size_bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory, size_bytes);
#endif
}

inline void allow_access([[maybe_unused]] const std::byte* memory,
                         [[maybe_unused]] size_t size_bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory, size_bytes);
#endif
}

}  // namespace grainline
