// stress_liveness [first seed] [count]: random graphs on the host's executors, in little memory.
//
// Every graph has Frees that run ahead of the launches they are related to, launches in place and
// without a block of their own, workspaces (several Frees per launch), late readers, and nodes of
// the normal worker in front of launches. Launches read and write their blocks, so a block that is
// reused too early changes what later launches compute. For each graph, several runs must
//   end (an alarm names the seed otherwise),
//   compute what the sequential executor computes with the original edges,
//   succeed wherever that one succeeds with the same capacity,
//   after a failure or an end of sequence at any node, report that status, leak nothing, and
//   succeed the next time.
// With every eighth graph comes one of real kernels with loops and branches inside each other
// (flow_graph.h), for every kind of executor. Its runs must end, return what a walk over the
// structure gives, succeed with the memory that is enough for one worker, and do the same after
// failures, which may come in any turn. Frees of the graph itself run ahead of launches here too.
// log FILE: for each graph one line of JSON with its tasks and the events of one run.
// unproven, unproven-frames: Frees (of graphs with frames) stand right behind their allocations,
// without regard to the proof; the program must then complain, which shows that it can.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/relax.h"
#include "capped_source.h"
#include "copy_bench.h"
#include "flow_graph.h"
#include "pool_fixture.h"
#include "static_order.h"

using namespace grainline;
using namespace grainline::test;

namespace {

constexpr size_t kUnit = CappedSource::kPoisonStride;
constexpr unsigned kPatienceSeconds = kIsThreadSanitized || kIsAddressSanitized ? 600 : 60;
volatile uint64_t current_seed = 0;

// ---- graphs -------------------------------------------------------------------------------------

struct StressNode {
  std::string_view kernel;
  std::vector<int64_t> before;   // with the original edges
  std::vector<int64_t> related;  // of a Free: those of `before` that are launches
  int32_t slot = -1, units = 0;  // of an allocation and a Free
  std::vector<int32_t> reads, writes;
};

struct Graph {
  std::vector<StressNode> nodes;
  int32_t slots = 0;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  Graph graph() {
    const int operators = 3 + static_cast<int>(random_() % 9);
    for (int i = 0; i < operators; ++i) {
      drop(0.4);
      add_operator();
    }
    drop(1.0);
    return std::move(graph_);
  }

 private:
  struct Block {
    int32_t slot, units;
    int64_t allocation;
    std::vector<int64_t> users;
  };

  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  int64_t add(StressNode node) {
    graph_.nodes.push_back(std::move(node));
    return static_cast<int64_t>(graph_.nodes.size()) - 1;
  }
  std::vector<int64_t> late() {
    if (graph_.nodes.empty() || !chance(0.4)) return {};
    return {static_cast<int64_t>(random_() % graph_.nodes.size())};
  }

  Block block() {
    Block made{graph_.slots++, 1 + static_cast<int32_t>(random_() % 3), 0, {}};
    made.allocation = add({"AllocMemory", late(), {}, made.slot, made.units, {}, {}});
    return made;
  }

  void free(const Block& block) {
    StressNode node{"FreeMemoryHoldAddr", block.users, block.users, block.slot, 0, {}, {}};
    node.before.push_back(block.allocation);
    add(std::move(node));
  }

  void drop(double p) {
    std::vector<Block> kept;
    for (Block& block : live_) chance(p) ? free(block) : kept.push_back(std::move(block));
    live_ = std::move(kept);
  }

  void add_operator() {
    StressNode launch{"Launch", {}, {}, -1, 0, {}, {}};
    if (chance(0.4)) launch.before.push_back(add({"HostCall", late(), {}, -1, 0, {}, {}}));
    if (chance(0.2)) launch.before.push_back(add({"MoveSlot", late(), {}, -1, 0, {}, {}}));
    std::vector<Block*> touched;
    for (Block& block : live_)
      if (touched.size() < 2 && chance(0.5)) {
        launch.reads.push_back(block.slot);
        touched.push_back(&block);
      }
    const bool is_in_place = !touched.empty() && chance(0.3);
    if (is_in_place) launch.writes.push_back(touched.front()->slot);
    Block own = is_in_place ? Block{} : block();
    Block workspace = chance(0.3) ? block() : Block{};
    if (!is_in_place) touched.push_back(&own);
    if (!is_in_place) launch.writes.push_back(own.slot);
    const bool has_workspace = workspace.units > 0;
    if (has_workspace) touched.push_back(&workspace);
    if (has_workspace) launch.writes.push_back(workspace.slot);
    for (const Block* block : touched) launch.before.push_back(block->allocation);
    if (last_launch_ >= 0) launch.before.push_back(last_launch_);  // launches keep one order
    last_launch_ = add(std::move(launch));
    for (Block* block : touched) block->users.push_back(last_launch_);
    if (has_workspace) free(workspace);
    if (!is_in_place) live_.push_back(std::move(own));
  }

