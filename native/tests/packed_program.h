// Packs tables as `execgraph/pack.py` does, so that a program of a test passes all checks.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "exec/program.h"

namespace grainline::test {

inline std::vector<int64_t> packed(const Program& tables) {
  std::vector<int64_t> blob{kProgramMagic, kProgramFormat};
  each_table(tables, [&]<typename Row>(const std::vector<Row>& rows) {
    const size_t at = blob.size() + 1, words = rows.size() * sizeof(Row) / sizeof(int64_t);
    blob.push_back(static_cast<int64_t>(rows.size()));
    blob.resize(at + words);
    if (words != 0) std::memcpy(&blob[at], rows.data(), words * sizeof(int64_t));
  });
  return blob;
}

// The same tables as a program that can run, or null with the refusal in *status. kernels: by key
// number. The result is the caller's, who may put other kernels into its nodes.
inline std::shared_ptr<Program> packed_program(const Program& tables,
                                               const std::vector<TileKernel>& kernels,
                                               Status* status) {
  std::vector<uint64_t> addresses;
  for (const TileKernel kernel : kernels) addresses.push_back(reinterpret_cast<uint64_t>(kernel));
  std::shared_ptr<const Program> made;
  *status = Program::create(packed(tables), tables.strings, addresses, &made);
  return status->is_ok() ? std::make_shared<Program>(*made) : nullptr;
}

}  // namespace grainline::test
