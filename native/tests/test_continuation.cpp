// Allocations that would have to wait for launches are parked; nothing hangs.
//
// Memory is counted in units; the source has a fixed capacity. Two idle chunks of 3 units each lie
// in the pool when the graph begins, as in the examples that the executor must survive: block a is
// used by P and again, in place, by L, and its Free runs ahead of both.
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "capped_source.h"
#include "check.h"
#include "program_fixture.h"

using namespace grainline;
using namespace grainline::test;

namespace {

constexpr size_t kUnit = 1 << 20;

// a: slot, b: units
bool allocate(RunState& state, const Node& node) {
  return state.allocate(node.a, static_cast<int64_t>(node.b) * static_cast<int64_t>(kUnit)) ||
         toy(state, node);
}
bool free_held(RunState& state, const Node& node) {
  state.free_holding_address(node.a);
  return toy(state, node);
}

constexpr int32_t kSlotA = 0, kSlotM = 1, kSlotIdle = 2;

// The two idle chunks; 4 nodes.
std::vector<ToyNode> preparation() {
  return {{"AllocMemory", {}, {}, allocate, kSlotIdle, 3},
          {"AllocMemory", {}, {}, allocate, kSlotIdle + 1, 3},
          {"FreeMemory", {0}, {}, free_held, kSlotIdle},
          {"FreeMemory", {1}, {}, free_held, kSlotIdle + 1}};
}

struct Case {
  std::vector<ToyNode> nodes;
  size_t capacity_units;
  std::vector<FrameRow> frames = {};
};

// One run on `workers` workers. The memory must be back afterwards.
Status run_case(const Case& test, int workers, EventLog* log = nullptr) {
  CappedSource source(test.capacity_units * kUnit);
  const auto program = program_of(test.nodes, 8, test.frames);
  const WorkerPlan plan(*program, static_cast<size_t>(workers));
  CpuDevice device(source);
  RunState state(program, device);
  state.walk = std::make_unique<WorkerTeam>(plan, *program);
  ToyCells cells(*program);
  state.host.context = &cells;
  state.observer = log;
  const std::atomic<int32_t> never{0};
  state.terminate = &never;
  for (int turn = 0; turn < 3; ++turn) {
    const bool has_failed = state.walk->run(state);
    if (has_failed) {
      state.clean_up();
      return std::move(state.status);
    }
    state.clean_up();
    state.allocator.trim();
    EXPECT(source.held_bytes() == 0, "all memory comes back");
  }
  return {};
}

// Launch order P, Q, L; strict order as edges. M (7 units) fits only after a recycle.
Case example_1(bool with_gate) {
  Case test{preparation(), 13};
  auto& n = test.nodes;
  n.push_back({"AllocMemory", {2, 3}, {}, allocate, kSlotA, 6});              // 4 A
  n.push_back({"Launch", {4}, {}});                                           // 5 P
  if (with_gate) n.push_back({"AllocMemory", {4}, {}, allocate, kSlotM, 7});  // 6 M before F
  const auto free = static_cast<int64_t>(n.size());
  const int64_t launch_l = free + (with_gate ? 2 : 3);
  n.push_back({"FreeMemoryHoldAddr", {4}, {5, launch_l}, free_held, kSlotA});
  if (with_gate) n.back().before.push_back(6);
  if (!with_gate) n.push_back({"AllocMemory", {4}, {}, allocate, kSlotM, 7});  // M
  const int64_t memory_m = with_gate ? 6 : free + 1;
  n.push_back({"Launch", {memory_m, 5}, {}});      // Q
  n.push_back({"Launch", {4, launch_l - 1}, {}});  // L
  n.push_back({"FreeMemory", {launch_l - 1}, {}, free_held, kSlotM});
  return test;
}

// Launch order P, L, R. L also needs X, a memory node that stands behind M.
Case example_2() {
  Case test{preparation(), 13};
  auto& n = test.nodes;
  n.push_back({"AllocMemory", {2, 3}, {}, allocate, kSlotA, 6});        // 4 A
  n.push_back({"Launch", {4}, {}});                                     // 5 P
  n.push_back({"FreeMemoryHoldAddr", {4}, {5, 9}, free_held, kSlotA});  // 6 F
  n.push_back({"AllocMemory", {6}, {}, allocate, kSlotM, 7});           // 7 M
  n.push_back({"MoveSlot", {4}, {}});                                   // 8 X
  n.push_back({"Launch", {4, 5, 8}, {}});                               // 9 L
  n.push_back({"Launch", {7, 9}, {}});                                  // 10 R
  n.push_back({"FreeMemory", {10}, {}, free_held, kSlotM});             // 11
  return test;
}

// A loop's frame that takes M (7 units) stands in front of L, and F in front of the frame: without
// regard to the proof, or behind it as the proof demands.
Case frame_before_launch(bool is_proven) {
  Case test{preparation(), 13};
  auto& n = test.nodes;
  n.push_back({"AllocMemory", {2, 3}, {}, allocate, kSlotA, 6});  // 4 A
  n.push_back({"Launch", {4}, {}});                               // 5 P
  const int64_t free = is_proven ? 9 : 6, enter = is_proven ? 6 : 7;
  if (!is_proven) n.push_back({"FreeMemoryHoldAddr", {4}, {5, 10}, free_held, kSlotA});
  n.push_back({"Enter", {5}, {}});
  n.push_back({"AllocMemory", {enter}, {}, allocate, kSlotM, is_proven ? 1 : 7});
  n.push_back({"Exit", {enter + 1}, {}});
  if (is_proven) n.push_back({"FreeMemoryHoldAddr", {4, enter + 2}, {5, 10}, free_held, kSlotA});
  n.push_back({"Launch", {4, 5}, {}});                                    // 10 L
  n.push_back({"FreeMemory", {enter + 2, free}, {}, free_held, kSlotM});  // 11
  test.frames = {{enter, enter + 3}};
  return test;
}

}  // namespace