  std::mt19937_64 random_;
  Graph graph_;
  std::vector<Block> live_;
  int64_t last_launch_ = -1;
};

// The most units that are held at a time when one node runs after the other.
size_t peak_units(const Graph& graph) {
  std::vector<int32_t> held(static_cast<size_t>(graph.slots));
  int32_t live = 0, peak = 0;
  for (const size_t i : static_order(graph.nodes, Frees::in_sequence)) {
    const StressNode& node = graph.nodes[i];
    if (node.slot < 0) continue;
    int32_t& units = held[static_cast<size_t>(node.slot)];
    live += node.units - units;
    units = node.units;
    peak = std::max(peak, live);
  }
  return static_cast<size_t>(peak);
}

// ---- what the nodes do --------------------------------------------------------------------------

struct Stage {
  const Graph* graph = nullptr;
  std::vector<size_t> order;      // static position -> node of the graph
  std::vector<uint64_t> results;  // per node of the graph
  std::vector<int> delays;        // pauses in front of each node
  int64_t fault = -1;             // node of the graph
  StatusCode code = StatusCode::kernel_failed;
};

void compute(RunState& state, const StressNode& node, uint64_t& result) {
  const auto cell = [&](int32_t slot) { return state.slots[static_cast<size_t>(slot)].data; };
  for (const int32_t slot : node.reads) {
    uint64_t value;
    std::memcpy(&value, cell(slot), sizeof value);
    result = mixed(result, value);
  }
  for (const int32_t slot : node.writes) std::memcpy(cell(slot), &result, sizeof result);
}

bool stress(RunState& state, const Node& row) {
  Stage& stage = *static_cast<Stage*>(state.host.context);
  const size_t self = stage.order[number_of(state, row)];
  const StressNode& node = stage.graph->nodes[self];
  for (int i = 0; i < stage.delays[self]; ++i) cpu_relax();
  if (stage.fault == static_cast<int64_t>(self)) return state.fail(stage.code, "injected");
  if (node.units > 0)
    return state.allocate(node.slot, int64_t{node.units} * static_cast<int64_t>(kUnit));
  if (node.slot >= 0) {
    state.free_holding_address(node.slot);
  } else if (node.kernel == "Launch") {
    uint64_t result = self + 1;
    compute(state, node, result);
    stage.results[self] = result;
  }
  return false;
}

std::shared_ptr<const Program> program_of_graph(const Graph& graph,
                                                const std::vector<size_t>& order,
                                                bool has_relations) {
  std::vector<int64_t> place(order.size());
  for (size_t at = 0; at < order.size(); ++at) place[order[at]] = static_cast<int64_t>(at);
  std::vector<ToyNode> toys;
  for (const size_t index : order) {
    const StressNode& node = graph.nodes[index];
    const bool is_plain_free = !has_relations && node.kernel == "FreeMemoryHoldAddr";
    ToyNode toy{is_plain_free ? "FreeMemory" : node.kernel, {}, {}, stress};
    for (const int64_t other : node.before) {
      const bool is_related = has_relations && std::ranges::count(node.related, other) > 0;
      (is_related ? toy.relations : toy.before).push_back(place[static_cast<size_t>(other)]);
    }
    std::ranges::sort(toy.relations);
    toys.push_back(std::move(toy));
  }
  return program_of(toys, static_cast<size_t>(graph.slots));
}

// ---- runs ---------------------------------------------------------------------------------------

// One program, its memory and its walk.
class Bench {
 public:
  // workers 0: sequential, with the original edges.
  Bench(const Graph& graph, size_t capacity_units, size_t workers, Frees frees)
      : source_(capacity_units * kUnit) {
    stage.graph = &graph;
    stage.order = static_order(graph.nodes, frees);
    stage.results.resize(graph.nodes.size());
    stage.delays.resize(graph.nodes.size());
    program_ = program_of_graph(graph, stage.order, workers > 0);
    if (workers > 0) plan_ = std::make_unique<WorkerPlan>(*program_, workers);
    state_ = std::make_unique<RunState>(program_, device_);
    if (plan_)
      state_->walk = std::make_unique<WorkerTeam>(*plan_, *program_);
    else
      state_->walk = std::make_unique<SequentialWalk>();
    state_->host.context = &stage;
    state_->terminate = &never_;
  }

