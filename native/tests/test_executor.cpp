// Every executor computes what the node array from front to back computes, whatever fails when.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "program_fixture.h"

using namespace grainline;
using namespace grainline::test;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Counts what the whole test program asks for.
static std::atomic<size_t> news{0};
[[gnu::noinline]] void* operator new(size_t size_bytes) {
  ++news;
  if (void* memory = std::malloc(size_bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace {

constexpr ExecutorOptions kSequential{ExecutorKind::sequential, 0, 1};
constexpr ExecutorOptions kOthers[] = {
    {ExecutorKind::topological, 0, 1},  {ExecutorKind::priority_topological, 0, 1},
    {ExecutorKind::multi_worker, 2, 1}, {ExecutorKind::multi_worker, 3, 1},
    {ExecutorKind::multi_worker, 5, 1},
};

constexpr uint64_t kSeed = 20'241'130;

std::string label(const ExecutorOptions& options, uint64_t seed) {
  return "kind " + std::to_string(static_cast<int>(options.kind)) + ", workers " +
         std::to_string(options.workers) + ", seed " + std::to_string(seed);
}

}  // namespace

TEST(executor_all_kinds_compute_what_the_sequential_one_does) {
  for (uint64_t seed = kSeed; seed < kSeed + 30; ++seed) {
    std::mt19937_64 random(seed);
    const size_t nodes = std::vector<size_t>{1, 10, 100, 1000}[random() % 4];
    const auto program = random_program(random, nodes, 1 + random() % 4);
    ToyRun oracle(program, kSequential);
    EXPECT(oracle.run().is_ok(), "the oracle runs");
    for (const ExecutorOptions& options : kOthers) {
      ToyRun other(program, options);
      for (int turn = 0; turn < 5; ++turn) {
        EXPECT(other.run().is_ok(), label(options, seed).c_str());
        EXPECT(other.cells.cells == oracle.cells.cells, label(options, seed).c_str());
        EXPECT(other.cells.runs == oracle.cells.runs, "every node runs once");
      }
    }
  }
}

// In the order of the node array, and each before the next one begins.
TEST(R40_one_worker_runs_all_memory_nodes) {
  static std::atomic<int> inside{0};
  static std::vector<int64_t> order;
  static std::atomic<bool> has_met{false};
  const auto memory = [](RunState& state, const Node& node) {
    if (inside.fetch_add(1) != 0) has_met = true;
    order.push_back(static_cast<int64_t>(number_of(state, node)));
    const bool has_failed = toy(state, node);
    inside.fetch_sub(1);
    return has_failed;
  };
  static constexpr std::string_view kKernels[] = {"AllocMemory", "Launch", "FreeMemory",
                                                  "HostCall"};
  std::mt19937_64 random(kSeed);
  std::vector<ToyNode> nodes;
  for (size_t i = 0; i < 200; ++i) {
    const std::string_view kernel = kKernels[random() % 4];
    const bool is_memory = kernel == "AllocMemory" || kernel == "FreeMemory";
    nodes.push_back({kernel, {}, {}, is_memory ? KernelFn{memory} : KernelFn{toy}});
    for (size_t k = random() % 3; k-- > 0 && i > 0;)
      nodes.back().before.push_back(static_cast<int64_t>(random() % i));
  }
  const auto program = program_of(nodes);
  for (const int workers : {2, 3, 5}) {
    ToyRun run(program, {ExecutorKind::multi_worker, workers, 1});
    for (int turn = 0; turn < 20; ++turn) {
      order.clear();
      EXPECT(run.run().is_ok() && !has_met, "no memory node runs beside another");
      EXPECT(order.size() > 50 && std::ranges::is_sorted(order), "as in sequence");
    }
  }
}

TEST(executor_a_failure_at_any_node_keeps_its_status_and_the_next_run_is_right) {
  for (uint64_t seed = kSeed; seed < kSeed + 4; ++seed) {
    std::mt19937_64 random(seed);
    const auto program = random_program(random, 60);
    ToyRun oracle(program, kSequential);
    EXPECT(oracle.run().is_ok(), "the oracle runs");
    for (const ExecutorOptions& options : kOthers) {
      ToyRun other(program, options);
      for (int64_t node = 0; node < 60; ++node) {
        other.cells.fault = node;
        other.cells.code = node % 2 ? StatusCode::end_of_sequence : StatusCode::kernel_failed;
        const Status status = other.run();
        EXPECT(status.code() == other.cells.code, label(options, seed).c_str());
        EXPECT(status.message().find("toy " + std::to_string(node)) != std::string_view::npos,
               "the message is the failed node's");
        EXPECT(other.state().failed_node == node, "the failed node is named");
        for (const int64_t watcher : program->watchers.row(static_cast<size_t>(node)))
          EXPECT(other.cells.runs[static_cast<size_t>(watcher)] == 0, "watchers do not run");
        other.cells.fault = -1;
        EXPECT(other.run().is_ok() && other.cells.cells == oracle.cells.cells,
               "the run after a failure is right");
      }
    }
  }
}

TEST(executor_a_cancelled_run_says_so) {
  std::mt19937_64 random(kSeed);
  const auto program = random_program(random, 100);
  const std::atomic<int32_t> set{1};
  for (const ExecutorOptions& options : kOthers) {
    ToyRun run(program, options);
    run.state().terminate = &set;
    EXPECT(run.run().code() == StatusCode::cancelled, label(options, kSeed).c_str());
    EXPECT(run.run().is_ok(), "the flag belongs to one run");
  }
}

TEST(executor_choice_follows_the_program) {
  ExecutorKind kind;
  std::mt19937_64 random(kSeed);
  const auto plain = random_program(random, 10);
  EXPECT(choose_kind(*plain, {}, &kind).is_ok() && kind == ExecutorKind::sequential, "no switch");
  const Status refused = choose_kind(*plain, {ExecutorKind::multi_worker, 1, 0}, &kind);
  EXPECT(refused.code() == StatusCode::invalid_argument, "one worker is not several");
  auto loop = *program_of({{"WaitAnyone", {}, {}}});
  EXPECT(choose_kind(loop, {}, &kind).is_ok() && kind == ExecutorKind::topological, "a join");
  loop.launches.resize(5);
  EXPECT(choose_kind(loop, {}, &kind).is_ok() && kind == ExecutorKind::priority_topological,
         "many launches");
  EXPECT(
      choose_kind(loop, kSequential, &kind).is_ok() && kind == ExecutorKind::priority_topological,
      "a loop has no fixed order");
  EXPECT(choose_kind(loop, {ExecutorKind::multi_worker, 3, 0}, &kind).is_ok() &&
             kind == ExecutorKind::multi_worker,
         "several workers: their caller runs the loop");
}

TEST(executor_events_come_in_pairs_and_respect_the_edges) {
  std::mt19937_64 random(kSeed);
  const auto program = random_program(random, 200);
  for (const ExecutorOptions& options : kOthers) {
    ToyRun run(program, options);
    EventLog log(1000);
    run.state().observer = &log;
    EXPECT(run.run().is_ok(), "the run");
    std::vector<size_t> began(200), ended(200);
    const auto entries = log.entries();
    EXPECT(entries.size() == 400 && log.lost() == 0, "two events per node");
    for (size_t i = 0; i < entries.size(); ++i) {
      const auto node = static_cast<size_t>(entries[i].node);
      (entries[i].kind == EventKind::node_started ? began : ended)[node] = i + 1;
    }
    for (size_t node = 0; node < 200; ++node) {
      EXPECT(0 < began[node] && began[node] < ended[node], "a node starts and ends");
      for (const int64_t watcher : program->watchers.row(node))
        EXPECT(ended[node] < began[static_cast<size_t>(watcher)], "edges hold in the log");
    }
  }
}

TEST(executor_one_worker_infers_all_shapes) {
  std::vector<ToyNode> nodes;
  for (int i = 0; i < 20; ++i) nodes.push_back({i % 2 ? "HostCall" : "InferShape", {}, {}});
  const auto program = program_of(nodes);
  const WorkerPlan plan(*program, 5);
  bool is_spread = false;
  for (size_t node = 0; node < 20; ++node) {
    if (node % 2 == 0) EXPECT(plan.worker_of[node] == 2, "shapes are inferred one after the other");
    is_spread |= node % 2 == 1 && plan.worker_of[node] > 2;
  }
  EXPECT(is_spread, "the other normal nodes are dealt in turn");
}

TEST(executor_a_step_waits_only_where_nothing_implies_it) {
  // Two memory nodes, then a launch of both, then a launch of the first: one wait is enough.
  const auto program = program_of({{"AllocMemory", {}, {}},
                                   {"AllocMemory", {}, {}},
                                   {"Launch", {0, 1}, {}},
                                   {"Launch", {0, 2}, {}},
                                   {"FreeMemory", {2, 3}, {}}});
  const WorkerPlan plan(*program, 3);
  EXPECT(plan.workers[WorkerPlan::kCaller].waits.size() == 1, "the later allocation implies all");
  EXPECT(plan.workers[WorkerPlan::kMemory].waits.size() == 1, "the later launch implies the other");
  EXPECT(!plan.workers[WorkerPlan::kMemory].steps[0].is_awaited, "nobody awaits the first");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(executor_runs_allocate_nothing) {
  std::mt19937_64 random(kSeed);
  const auto program = random_program(random, 40);
  for (const ExecutorOptions& options : kOthers) {
    ToyRun run(program, options);
    EXPECT(run.run().is_ok(), "the first run makes threads");
    bool are_ok = true;
    const size_t before = news;
    for (int turn = 0; turn < 300; ++turn) are_ok &= run.run().is_ok();
    const bool is_quiet = news == before;
    EXPECT(are_ok, label(options, kSeed).c_str());
    EXPECT(is_quiet, label(options, kSeed).c_str());
  }
}

// Frees ahead of their launches on a worker of their own: every run is an epoch of the relations.
TEST(R30_R56_ten_thousand_runs_with_relations_allocate_nothing) {
  std::vector<ToyNode> nodes;
  for (int64_t i = 0; i < 30; i += 3) {
    nodes.push_back({"AllocMemory", {}, {}});
    nodes.push_back({"FreeMemoryHoldAddr", {i}, {i + 2}});
    nodes.push_back({"Launch", {i}, {}});
  }
  ToyRun run(program_of(nodes), {ExecutorKind::multi_worker, 3, 1});
  EXPECT(run.run().is_ok(), "the first run makes threads");
  bool are_ok = true;
  const size_t before = news;
  for (int turn = 0; turn < 10'000; ++turn) are_ok &= run.run().is_ok();
  const bool is_quiet = news == before;
  EXPECT(are_ok, "every run");
  EXPECT(is_quiet, "nothing was allocated");
}

// Long enough that whoever waits for it looks whether the others can move.
TEST(executor_a_long_wait_allocates_nothing) {
  const auto slow = [](RunState& state, const Node& node) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return toy(state, node);
  };
  const auto program = program_of({{"FreeMemory", {}, {}, slow},
                                   {"Launch", {0}, {}},
                                   {"Launch", {1}, {}, slow},
                                   {"FreeMemory", {2}, {}}});
  for (const int workers : {2, 3}) {
    ToyRun run(program, {ExecutorKind::multi_worker, workers, 1});
    EXPECT(run.run().is_ok(), "the first run makes threads");
    const size_t before = news;
    const bool is_ok = run.run().is_ok();
    const bool is_quiet = news == before;
    EXPECT(is_ok, "the run");
    EXPECT(is_quiet, "nothing was allocated");
  }
}
#endif

// ---- control flow -------------------------------------------------------------------------------

namespace {

// Reads the branch from the bytes of its slot (a); b branches.
std::byte* data_of(RunState& state, int32_t slot) {
  return state.slots[static_cast<size_t>(slot)].data;
}

bool count_down(RunState& state, const Node& node) {
  auto* left = reinterpret_cast<int64_t*>(data_of(state, node.a));
  *left -= 1;
  auto& toys = *static_cast<ToyCells*>(state.host.context);
  ++toys.runs[number_of(state, node)];
  return false;
}

bool is_left(RunState& state, const Node& node) {
  const auto* left = reinterpret_cast<const int64_t*>(data_of(state, node.a));
  *reinterpret_cast<uint8_t*>(data_of(state, node.b)) = *left > 0;
  auto& toys = *static_cast<ToyCells*>(state.host.context);
  ++toys.runs[number_of(state, node)];
  return false;
}

constexpr ExecutorKind kKindsWithFrames[] = {
    ExecutorKind::topological, ExecutorKind::priority_topological, ExecutorKind::multi_worker};

KernelFn real(std::string_view name) {
  return kernel_types()[static_cast<size_t>(kernel_number(name))].fn;
}

}  // namespace

TEST(executor_a_switch_runs_one_branch) {
  // 0 switch over 3 branches; 1-3 pivots; 4-6 work of the branches; 7 join; 8 behind
  std::vector<ToyNode> nodes = {{"SwitchNotify", {}, {}, real("SwitchNotify"), 0, 3, 0}};
  for (int32_t b = 0; b < 3; ++b) nodes.push_back({"BranchPivot", {0}, {}, toy, b});
  for (int64_t b = 0; b < 3; ++b) nodes.push_back({"Launch", {1 + b}, {}});
  nodes.push_back({"WaitAnyone", {4, 5, 6}, {}});
  nodes.push_back({"HostCall", {7}, {}});
  const auto program = program_of(nodes, 1, {{0, 8}});
  for (const auto kind : kKindsWithFrames) {
    ToyRun run(program, {kind, 3, 1});
    for (int64_t chosen : {0, 1, 2, 7, -3}) {
      run.state().slots[0].data = reinterpret_cast<std::byte*>(&chosen);
      EXPECT(run.run().is_ok(), "the run");
      const int64_t branch = chosen < 0 || chosen > 2 ? 2 : chosen;
      for (int64_t b = 0; b < 3; ++b)
        EXPECT(run.cells.runs[static_cast<size_t>(4 + b)] == (b == branch), "one branch");
      EXPECT(run.cells.runs[7] == 1 && run.cells.runs[8] == 1, "the join passes once");
    }
    run.state().slots[0].data = nullptr;
  }
}

TEST(executor_a_loop_turns_as_often_as_its_condition_says) {
  // 0 Enter; 1 join; 2 condition; 3 switch; 4 pivot of the body; 5 body; 6 done (back to 1);
  // 7 pivot of the way out; 8 Exit
  const auto program = program_of(
      {
          {"Enter", {}, {}},
          {"WaitAnyone", {0, 6}, {}},
          {"HostCall", {1}, {}, is_left, 0, 1},
          {"SwitchNotify", {2}, {}, real("SwitchNotify"), 1, 2, 1},
          {"BranchPivot", {3}, {}, toy, 0},
          {"Launch", {4}, {}, count_down, 0},
          {"BranchDone", {5}, {}},
          {"BranchPivot", {3}, {}, toy, 1},
          {"Exit", {7}, {}},
      },
      2, {{0, 9}});
  for (const auto kind : kKindsWithFrames) {
    ToyRun run(program, {kind, 3, 1});
    for (const uint32_t turns : {0u, 1u, 17u, 1000u}) {
      int64_t left = turns;
      uint8_t flag = 0;
      run.state().slots[0].data = reinterpret_cast<std::byte*>(&left);
      run.state().slots[1].data = reinterpret_cast<std::byte*>(&flag);
      EXPECT(run.run().is_ok() && left == 0, "the loop ends");
      EXPECT(run.cells.runs[5] == turns && run.cells.runs[2] == turns + 1, "turns of the loop");
      EXPECT(run.cells.runs[8] == 1, "the way out is taken once");
      // Fails in the middle of a turn, then again from the start.
      run.cells.fault = 4;
      left = 3;
      EXPECT(run.run().code() == StatusCode::kernel_failed, "the body fails");
      run.cells.fault = -1;
      EXPECT(run.run().is_ok() && left == 0 && run.cells.runs[5] == 3, "and then does not");
    }
    run.state().slots[0].data = run.state().slots[1].data = nullptr;
  }
}
