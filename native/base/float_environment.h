// The floating-point environment that all results assume: round to nearest, denormals kept.
#pragma once

#include <cstdint>

namespace grainline {

// While it lives, the calling thread computes in the default environment, whatever a library of the
// process has set (flush-to-zero, for instance); then the caller's own is put back. Without it the
// bits of a result would depend on which thread computed them. A few nanoseconds when there is
// nothing to change.
class DefaultFloatScope {
 public:
  DefaultFloatScope() noexcept : saved_(read()) {
    if ((saved_ & ~kIgnored) != kDefault) write(kDefault);
  }
  ~DefaultFloatScope() {
    if ((saved_ & ~kIgnored) != kDefault) write(saved_);
  }
  DefaultFloatScope(const DefaultFloatScope&) = delete;
  DefaultFloatScope& operator=(const DefaultFloatScope&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kDefault = 0x1f80;  // all exceptions masked
  static constexpr uint64_t kIgnored = 0x3f;    // sticky flags, not modes
  static uint64_t read() noexcept { return __builtin_ia32_stmxcsr(); }
  static void write(uint64_t value) noexcept {
    __builtin_ia32_ldmxcsr(static_cast<unsigned>(value));
  }
#elif defined(__aarch64__)
  static constexpr uint64_t kDefault = 0;
  static constexpr uint64_t kIgnored = 0;
  static uint64_t read() noexcept {
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(uint64_t value) noexcept { __asm__ volatile("msr fpcr, %0" ::"r"(value)); }
#else
  static constexpr uint64_t kDefault = 0;
  static constexpr uint64_t kIgnored = 0;
  static uint64_t read() noexcept { return 0; }
  static void write(uint64_t) noexcept {}
#endif

  const uint64_t saved_;
};

}  // namespace grainline
