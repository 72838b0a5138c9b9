// Copies of tensors to a device with memory of its own, as nodes of a program.
//
// Per tensor:             CalcDeviceCopySizes    -> AllocMemHbm      -> ShareH2DCopyResult
//                                                                    -> LaunchH2DCopy
// Per launch, of several: CalcCopyFlowAllocSizes -> AllocCopyFlowHbm -> PrepareCopyFlowResult
//                                                                    -> LaunchCopyFlowH2D
// The third node makes the result and takes the block over; the address stays for the fourth, which
// submits the copy in the order of the stream. CopyH2D and CopyFlowLaunch do all four in one node.
//
// All copies are buffered: the host bytes are the caller's again when the node has run.
//
// Small tensors of a flow get no block; they travel behind the argument words of their launch,
//   [ views | words | words of the variant | embedded tensors, each a multiple of 4 | padding ]
// and the words at their positions are addresses inside (ArgumentWords::inner). The embedded bytes
// are rounded up to 32, and 32 more. `execgraph/argument_block.py` makes the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/allocator.h"

namespace grainline {

class RunState;
struct Node;

inline constexpr int64_t kMostEmbeddedBytes = 128;
inline constexpr int64_t kEmbedAlignment = 4, kEmbedEndAlignment = 32;
inline constexpr size_t kMostEmbeddedWords =
    static_cast<size_t>(kMostEmbeddedBytes + kEmbedEndAlignment) / sizeof(uint64_t);

// What a run knows of one tensor, from the size to the submission. Written by the nodes of its own
// chain, which are ordered. Invariants: block != nullptr => data == block->data, and the result has
// not taken it over; alloc_bytes == 0: no block; copy_bytes == 0: nothing is submitted.
struct CopyState {
  int64_t alloc_bytes = 0;
  int64_t copy_bytes = 0;
  MemoryBlock* block = nullptr;
  std::byte* data = nullptr;
};

// What PrepareCopyFlowResult put behind the words of a launch.
struct CopyFlowState {
  size_t embedded_words = 0;
  std::vector<uint32_t> inner;  // see ArgumentWords; keeps its room
};

bool copy_h2d(RunState& state, const Node& node);                    // a, b: tensors [a, b)
bool calc_device_copy_sizes(RunState& state, const Node& node);      // a: tensor
bool alloc_mem_hbm(RunState& state, const Node& node);               // a: tensor
bool share_h2d_copy_result(RunState& state, const Node& node);       // a: tensor
bool launch_h2d_copy(RunState& state, const Node& node);             // a: tensor
bool copy_flow_launch(RunState& state, const Node& node);            // a: flow
bool calc_copy_flow_alloc_sizes(RunState& state, const Node& node);  // a: flow
bool alloc_copy_flow_hbm(RunState& state, const Node& node);         // a: flow
bool prepare_copy_flow_result(RunState& state, const Node& node);    // a: flow
bool launch_copy_flow_h2d(RunState& state, const Node& node);        // a: flow
bool copy_d2h(RunState& state, const Node& node);  // a: source slot, b: target slot, c: size value
bool ensure_tensor_at_out_memory(RunState& state, const Node& node);  // as copy_d2h

}  // namespace grainline