  Status run() {
    std::ranges::fill(stage.results, 0u);
    state_->failed_node = -1;
    state_->walk->run(*state_);
    state_->clean_up();
    return std::exchange(state_->status, Status());
  }
  void observe(Observer* observer) { state_->observer = observer; }
  // Bytes that stay when everything idle is given back.
  size_t leaked_bytes() {
    state_->allocator.trim();
    return source_.held_bytes();
  }

  Stage stage;

 private:
  CappedSource source_;
  CpuDevice device_{source_};
  std::shared_ptr<const Program> program_;
  std::unique_ptr<WorkerPlan> plan_;
  std::unique_ptr<RunState> state_;
  const std::atomic<int32_t> never_{0};
};

[[noreturn]] void complain(const char* what) {
  std::printf("seed %" PRIu64 ": %s\n", static_cast<uint64_t>(current_seed), what);
  std::fflush(stdout);
  std::_Exit(1);
}

void require(bool is_true, std::string_view what) {
  if (!is_true) complain(std::string(what).c_str());
}

// How often an allocation was parked.
struct Parked final : Observer {
  void on_event(const RunEvent& event) override {
    if (event.kind == EventKind::node_parked) count.fetch_add(1, std::memory_order_relaxed);
  }
  std::atomic<uint64_t> count{0};
};

struct Tally {
  uint64_t graphs = 0, nodes = 0, runs = 0, out_of_memory = 0, faults = 0;
  Parked parked;
};

// At every node in turn.
void check_faults(const Graph& graph, Bench& bench, const std::vector<uint64_t>& expected,
                  Tally& tally) {
  for (size_t node = 0; node < graph.nodes.size(); ++node, ++tally.faults) {
    bench.stage.fault = static_cast<int64_t>(node);
    bench.stage.code = node % 2 ? StatusCode::end_of_sequence : StatusCode::kernel_failed;
    require(bench.run().code() == bench.stage.code, "the injected status is lost");
    require(bench.leaked_bytes() == 0, "a failed run leaks");
    bench.stage.fault = -1;
    require(bench.run().is_ok() && bench.stage.results == expected, "the run after a failed one");
  }
}

void check_graph(uint64_t seed, bool is_unproven, Tally& tally) {
  current_seed = seed;
  alarm(kPatienceSeconds);
  const Graph graph = Generator(seed).graph();
  std::mt19937_64 random(seed + 1);
  const size_t capacity = peak_units(graph) + random() % 4;
  // Both keep their pools from turn to turn, so the oracle meets the same fragments.
  Bench oracle(graph, capacity, 0, Frees::in_sequence);
  const Frees frees = is_unproven    ? Frees::unproven
                      : random() % 2 ? Frees::early
                                     : Frees::in_sequence;
  Bench bench(graph, capacity, 2 + random() % 3, frees);
  if (random() % 2) bench.observe(&tally.parked);
  bool has_memory = false;
  for (int turn = 0; turn < 3; ++turn, ++tally.runs) {
    for (int& delay : bench.stage.delays)
      delay = random() % 4 ? 0 : static_cast<int>(random() % 3000);
    has_memory = oracle.run().is_ok();
    const Status status = bench.run();
    tally.out_of_memory += !status.is_ok();
    if (!has_memory) break;
    require(status.is_ok(), "fails where the sequential executor succeeds");
    require(bench.stage.results == oracle.stage.results,
            "other results than the sequential executor");
  }
  require(bench.leaked_bytes() == 0, "memory is left");
  if (has_memory && seed % 8 == 0) check_faults(graph, bench, oracle.stage.results, tally);
  ++tally.graphs;
  tally.nodes += graph.nodes.size();
}

// ---- loops and branches -------------------------------------------------------------------------

// Memory of its own, and a stream that does everything in the call that submits it.
class InlineDevice final : public Device {
 public:
  explicit InlineDevice(MemorySource& memory) : memory_(memory) {}
  std::string_view name() const noexcept override { return "inline"; }
  bool is_unified() const noexcept override { return false; }
  bool holds(const void*) const noexcept override { return false; }  // what copies are asked about
  bool is_checked() const noexcept override { return false; }
  MemorySource& memory() noexcept override { return memory_; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<InlineStream>(); }

