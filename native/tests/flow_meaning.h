// What the launches of flow_graph.h compute, as kernels and by a walk over the structure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "copy_graph.h"

namespace grainline::test {

// args: addresses of what is read, of what is written; then seed, words written, turn, mask, words
// of each read.
template <size_t reads>
int32_t fold_turn(const uint64_t* args, int64_t begin, int64_t end, void*) {
  const uint64_t* numbers = args + reads + 1;
  uint64_t hash = numbers[2];
  for (size_t i = 0; i < reads; ++i)
    hash = mixed(hash, hash_of(reinterpret_cast<const uint64_t*>(args[i]), numbers[4 + i]));
  auto* target = reinterpret_cast<uint64_t*>(args[reads]);
  for (int64_t i = begin; i < end; ++i)
    target[i] = word_of(numbers[0], static_cast<size_t>(i), hash) & numbers[3];
  return 0;
}

// What a walk over the structure of a graph knows.
struct Meaning {
  std::map<int64_t, std::vector<uint64_t>> contents;  // by slot
  std::vector<uint64_t> turns = {0};                  // of the loops around, the innermost last
};
using Script = std::vector<std::function<void(Meaning&)>>;

inline void perform(const Script& script, Meaning& meaning) {
  for (const auto& step : script) step(meaning);
}

// What a launch that reads these slots gives.
inline std::vector<uint64_t> folded_turn(Meaning& meaning, uint64_t seed, size_t words,
                                         uint64_t mask, const std::vector<int64_t>& sources) {
  uint64_t hash = meaning.turns.back();
  for (const int64_t source : sources) {
    const std::vector<uint64_t>& contents = meaning.contents[source];
    hash = mixed(hash, hash_of(contents.data(), contents.size()));
  }
  std::vector<uint64_t> result(words);
  for (size_t i = 0; i < words; ++i) result[i] = word_of(seed, i, hash) & mask;
  return result;
}

}  // namespace grainline::test
