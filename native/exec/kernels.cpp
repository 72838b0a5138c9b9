#include "exec/kernels.h"

#include <algorithm>
#include <cstring>

#include "exec/copies.h"
#include "exec/run_state.h"
#include "memory/output_pool.h"

namespace grainline {
namespace {

SlotState& slot_of(RunState& state, int64_t slot) { return state.slots[static_cast<size_t>(slot)]; }

bool infer_shape(RunState& state, const Node& node) {
  return state.infer_shape(static_cast<size_t>(node.a));
}

// a: slot, b: size value
bool alloc_memory(RunState& state, const Node& node) {
  return state.allocate(node.a, state.value(node.b));
}

// a: slot, b: output, c: size value. Whoever started the run takes the memory over.
bool alloc_model_output(RunState& state, const Node& node) {
  const int64_t size_bytes = state.value(node.c);
  std::byte* data = OutputPool::process().acquire(static_cast<size_t>(size_bytes));
  if (data == nullptr) [[unlikely]]
    return state.fail(
        StatusCode::out_of_memory,
        "no memory for " + std::to_string(size_bytes) + " bytes of output '" +
            state.program().string(state.program().outputs[static_cast<size_t>(node.b)].name) +
            "'");
  slot_of(state, node.a).data = data;
  return false;
}

// a: slot, b: launch
bool alloc_workspace(RunState& state, const Node& node) {
  Dispatch& dispatch = state.dispatches[static_cast<size_t>(node.b)];
  dispatch.scratch = nullptr;
  int64_t size_bytes = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(dispatch.scratch_stride), dispatch.homes,
                             &size_bytes))
    return state.fail(StatusCode::out_of_memory, "the scratch size overflows 64 bits");
  if (size_bytes == 0) return false;
  if (state.allocate(node.a, size_bytes)) return true;
  dispatch.scratch = slot_of(state, node.a).data;
  return false;
}

// a: launch
bool launch(RunState& state, const Node& node) {
  const auto index = static_cast<size_t>(node.a);
  const Dispatch& dispatch = state.dispatches[index];
  if (dispatch.blocks == 0) return false;
  const Program& p = state.program();
  const LaunchRow& row = p.launches[index];
  uint64_t* argument = &state.arguments[static_cast<size_t>(p.argument_begin[index])];
  for (int64_t v = row.view_begin; v < row.view_end; ++v) {
    const ViewRow& view = p.views[static_cast<size_t>(v)];
    *argument++ = reinterpret_cast<uint64_t>(slot_of(state, view.slot).data) +
                  static_cast<uint64_t>(state.value(view.offset));
  }
  ArgumentWords words{state.argument_words[index], {}};
  if (row.copy_flow >= 0) {
    const CopyFlowState& flow = state.copy_flows[static_cast<size_t>(row.copy_flow)];
    words = {words.count + flow.embedded_words, flow.inner};
  }
  if (Status status = state.stream_of(node).launch(dispatch, words, {}); !status.is_ok())
      [[unlikely]]
    return state.fail(std::move(status));
  return state.charge(state.costs_ps[index]);
}

// a: host call
bool host_call(RunState& state, const Node& node) {
  const HostCallRow& row = state.program().host_calls[static_cast<size_t>(node.a)];
  if (state.host.call == nullptr)
    return state.fail(StatusCode::internal, "there is no host to call");
  return !state.host.call(state.host.context, state, row);
}

// a: slot, b: offset value, [c, d): words
bool extents_tensor(RunState& state, const Node& node) {
  std::byte* target = slot_of(state, node.a).data + state.value(node.b);
  for (int32_t w = node.c; w < node.d; ++w, target += sizeof(int64_t)) {
    const int64_t extent = state.value(state.program().words[static_cast<size_t>(w)]);
    std::memcpy(target, &extent, sizeof extent);
  }
  return false;
}

// a: copy
bool copy_memory(RunState& state, const Node& node) {
  const CopyRow& row = state.program().copies[static_cast<size_t>(node.a)];
  const auto size_bytes = static_cast<size_t>(state.value(row.size_bytes));
  if (size_bytes == 0) return false;
  Status status =
      state.stream_of(node).copy(slot_of(state, row.target).data + state.value(row.target_offset),
                                 slot_of(state, row.source).data + state.value(row.source_offset),
                                 size_bytes, CopyKind::within_device);
  return !status.is_ok() && state.fail(std::move(status));
}

// a: slot, b: it holds an object
bool free_memory(RunState& state, const Node& node) {
  if (node.b)
    state.release_object(node.a);
  else
    state.free(node.a);
  return false;
}

// a: slot. A launch that is not submitted yet still reads the address.
bool free_memory_hold_addr(RunState& state, const Node& node) {
  state.free_holding_address(node.a);
  return false;
}

// Chooses the branch: a bool (true is branch 0), or an index; one beyond the branches is the last.
bool switch_notify(RunState& state, const Node& node) {
  state.await_contents(node.a);
  const std::byte* data = slot_of(state, node.a).data;
  int64_t chosen = 0;
  if (node.c)
    chosen = *reinterpret_cast<const uint8_t*>(data) ? 0 : 1;
  else
    std::memcpy(&chosen, data, sizeof chosen);
  const int64_t last = node.b - 1;
  state.choose(node, static_cast<uint32_t>(chosen < 0 || chosen > last ? last : chosen));
  return false;
}