 private:
  MemorySource& memory_;
};

// Takes its time at some nodes, so that workers meet in many orders.
bool paused(RunState& state, const Node& node) {
  const size_t number = number_of(state, node);
  const uint64_t chance = mixed(current_seed, number);
  for (uint64_t i = 0; chance % 4 == 0 && i < chance / 4 % 3000; ++i) cpu_relax();
  const NodeRow& row = state.program().node_rows[number];
  return kernel_types()[static_cast<size_t>(row.kernel)].fn(state, node);
}

struct FrameArm {
  ExecutorKind kind;
  int workers = 0;
  bool has_relations = false;
  Frees frees = Frees::in_sequence;
};

// A graph with frames on one executor.
class FrameBench {
 public:
  FrameBench(const CopyGraph& graph, const FrameArm& arm, size_t capacity_bytes, Tally& tally)
      : source_(capacity_bytes),
        bench_(graph, {arm.kind, arm.workers, 0}, arm.has_relations, arm.frees, device_) {
    if (arm.kind != ExecutorKind::multi_worker) return;
    bench_.replace_kernels(paused);
    bench_.observe(&tally.parked);
  }

  CopyBench* operator->() { return &bench_; }
  size_t peak_bytes() const { return source_.peak_bytes(); }
  size_t leaked_bytes() {
    bench_.trim();
    return source_.held_bytes();
  }

