#include "exec/copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "exec/run_state.h"

namespace grainline {
namespace {

constexpr int64_t kAlignment = 64, kHeaderBytes = 64;

int64_t round_up(int64_t size_bytes, int64_t alignment) {
  return (size_bytes + alignment - 1) / alignment * alignment;
}

const TensorCopyRow& row_of(const RunState& state, int64_t tensor) {
  return state.program().tensor_copies[static_cast<size_t>(tensor)];
}

CopyState& copy_of(RunState& state, int64_t tensor) {
  return state.copies[static_cast<size_t>(tensor)];
}

const CopyFlowRow& flow_of(const RunState& state, const Node& node) {
  return state.program().copy_flows[static_cast<size_t>(node.a)];
}

SlotState& slot_of(RunState& state, int64_t slot) { return state.slots[static_cast<size_t>(slot)]; }

bool lies_on_device(RunState& state, int64_t tensor) {
  return state.device.holds(slot_of(state, row_of(state, tensor).source).data);
}

// ---- the parts ----------------------------------------------------------------------------------

// The allocation follows the size of the tensor, with a header behind it.
void measure(RunState& state, int64_t tensor) {
  const int64_t size_bytes = state.value(row_of(state, tensor).size);
  CopyState& copy = copy_of(state, tensor);
  copy.alloc_bytes = copy.copy_bytes = 0;
  copy.data = nullptr;
  if (size_bytes == 0 || lies_on_device(state, tensor)) return;
  copy.alloc_bytes = round_up(size_bytes, kAlignment) + kHeaderBytes;
  copy.copy_bytes = size_bytes;
}

// Called again after it was parked, it goes on where it could not.
bool allocate(RunState& state, int64_t tensor) {
  CopyState& copy = copy_of(state, tensor);
  if (copy.alloc_bytes == 0) return false;
  const auto target = static_cast<int32_t>(row_of(state, tensor).target);
  if (copy.block == nullptr && state.take(target, copy.alloc_bytes, &copy.block)) return true;
  copy.data = copy.block->data;
  return false;
}

// The result owns the block, or is one more owner of what lies on the device already.
void make_result(RunState& state, int64_t tensor) {
  const TensorCopyRow& row = row_of(state, tensor);
  CopyState& copy = copy_of(state, tensor);
  if (copy.block == nullptr && lies_on_device(state, tensor))
    state.share(static_cast<int32_t>(row.source), static_cast<int32_t>(row.target));
  else
    state.own(static_cast<int32_t>(row.target), copy.data, std::exchange(copy.block, nullptr));
}

bool submit(RunState& state, const Node& node, int64_t tensor) {
  const CopyState& copy = copy_of(state, tensor);
  if (copy.alloc_bytes == 0) return false;
  const std::byte* source = slot_of(state, row_of(state, tensor).source).data;
  Status status = state.stream_of(node).copy(
      copy.data, source, static_cast<size_t>(copy.copy_bytes), CopyKind::host_to_device_buffered);
  return !status.is_ok() && state.fail(std::move(status));
}

// ---- the parts for several tensors
// ----------------------------------------------------------------

// The budget is greedy: what still fits is embedded, also behind a tensor that did not.
void measure_flow(RunState& state, const CopyFlowRow& flow) {
  int64_t embedded_bytes = 0;
  for (int64_t tensor = flow.tensor_begin; tensor < flow.tensor_end; ++tensor) {
    const int64_t size_bytes = state.value(row_of(state, tensor).size);
    CopyState& copy = copy_of(state, tensor);
    copy.alloc_bytes = copy.copy_bytes = 0;
    copy.data = nullptr;
    if (lies_on_device(state, tensor)) continue;
    copy.copy_bytes = size_bytes;
    if (round_up(size_bytes, kEmbedAlignment) <= kMostEmbeddedBytes - embedded_bytes)
      embedded_bytes += round_up(size_bytes, kEmbedAlignment);
    else
      copy.alloc_bytes = size_bytes;
  }
}

bool allocate_flow(RunState& state, const CopyFlowRow& flow) {
  for (int64_t tensor = flow.tensor_begin; tensor < flow.tensor_end; ++tensor)
    if (allocate(state, tensor)) return true;
  return false;
}

// Puts a tensor at `to`, behind the words of its launch.
void embed(RunState& state, int64_t tensor, std::byte* to, CopyFlowState& flow) {
  const TensorCopyRow& row = row_of(state, tensor);
  const auto size_bytes = static_cast<size_t>(copy_of(state, tensor).copy_bytes);
  if (size_bytes != 0) std::memcpy(to, slot_of(state, row.source).data, size_bytes);
  state.own(static_cast<int32_t>(row.target), to, nullptr);
  for (int64_t i = row.position_begin; i < row.position_end; ++i)
    flow.inner.push_back(static_cast<uint32_t>(state.program().positions[static_cast<size_t>(i)]));
}

// Owns every result, and submits nothing.
void prepare_flow(RunState& state, const Node& node) {
  const CopyFlowRow& row = flow_of(state, node);
  CopyFlowState& flow = state.copy_flows[static_cast<size_t>(node.a)];
  const auto launch = static_cast<size_t>(row.launch);
  uint64_t* words = &state.arguments[static_cast<size_t>(state.program().argument_begin[launch])];
  auto* const begin = reinterpret_cast<std::byte*>(words + state.argument_words[launch]);
  std::memset(begin, 0, kMostEmbeddedWords * sizeof(uint64_t));
  flow.inner.clear();
  int64_t bytes = 0;
  for (int64_t tensor = row.tensor_begin; tensor < row.tensor_end; ++tensor) {
    if (copy_of(state, tensor).alloc_bytes != 0 || lies_on_device(state, tensor)) {
      make_result(state, tensor);
    } else {
      embed(state, tensor, begin + bytes, flow);
      bytes += round_up(copy_of(state, tensor).copy_bytes, kEmbedAlignment);
    }
  }
  const int64_t padded_bytes = round_up(bytes, kEmbedEndAlignment) + kEmbedEndAlignment;
  flow.embedded_words = static_cast<size_t>(padded_bytes) / sizeof(uint64_t);
}

bool submit_flow(RunState& state, const Node& node) {
  const CopyFlowRow& flow = flow_of(state, node);
  for (int64_t tensor = flow.tensor_begin; tensor < flow.tensor_end; ++tensor)
    if (submit(state, node, tensor)) return true;
  return false;
}

bool copy_home(RunState& state, const Node& node) {
  Status status = state.stream_of(node).copy(
      slot_of(state, node.b).data, slot_of(state, node.a).data,
      static_cast<size_t>(state.value(node.c)), CopyKind::device_to_host);
  return !status.is_ok() && state.fail(std::move(status));
}

}  // namespace

// ---- kernels
// --------------------------------------------------------------------------------------

bool copy_h2d(RunState& state, const Node& node) {
  for (int64_t tensor = node.a; tensor < node.b; ++tensor) measure(state, tensor);
  for (int64_t tensor = node.a; tensor < node.b; ++tensor)
    if (allocate(state, tensor)) return true;
  for (int64_t tensor = node.a; tensor < node.b; ++tensor) {
    make_result(state, tensor);
    if (submit(state, node, tensor)) return true;
  }
  return false;
}

bool calc_device_copy_sizes(RunState& state, const Node& node) {
  measure(state, node.a);
  return false;
}

bool alloc_mem_hbm(RunState& state, const Node& node) { return allocate(state, node.a); }

bool share_h2d_copy_result(RunState& state, const Node& node) {
  make_result(state, node.a);
  return false;
}

bool launch_h2d_copy(RunState& state, const Node& node) { return submit(state, node, node.a); }

bool copy_flow_launch(RunState& state, const Node& node) {
  const CopyFlowRow& flow = flow_of(state, node);
  measure_flow(state, flow);
  if (allocate_flow(state, flow)) return true;
  prepare_flow(state, node);
  return submit_flow(state, node);
}

bool calc_copy_flow_alloc_sizes(RunState& state, const Node& node) {
  measure_flow(state, flow_of(state, node));
  return false;
}

bool alloc_copy_flow_hbm(RunState& state, const Node& node) {
  return allocate_flow(state, flow_of(state, node));
}

bool prepare_copy_flow_result(RunState& state, const Node& node) {
  prepare_flow(state, node);
  return false;
}

bool launch_copy_flow_h2d(RunState& state, const Node& node) { return submit_flow(state, node); }

// The host may read the target when this returns.
bool copy_d2h(RunState& state, const Node& node) {
  if (state.allocate(node.b, state.value(node.c)) || copy_home(state, node)) return true;
  Status status = state.await_stream(state.stream_of(node));
  return !status.is_ok() && state.fail(std::move(status));
}

// The run waits for it at its end.
bool ensure_tensor_at_out_memory(RunState& state, const Node& node) {
  return copy_home(state, node);
}

}  // namespace grainline
