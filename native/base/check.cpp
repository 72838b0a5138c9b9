#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace grainline {

void check_failed(const char* file, int line, const char* condition,
                  const char* sentence) noexcept {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, sentence, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace grainline
