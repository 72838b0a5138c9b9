// grainline_tests [part-of-name]: runs the tests whose name contains it.
#include <cstring>

#include "check.h"

#if defined(__SANITIZE_THREAD__)
// The tests fork while the pool has threads, and the child starts its own: that is their point.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

int main(int argc, char** argv) {
  using namespace grainline::test;
  int passed = 0, failed = 0;
  for (const Test& test : all_tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    failures_of_current() = 0;
    test.body();
    const bool is_ok = failures_of_current() == 0;
    if (!is_ok) std::printf("FAILED %s (%d)\n", test.name, failures_of_current());
    ++(is_ok ? passed : failed);
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
