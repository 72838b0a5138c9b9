// CHECK(condition, "sentence") aborts with place and text. For our own bugs only, in all builds;
// a wrong input is a Status.
#pragma once

namespace grainline {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* sentence) noexcept;

}  // namespace grainline

#define CHECK(condition, sentence)                                         \
  do {                                                                     \
    if (!(condition)) [[unlikely]]                                         \
      ::grainline::check_failed(__FILE__, __LINE__, #condition, sentence); \
  } while (false)