TEST(continuation_a_frame_never_waits_for_launches) {
  for (const int workers : {2, 3, 4}) {
    const Status proven = run_case(frame_before_launch(true), workers);
    EXPECT(proven.is_ok(), proven.text().c_str());
    const Status unproven = run_case(frame_before_launch(false), workers);
    EXPECT(unproven.code() == StatusCode::internal, "what no proof allows is reported");
    EXPECT(
        unproven.text().find("node 7 'toy' (toy) waits for launches; node 10") != std::string::npos,
        unproven.text().c_str());
  }
}

TEST(continuation_a_later_memory_node_runs_while_an_allocation_is_parked) {
  for (const int workers : {2, 3, 4}) {
    EventLog log(1000);
    const Status status = run_case(example_2(), workers, &log);
    EXPECT(status.is_ok(), status.text().c_str());
    std::map<EventKind, int> counts;
    bool is_overtaken = false;
    for (const EventLog::Entry& entry : log.entries()) {
      if (entry.node == 7) ++counts[entry.kind];
      is_overtaken |= entry.node == 8 && entry.kind == EventKind::node_started &&
                      counts[EventKind::node_parked] > counts[EventKind::node_resumed];
      if (entry.kind == EventKind::node_parked || entry.kind == EventKind::node_resumed)
        EXPECT(entry.worker == WorkerPlan::kMemory, "on the memory worker");
    }
    EXPECT(counts[EventKind::node_ended] == 3, "M succeeds in every run");
    EXPECT(counts[EventKind::node_resumed] == counts[EventKind::node_parked],
           "each park has exactly one resume");
    if (counts[EventKind::node_parked] > 0) EXPECT(is_overtaken, "X runs before M is resumed");
  }
}

TEST(continuation_when_nothing_can_move_the_run_ends_with_out_of_memory) {
  for (const int workers : {2, 3, 4}) {
    const Status status = run_case(example_1(false), workers);
    EXPECT(status.code() == StatusCode::out_of_memory, status.text().c_str());
    for (const char* part : {"node 7", "waits for launches", "node 9", "node 8"})
      EXPECT(status.message().find(part) != std::string_view::npos, part);
  }
}

TEST(continuation_with_the_order_of_the_gate_the_same_graph_succeeds) {
  for (const int workers : {2, 3, 4}) {
    const Status status = run_case(example_1(true), workers);
    EXPECT(status.is_ok(), status.text().c_str());
  }
}

TEST(continuation_an_abort_wakes_a_parked_allocation_with_the_first_status) {
  const auto fails = [](RunState& state, const Node&) {
    return state.fail(StatusCode::end_of_sequence, "the end");
  };
  for (const int workers : {2, 3, 4}) {
    Case test = example_2();
    test.nodes[9].fn = fails;  // L
    const Status status = run_case(test, workers);
    EXPECT(status.code() == StatusCode::end_of_sequence && status.message() == "the end",
           status.text().c_str());
  }
}