 private:
  CappedSource source_;
  InlineDevice device_{source_};
  CopyBench bench_;
};

void check_frame_faults(FrameBench& bench, std::mt19937_64& random, Tally& tally) {
  for (int i = 0; i < 4; ++i) {
    const StatusCode code = some_failure(random);
    const size_t place = random() % bench->nodes();
    bench->trim();  // what the pool keeps torn may be too small for another run
    Status found = bench->run_with_fault_at(place, 1 + static_cast<int>(random() % 3), code);
    bench->trim();
    if (found.is_ok()) found = bench->run_with_fault_at(place, 1, code);
    if (found.is_ok()) continue;  // in a branch that was not taken
    require(found.code() == code, "the status injected in a frame is lost");
    require(bench.leaked_bytes() == 0, "a failed run of frames leaks");
    const Status next = bench->run();
    require(next.is_ok(), next.message());
    ++tally.faults;
  }
}

// Whether there was memory.
bool check_frames_in(size_t capacity_bytes, bool is_enough, const CopyGraph& graph,
                     const FrameArm& arm, std::mt19937_64& random, Tally& tally) {
  FrameBench bench(graph, arm, capacity_bytes, tally);
  const Status status = bench->run();
  const bool is_short = status.code() == StatusCode::out_of_memory;
  require(status.is_ok() || is_short, status.message());
  require(!is_short || !is_enough, "fails where there was memory enough");
  tally.out_of_memory += is_short;
  ++tally.runs;
  // Where one worker has too little, several may have enough in one run, because Frees came in
  // time, and not in the next.
  const bool is_sure = is_enough || arm.kind != ExecutorKind::multi_worker;
  if (status.is_ok() && is_sure) check_frame_faults(bench, random, tally);
  require(bench.leaked_bytes() == 0, "memory of frames is left");
  return status.is_ok();
}

size_t enough_for(const CopyGraph& graph, const FrameArm& arm, Tally& tally) {
  FrameBench free(graph, arm, SIZE_MAX, tally);
  const Status first = free->run();
  require(first.is_ok(), first.message());
  return free.peak_bytes();
}

// Several workers need what one needs that takes the first of the ready nodes; in another order the
// same memory is enough the next time.
void check_frames(uint64_t seed, bool is_unproven, Tally& tally) {
  current_seed = seed;
  alarm(kPatienceSeconds);
  using enum ExecutorKind;
  const CopyGraph graph = random_flow_graph(seed);
  std::mt19937_64 random(seed + 2);
  const int workers = 2 + static_cast<int>(random() % 3);
  const Frees frees = is_unproven    ? Frees::unproven
                      : random() % 2 ? Frees::early
                                     : Frees::in_sequence;
  const FrameArm in_order{priority_topological};
  const FrameArm others[] = {{multi_worker, workers}, {multi_worker, workers, true, frees}};
  const auto capacities = [&](size_t enough_bytes) {
    return std::array{enough_bytes, enough_bytes - random() % (enough_bytes / 2 + 1)};
  };
  const size_t enough_bytes = enough_for(graph, in_order, tally);
  for (const size_t capacity_bytes : capacities(enough_bytes)) {
    const bool is_enough = check_frames_in(capacity_bytes, capacity_bytes >= enough_bytes, graph,
                                           in_order, random, tally);
    for (const FrameArm& arm : others)
      check_frames_in(capacity_bytes, is_enough, graph, arm, random, tally);
  }
  for (const FrameArm& arm : {FrameArm{sequential}, FrameArm{topological}}) {
    const size_t own_bytes = enough_for(graph, arm, tally);
    for (const size_t capacity_bytes : capacities(own_bytes))
      check_frames_in(capacity_bytes, capacity_bytes >= own_bytes, graph, arm, random, tally);
  }
  ++tally.graphs;
  tally.nodes += graph.nodes.size();
}

// ---- logs ---------------------------------------------------------------------------------------

char letter_of(EventKind kind) {
  switch (kind) {
    case EventKind::node_started:
      return 's';
    case EventKind::node_ended:
      return 'e';
    case EventKind::node_parked:
      return 'p';
    case EventKind::node_resumed:
      return 'r';
    default:
      return 'f';
  }
}

void write_ids(FILE* file, const std::vector<int64_t>& ids) {
  std::fputc('[', file);
  for (size_t i = 0; i < ids.size(); ++i) std::fprintf(file, i ? ",%" PRId64 : "%" PRId64, ids[i]);
  std::fputc(']', file);
}

// Tasks in sequential order as [section, before, related, units]; events as [letter, task, worker].
void log_graph(uint64_t seed, FILE* file) {
  current_seed = seed;
  alarm(kPatienceSeconds);
  const Graph graph = Generator(seed).graph();
  std::mt19937_64 random(seed + 1);
  const size_t workers = 2 + random() % 3;
  Bench bench(graph, peak_units(graph), workers, Frees::in_sequence);
  for (int& delay : bench.stage.delays) delay = static_cast<int>(random() % 3000);
  EventLog log(16 * graph.nodes.size());
  bench.observe(&log);
  const bool is_ok = bench.run().is_ok();
  std::fprintf(file, "{\"seed\": %" PRIu64 ", \"workers\": %zu, \"ok\": %s, \"order\": ", seed,
               workers, is_ok ? "true" : "false");
  write_ids(file, {bench.stage.order.begin(), bench.stage.order.end()});
  std::fputs(", \"tasks\": [", file);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const StressNode& node = graph.nodes[i];
    std::fprintf(file, "%s[\"%s\", ", i ? ", " : "", std::string(section_of(node.kernel)).c_str());
    write_ids(file, node.before);
    std::fputs(", ", file);
    write_ids(file, node.related);
    std::fprintf(file, ", %d]", node.units);
  }
  std::fputs("], \"events\": [", file);
  const char* comma = "";
  for (const EventLog::Entry& entry : log.entries()) {
    const size_t task = bench.stage.order[static_cast<size_t>(entry.node)];
    std::fprintf(file, "%s[\"%c\",%zu,%d]", comma, letter_of(entry.kind), task, entry.worker);
    comma = ",";
  }
  std::fputs("]}\n", file);
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1000;
  const std::string_view flaw = argc > 3 ? argv[3] : "";
  signal(SIGALRM, [](int) { complain("hangs"); });
  if (argc > 4 && flaw == "log") {
    FILE* file = std::fopen(argv[4], "w");
    require(file != nullptr, "the log cannot be written");
    for (uint64_t seed = first; seed < first + count; ++seed) log_graph(seed, file);
    return std::fclose(file);
  }
  Tally tally;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    check_graph(seed, flaw == "unproven", tally);
    if (seed % 8 == 0) check_frames(seed, flaw == "unproven-frames", tally);
  }
  std::printf("%" PRIu64 " graphs, %" PRIu64 " nodes, %" PRIu64 " runs, %" PRIu64
              " parked, %" PRIu64 " out of memory, %" PRIu64 " faults: all as in sequence\n",
              tally.graphs, tally.nodes, tally.runs, tally.parked.count.load(), tally.out_of_memory,
              tally.faults);
  return 0;
}
