// The seed of a random test: GRAINLINE_TEST_SEED, or a fresh one. The test prints it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace grainline::test {

inline uint64_t printed_seed(const char* test) {
  const char* text = std::getenv("GRAINLINE_TEST_SEED");
  const uint64_t seed = text ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  std::printf("  %s: GRAINLINE_TEST_SEED=%llu\n", test, static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace grainline::test
