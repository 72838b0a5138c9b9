// Branches and loops with several workers: the caller runs them whole, the others go on beside
// them.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/relax.h"
#include "check.h"
#include "program_fixture.h"

using namespace grainline;
using namespace grainline::test;

namespace {

constexpr uint64_t kSeed = 20'261'130;

KernelFn real(std::string_view name) {
  return kernel_types()[static_cast<size_t>(kernel_number(name))].fn;
}

bool slow_toy(RunState& state, const Node& node) {
  const uint64_t pauses = mixed(kSeed, number_of(state, node)) % 2000;
  for (uint64_t i = 0; i < pauses; ++i) cpu_relax();
  return toy(state, node);
}

struct Graph {
  std::vector<ToyNode> nodes;
  std::vector<FrameRow> frames;
};

void add_nodes(std::mt19937_64& random, std::vector<ToyNode>* nodes,
               const std::vector<int64_t>& known, std::vector<int64_t>* made) {
  static constexpr std::string_view kKernels[] = {"FreeMemory", "Launch", "HostCall"};
  for (size_t i = random() % 8; i-- > 0;) {
    ToyNode node{kKernels[random() % 3], {}, {}, slow_toy};
    for (size_t k = random() % 3; k-- > 0 && !known.empty();)
      node.before.push_back(known[random() % known.size()]);
    made->push_back(static_cast<int64_t>(nodes->size()));
    nodes->push_back(std::move(node));
  }
}

// Nodes of all workers, then a branch, again and again. The flag in slot 0 says which branch.
Graph random_graph(std::mt19937_64& random) {
  Graph graph;
  std::vector<ToyNode>& nodes = graph.nodes;
  std::vector<int64_t> outside;
  add_nodes(random, &nodes, {}, &outside);
  for (size_t frames = 1 + random() % 3; frames-- > 0;) {
    const auto begin = static_cast<int64_t>(nodes.size());
    nodes.push_back({"SwitchNotify", {}, {}, real("SwitchNotify"), 0, 2, 1});
    if (!outside.empty()) nodes.back().before.push_back(outside[random() % outside.size()]);
    std::vector<int64_t> ends;
    for (int32_t branch = 0; branch < 2; ++branch) {
      std::vector<int64_t> inside{static_cast<int64_t>(nodes.size())};
      nodes.push_back({"BranchPivot", {begin}, {}, toy, branch});
      for (int more = 0; more < 3; ++more) {
        ToyNode node{
            more == 1 ? "FreeMemory" : "Launch", {inside[random() % inside.size()]}, {}, slow_toy};
        inside.push_back(static_cast<int64_t>(nodes.size()));
        nodes.push_back(std::move(node));
      }
      ends.push_back(static_cast<int64_t>(nodes.size()));
      nodes.push_back({"BranchDone", inside, {}});
    }
    nodes.push_back({"WaitAnyone", ends, {}});
    graph.frames.push_back({begin, static_cast<int64_t>(nodes.size())});
    outside.push_back(static_cast<int64_t>(nodes.size()) - 1);
    add_nodes(random, &nodes, outside, &outside);
  }
  return graph;
}

// From its first event to its last no memory node of the outside has one, and those in front of the
// frame are those that came before.
bool takes_its_turn(const Graph& graph, const FrameRow& frame,
                    const std::vector<EventLog::Entry>& log) {
  const auto is_inside = [&](int64_t node) { return frame.begin <= node && node < frame.end; };
  const auto is_of_frame = [&](const EventLog::Entry& entry) { return is_inside(entry.node); };
  const auto first = std::ranges::find_if(log, is_of_frame);
  const auto last = std::find_if(log.rbegin(), log.rend(), is_of_frame).base();
  for (auto entry = log.begin(); entry != log.end(); ++entry) {
    const bool is_memory = graph.nodes[static_cast<size_t>(entry->node)].kernel == "FreeMemory";
    if (!is_memory || is_inside(entry->node)) continue;
    if (entry->node < frame.begin ? entry >= first : entry < last) return false;
  }
  return true;
}

// What stands beside a loop: waits until the other one has begun, and no longer than a run lasts.
std::atomic<bool> has_turned, was_called;

bool await(const std::atomic<bool>& flag, RunState& state) {
  for (int64_t spins = 0; !flag.load(); ++spins) {
    if (spins > 2'000'000'000) return state.fail(StatusCode::internal, "the other one never comes");
    cpu_relax();
  }
  return false;
}
bool turn_until_called(RunState& state, const Node&) {
  has_turned = true;
  return await(was_called, state);
}
bool call_beside(RunState& state, const Node&) {
  if (await(has_turned, state)) return true;
  was_called = true;
  return false;
}
bool fail_beside(RunState& state, const Node&) {
  return await(has_turned, state) || state.fail(StatusCode::kernel_failed, "beside the loop");
}
bool turn_only(RunState&, const Node&) {
  has_turned = true;
  return false;
}
std::atomic<int32_t> cancels;
bool cancel_inside(RunState&, const Node&) {
  cancels = 1;
  return false;
}

// 0 Enter; 1 join; 2 body; 3 switch on slot 0 (true: again); 4 pivot of another turn (back to 1);
// 5 pivot of the way out; 6 Exit; 7 a call that waits for nothing; 8 memory
std::shared_ptr<const Program> loop_beside_call(KernelFn body, KernelFn call) {
  return program_of(
      {
          {"Enter", {}, {}},
          {"WaitAnyone", {0, 4}, {}},
          {"Launch", {1}, {}, body},
          {"SwitchNotify", {2}, {}, real("SwitchNotify"), 0, 2, 1},
          {"BranchPivot", {3}, {}, toy, 0},
          {"BranchPivot", {3}, {}, toy, 1},
          {"Exit", {5}, {}},
          {"HostCall", {}, {}, call},
          {"FreeMemory", {6}, {}},
      },
      1, {{0, 7}});
}

// Of that program, with this flag in slot 0.
Status run_beside(KernelFn body, KernelFn call, bool turns_again, int* failed_node) {
  ToyRun run(loop_beside_call(body, call), {ExecutorKind::multi_worker, 3, 1});
  has_turned = was_called = false;
  cancels = 0;
  run.state().terminate = &cancels;
  auto flag = static_cast<uint8_t>(turns_again);
  run.state().slots[0].data = reinterpret_cast<std::byte*>(&flag);
  Status status = run.run();
  *failed_node = run.state().failed_node;
  run.state().slots[0].data = nullptr;
  return status;
}

}  // namespace

TEST(frames_take_turns_with_the_memory_worker) {
  for (uint64_t seed = kSeed; seed < kSeed + 40; ++seed) {
    std::mt19937_64 random(seed);
    const Graph graph = random_graph(random);
    const auto program = program_of(graph.nodes, 1, graph.frames);
    ToyRun oracle(program, {ExecutorKind::priority_topological, 0, 1});
    ToyRun run(program, {ExecutorKind::multi_worker, 2 + static_cast<int>(seed % 3), 1});
    for (uint8_t flag : {0, 1, 1, 0}) {
      EventLog log(4 * graph.nodes.size());
      run.state().observer = &log;
      for (ToyRun* each : {&oracle, &run}) {
        each->state().slots[0].data = reinterpret_cast<std::byte*>(&flag);
        EXPECT(each->run().is_ok(), "the run");
        each->state().slots[0].data = nullptr;
      }
      run.state().observer = nullptr;
      EXPECT(run.cells.cells == oracle.cells.cells && run.cells.runs == oracle.cells.runs,
             ("as one worker, seed " + std::to_string(seed)).c_str());
      for (const FrameRow& frame : graph.frames)
        EXPECT(takes_its_turn(graph, frame, log.entries()),
               ("nobody else touches memory, seed " + std::to_string(seed)).c_str());
    }
  }
}

TEST(frames_leave_the_other_workers_free) {
  int failed_node = -1;
  const Status status = run_beside(turn_until_called, call_beside, false, &failed_node);
  EXPECT(status.is_ok(), status.text().c_str());
}

TEST(frames_end_when_another_worker_fails) {
  int failed_node = -1;
  const Status status = run_beside(turn_only, fail_beside, true, &failed_node);
  EXPECT(status.code() == StatusCode::kernel_failed && failed_node == 7,
         "a loop without an end is left, and the first failure is kept");
}

TEST(frames_end_when_the_run_is_cancelled) {
  int failed_node = -1;
  const Status status = run_beside(cancel_inside, toy, true, &failed_node);
  EXPECT(status.code() == StatusCode::cancelled, "a loop without an end is left");
}

TEST(frames_name_the_node_that_failed_inside) {
  std::mt19937_64 random(kSeed);
  for (int turn = 0; turn < 10; ++turn) {
    const Graph graph = random_graph(random);
    ToyRun run(program_of(graph.nodes, 1, graph.frames), {ExecutorKind::multi_worker, 3, 1});
    uint8_t flag = 1;  // branch 0
    for (const FrameRow& frame : graph.frames)
      for (int64_t node = frame.begin + 1; node < frame.begin + 5; ++node) {
        run.state().slots[0].data = reinterpret_cast<std::byte*>(&flag);
        run.cells.fault = node;
        EXPECT(run.run().code() == StatusCode::kernel_failed, "the failure");
        EXPECT(run.state().failed_node == node, "the node of the frame is blamed");
        run.cells.fault = -1;
        run.state().slots[0].data = reinterpret_cast<std::byte*>(&flag);
        EXPECT(run.run().is_ok(), "the next run is right");
        EXPECT(run.cells.runs[static_cast<size_t>(frame.end) - 1] == 1, "it ends");
      }
    run.state().slots[0].data = nullptr;
  }
}
