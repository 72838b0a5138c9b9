// Random graphs of real kernels for a device with memory of its own: copies to it (one node, chains
// and flows), launches that read what was copied, copies home, host calls in between, results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "exec/program.h"
#include "static_order.h"

namespace grainline::test {

struct CopyNode {
  std::string_view kernel;
  int64_t a = 0, b = 0, c = 0;
  std::vector<int64_t> before = {};   // who it waits for with the original edges
  std::vector<int64_t> related = {};  // of a Free: those of `before` that are launches
  int64_t stream = 0;
  int64_t d = 0;
};

// How many words each call of the host makes and reads.
struct HostCalls {
  std::vector<size_t> result_words;
  std::vector<std::vector<size_t>> argument_words;
};

// Tables without order, nodes in the order in which one after the other may run, and the oracle.
struct CopyGraph {
  Program tables;
  std::vector<CopyNode> nodes;
  std::vector<FrameRow> frames;                // begins and ends among the nodes
  std::vector<std::vector<uint64_t>> inputs;   // contents
  std::vector<std::vector<uint64_t>> outputs;  // what must come out
  std::vector<TileKernel> kernels;             // by key number
  HostCalls host_calls;
  size_t peak_bytes = 0;  // of device memory, node by node, in pages of the allocator
  size_t launches = 0;
};

// split: chains alone, as Frees that run ahead of launches need them. fused: nodes that allocate
// and submit, as several streams have them.
enum class Copies { mixed, split, fused };
CopyGraph random_copy_graph(uint64_t seed, Copies copies);

// Nodes in this order. has_relations: a Free does not wait for its launches. Null: what refused it
// is in *status.
std::shared_ptr<Program> program_of_copies(const CopyGraph& graph, const std::vector<size_t>& order,
                                           bool has_relations, Status* status);

// What launches and host calls compute: `words` words that depend on all contents.
std::vector<uint64_t> folded(uint64_t seed, size_t words,
                             const std::vector<std::vector<uint64_t>>& contents);
uint64_t hash_of(const uint64_t* words, size_t count);
uint64_t word_of(uint64_t seed, size_t number, uint64_t hash);

}  // namespace grainline::test
