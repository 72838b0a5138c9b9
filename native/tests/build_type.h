// Figures of a benchmark say which build they are of.
#pragma once

#include <cstdio>

namespace grainline::test {

inline void print_build() {
#ifdef NDEBUG
  std::printf("release build, ");
#else
  std::printf("build with checks, no release: ");
#endif
  std::printf("compiler %s\n", __VERSION__);
}

}  // namespace grainline::test