// a: turn row, b: branches. Branch 0 is the body. A loop without launches looks for signals here.
bool switch_turn(RunState& state, const Node& node) {
  const TurnRow& row = state.program().turns[static_cast<size_t>(node.a)];
  const int64_t turn = state.value(row.turn);
  bool goes_on = turn < state.value(row.limit);
  if (row.trips >= 0) {
    state.await_contents(row.trips);
    int64_t trips = 0;
    std::memcpy(&trips, slot_of(state, row.trips).data, sizeof trips);
    goes_on = goes_on && turn < trips;
  }
  if (row.condition >= 0) {
    state.await_contents(row.condition);
    goes_on = goes_on && *reinterpret_cast<const uint8_t*>(slot_of(state, row.condition).data) != 0;
  }
  state.choose(node, goes_on ? 0 : 1);
  return state.charge(0);
}

// a: first dim, [b, c): words, d: turn value
bool pass_extents(RunState& state, const Node& node) {
  return state.pass_extents(static_cast<size_t>(node.a), static_cast<size_t>(node.b),
                            static_cast<size_t>(node.c), state.value(node.d));
}

// a: slot, b: size value, c: turn value, d: limit value (0: not known). Doubling keeps the copies
// of all turns below the size of the result.
bool grow_memory(RunState& state, const Node& node) {
  const int64_t size_bytes = state.value(node.b);
  int64_t needed = 0, all = 0;
  if (__builtin_mul_overflow(size_bytes, state.value(node.c) + 1, &needed) ||
      __builtin_mul_overflow(size_bytes, state.value(node.d), &all))
    return state.fail(StatusCode::out_of_memory, "what a loop collects overflows 64 bits");
  const MemoryBlock* block = slot_of(state, node.a).block;
  const int64_t held = block == nullptr ? 0 : static_cast<int64_t>(block->capacity_bytes);
  if (block != nullptr && held >= needed) return false;
  return state.grow(node.a, std::max({needed, all, std::min(2 * held, INT64_MAX - held)}));
}

// A point that others wait for.
bool control_point(RunState&, const Node&) { return false; }

// a: source slot, b: target slot. What the source owns becomes the target's, which first frees its
// own; a borrowed address is borrowed by both.
bool move_slot(RunState& state, const Node& node) {
  state.move(node.a, node.b);
  return false;
}

// a: stream, [b, c): events
template <Status (RunStreams::*step)(size_t stream, size_t event)>
bool each_event(RunState& state, const Node& node) {
  for (int32_t i = node.b; i < node.c; ++i) {
    const auto event = static_cast<size_t>(state.program().event_lists[static_cast<size_t>(i)]);
    Status status = (*state.streams.*step)(static_cast<size_t>(node.a), event);
    if (!status.is_ok()) return state.fail(std::move(status));
  }
  return false;
}

// a: slot of one stream, b: slot of another, which becomes one more owner
bool access_mem_cross_stream(RunState& state, const Node& node) {
  state.share(node.a, node.b);
  return false;
}

constexpr bool kMayPark = true;
constexpr bool kHoldsAddress = true;

constexpr KernelType kKernels[] = {
    {"InferShape", "", infer_shape},
    {"AllocMemory", "memory", alloc_memory, !kHoldsAddress, kMayPark},
    {"AllocModelOutput", "memory", alloc_model_output},
    {"AllocWorkspace", "memory", alloc_workspace, !kHoldsAddress, kMayPark},
    {"Launch", "launch", launch},
    {"HostCall", "", host_call},
    {"ExtentsTensor", "launch", extents_tensor},
    {"CopyMemory", "launch", copy_memory},
    {"FreeMemory", "memory", free_memory},
    {"FreeMemoryHoldAddr", "memory", free_memory_hold_addr, kHoldsAddress},
    {"SwitchNotify", "", switch_notify, false, false, Control::branch},
    {"BranchPivot", "", control_point, false, false, Control::pivot},
    {"BranchDone", "", control_point},
    {"WaitAnyone", "", control_point, false, false, Control::join},
    {"Enter", "", control_point},
    {"Exit", "", control_point},
    {"MoveSlot", "memory", move_slot},
    {"AllocMemHost", "memory", alloc_memory},
    {"CopyH2D", "memory", copy_h2d, !kHoldsAddress, kMayPark},
    {"MakeSureTensorAtDevice", "memory", copy_h2d, !kHoldsAddress, kMayPark},
    {"CalcDeviceCopySizes", "", calc_device_copy_sizes},
    {"AllocMemHbm", "memory", alloc_mem_hbm, !kHoldsAddress, kMayPark},
    {"ShareH2DCopyResult", "memory", share_h2d_copy_result},
    {"LaunchH2DCopy", "launch", launch_h2d_copy},
    {"CopyFlowLaunch", "memory", copy_flow_launch, !kHoldsAddress, kMayPark},
    {"CalcCopyFlowAllocSizes", "", calc_copy_flow_alloc_sizes},
    {"AllocCopyFlowHbm", "memory", alloc_copy_flow_hbm, !kHoldsAddress, kMayPark},
    {"PrepareCopyFlowResult", "memory", prepare_copy_flow_result},
    {"LaunchCopyFlowH2D", "launch", launch_copy_flow_h2d},
    {"CopyD2H", "memory", copy_d2h},
    {"EnsureTensorAtOutMemory", "memory", ensure_tensor_at_out_memory},
    {"SwitchTurn", "", switch_turn, false, false, Control::branch},
    {"PassExtents", "", pass_extents},
    {"EmptySlot", "memory", control_point},
    {"GrowMemory", "memory", grow_memory},
    {"SendEvents", "memory", each_event<&RunStreams::send>},
    {"WaitEvents", "memory", each_event<&RunStreams::wait>},
    {"AccessMemCrossStream", "memory", access_mem_cross_stream},
};

}  // namespace

std::span<const KernelType> kernel_types() { return kKernels; }

}  // namespace grainline
