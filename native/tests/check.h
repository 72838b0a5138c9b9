// A test harness in one page: TEST(name) { EXPECT(condition, "sentence"); }
#pragma once

#include <cstdio>
#include <vector>

namespace grainline::test {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

inline int& failures_of_current() {
  static int failures = 0;
  return failures;
}

struct Registration {
  Registration(const char* name, void (*body)()) { all_tests().push_back({name, body}); }
};

// Prints a failure; the test goes on. From the main thread of the test only.
inline bool expect(bool is_true, const char* file, int line, const char* condition,
                   const char* sentence) {
  if (is_true) return true;
  if (++failures_of_current() <= 8)
    std::printf("  %s:%d: %s (%s)\n", file, line, sentence, condition);
  return false;
}

}  // namespace grainline::test

#define TEST(name)                                                                      \
  static void test_##name();                                                            \
  static const ::grainline::test::Registration registration_##name(#name, test_##name); \
  static void test_##name()

#define EXPECT(condition, sentence) \
  ::grainline::test::expect(static_cast<bool>(condition), __FILE__, __LINE__, #condition, sentence)
