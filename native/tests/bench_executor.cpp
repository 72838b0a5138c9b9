// Prints what the executors cost per empty node, per edge between workers, and what the exact
// relations cost per event. Medians of many rounds, in nanoseconds. No test.
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "base/clock.h"
#include "build_type.h"
#include "line_transfer.h"
#include "program_fixture.h"
#include "threads/topology.h"

using namespace grainline;
using namespace grainline::test;

namespace {

bool nothing(RunState&, const Node&) { return false; }

template <typename Body>
double median_ns(int rounds, double per, Body body) {
  std::vector<double> samples;
  for (int round = 0; round < rounds; ++round) {
    const int64_t begin_ns = now_ns();
    body();
    samples.push_back(static_cast<double>(now_ns() - begin_ns) / per);
  }
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

void row(const char* what, double ns) { std::printf("%-58s %10.2f ns\n", what, ns); }

std::vector<ToyNode> chain(size_t nodes, std::vector<std::string_view> kernels) {
  std::vector<ToyNode> toys;
  for (size_t i = 0; i < nodes; ++i) {
    toys.push_back({kernels[i % kernels.size()], {}, {}, nothing});
    if (i > 0) toys.back().before.push_back(static_cast<int64_t>(i - 1));
  }
  return toys;
}

std::vector<ToyNode> random_edges(size_t nodes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<ToyNode> toys;
  for (size_t i = 0; i < nodes; ++i) {
    toys.push_back({"Launch", {}, {}, nothing});
    for (size_t k = random() % 3; k-- > 0 && i > 0;)
      toys.back().before.push_back(static_cast<int64_t>(random() % i));
  }
  return toys;
}

double per_node(const std::vector<ToyNode>& nodes, const ExecutorOptions& options) {
  ToyRun run(program_of(nodes), options);
  const int repeats = static_cast<int>(400'000 / nodes.size());
  return median_ns(31, static_cast<double>(nodes.size()) * repeats, [&] {
    for (int i = 0; i < repeats; ++i) static_cast<void>(run.run().is_ok());
  });
}

void bench_nodes() {
  for (const size_t nodes : {size_t{200}, size_t{4000}}) {
    std::printf("%zu empty nodes, per node\n", nodes);
    const auto line = chain(nodes, {"Launch"});
    const auto graph = random_edges(nodes, 1);
    row("  sequential, chain", per_node(line, {ExecutorKind::sequential, 0, 1}));
    row("  sequential, random edges", per_node(graph, {ExecutorKind::sequential, 0, 1}));
    row("  topological, chain", per_node(line, {ExecutorKind::topological, 0, 1}));
    row("  topological, random edges", per_node(graph, {ExecutorKind::topological, 0, 1}));
    row("  priority topological, random edges",
        per_node(graph, {ExecutorKind::priority_topological, 0, 1}));
  }
}

// When each node of a chain ran, and on which processor: the gap between the end of a node and the
// begin of the next one, on the other worker, is one crossing.
struct Stamp {
  int64_t begin_ns, end_ns;
  int processor;
};
std::vector<Stamp> stamps;

bool stamped(RunState& state, const Node& node) {
  Stamp& stamp = stamps[number_of(state, node)];
  stamp.begin_ns = now_ns();
  stamp.processor = current_processor();
  stamp.end_ns = now_ns();
  return false;
}

void bench_crossings(std::vector<ToyNode> line) {
  for (ToyNode& node : line) node.fn = stamped;
  stamps.assign(line.size(), {});
  ToyRun run(program_of(line), {ExecutorKind::multi_worker, 2, 1});
  std::vector<int64_t> gaps;
  size_t shared = 0;
  for (int repeat = 0; repeat < 31; ++repeat) {
    static_cast<void>(run.run().is_ok());
    for (size_t i = 1; i < stamps.size(); ++i) {
      gaps.push_back(stamps[i].begin_ns - stamps[i - 1].end_ns);
      shared += stamps[i].processor == stamps[i - 1].processor;
    }
  }
  std::ranges::sort(gaps);
  row("  between two clocks: median", static_cast<double>(gaps[gaps.size() / 2]));
  row("  between two clocks: 90 of 100 are below", static_cast<double>(gaps[gaps.size() * 9 / 10]));
  std::printf("  %.1f %% of them between workers on one processor\n",
              100.0 * static_cast<double>(shared) / static_cast<double>(gaps.size()));
}

// Every node waits for the one before it on the other worker: nothing but edges that cross. The
// figure is the length of a run by its nodes, so it has the work of a step in it and hides nothing.
void bench_edges() {
  constexpr size_t kNodes = 20'000;
  const auto line = chain(kNodes, {"FreeMemory", "Launch"});
  row("a line that two threads write in turn, per crossing", line_transfer_ns());
  ToyRun two(program_of(line), {ExecutorKind::multi_worker, 2, 1});
  row("critical edge between two workers",
      median_ns(31, kNodes, [&] { static_cast<void>(two.run().is_ok()); }));
  bench_crossings(line);
  const auto within = chain(kNodes, {"Launch"});
  ToyRun alone(program_of(within), {ExecutorKind::multi_worker, 2, 1});
  row("multi-worker, edge within a worker, per node",
      median_ns(31, kNodes, [&] { static_cast<void>(alone.run().is_ok()); }));
  ToyRun one(program_of(chain(2, {"FreeMemory", "Launch"})), {ExecutorKind::multi_worker, 2, 1});
  row("a run of two nodes on two workers (wakes one thread)",
      median_ns(201, 1, [&] { static_cast<void>(one.run().is_ok()); }));
}

// launches: a row of one launch per Free.
void bench_relations() {
  constexpr size_t kNodes = 1000, kRepeats = 100'000;
  IdRows rows{{0}, {}};
  for (size_t node = 0; node < kNodes; ++node) {
    if (node % 4 == 0) rows.ids.push_back(static_cast<int64_t>(node + 1));
    rows.offsets.push_back(static_cast<int64_t>(rows.ids.size()));
  }
  Relations relations;
  static_cast<void>(relations.prepare(rows, kNodes));
  static_cast<void>(relations.begin_epoch());
  size_t node = 0;
  row("relations, event of an unrelated node", median_ns(31, kRepeats, [&] {
        for (size_t i = 0; i < kRepeats; ++i) {
          static_cast<void>(relations.record(node + 2));
          node = node + 4 < kNodes ? node + 4 : 0;
        }
      }));
  row("relations, satisfied wait", median_ns(31, kRepeats, [&] {
        for (size_t i = 0; i < kRepeats; ++i) static_cast<void>(relations.wait().is_ok());
      }));
  row("relations, one Free and its launch", median_ns(31, kRepeats, [&] {
        for (size_t i = 0; i < kRepeats; ++i) {
          static_cast<void>(relations.record(node) & relations.record(node + 1));
          node = node + 4 < kNodes ? node + 4 : 0;
        }
      }));
}

void bench_prepare() {
  constexpr size_t kNodes = 100'000, kRelations = 1'000'000;
  IdRows rows{{0}, {}};
  for (size_t node = 0; node < kNodes; ++node) {
    for (size_t k = 0; k < kRelations / kNodes; ++k)
      rows.ids.push_back(static_cast<int64_t>((node * 31 + k * 7919) % kNodes));
    rows.offsets.push_back(static_cast<int64_t>(rows.ids.size()));
  }
  rows.ids.shrink_to_fit();
  rows.offsets.shrink_to_fit();
  Relations relations;
  row("relations, prepare 100,000 nodes and 1,000,000 relations",
      median_ns(31, 1, [&] { static_cast<void>(relations.prepare(rows, kNodes)); }));
  std::printf("  bytes: %zu\n", relations.memory_bytes());
}

// One InferShape of one input of two dims, and launches whose work follows from both: worth two
// threads as a rule, a little different each.
std::shared_ptr<const Program> inferring(int64_t launches, int64_t variants) {
  auto p = std::make_shared<Program>(*program_of(
      {{"InferShape", {}, {}, [](RunState& state, const Node&) { return state.infer_shape(0); }}},
      1));
  p->inputs = {{0, 0, 2, 0, -1, 0}};
  const auto work = [&](Operation op, int64_t a, int64_t b) {
    p->instructions.push_back({static_cast<int64_t>(op), a, b});
    return static_cast<int64_t>(p->constants.size() + p->instructions.size()) - 1;
  };
  for (int64_t v = 0; v < launches * variants; ++v) p->constants.push_back(40 + v % 7);
  const int64_t rows = work(Operation::dim, 0, 0), columns = work(Operation::dim, 1, 0);
  const int64_t elements = work(Operation::mul, rows, columns);
  for (int64_t v = 0; v < launches * variants; ++v) {
    const int64_t cost_ps = work(Operation::mul, elements, v);
    p->variants.push_back({0, rows, cost_ps, rows, elements, columns, 0, 0});
  }
  p->tile_kernels = {[](const uint64_t*, int64_t, int64_t, void*) -> int32_t { return 0; }};
  p->argument_begin.assign(static_cast<size_t>(launches) + 1, 0);
  for (int64_t row = 0; row < launches; ++row) {
    p->launches.push_back({row * variants, (row + 1) * variants, 0, 0, 0, 0, 0, -1, -1, -1});
    p->group_launches.push_back(row);
  }
  p->groups = {{0, static_cast<int64_t>(p->instructions.size()), 0, 0, 0, launches, 0, 2, 0, 0}};
  return p;
}

double per_inference(ToyRun& run, bool has_new_extents) {
  constexpr int kRepeats = 200;
  int64_t dims[] = {1000, 600};
  std::byte* data = nullptr;
  return median_ns(101, kRepeats, [&] {
    for (int i = 0; i < kRepeats; ++i) {
      if (has_new_extents) dims[0] = 400 + (dims[0] * 7 + 13) % 1500;
      static_cast<void>(run.state().bind_input(0, data, nullptr, 2, dims).is_ok());
      static_cast<void>(run.run().is_ok());
    }
  });
}

// Against the same run without launches, whose extents are as new.
void bench_extents() {
  constexpr int64_t kLaunches = 50;
  for (const int threads : {1, 2})
    for (const int64_t variants : {1, 2}) {
      const ExecutorOptions options{ExecutorKind::sequential, 0, threads};
      ToyRun none(inferring(0, variants), options), many(inferring(kLaunches, variants), options);
      std::printf("extents of %d launches of %d variants, %d threads, per launch\n",
                  static_cast<int>(kLaunches), static_cast<int>(variants), threads);
      for (const bool is_new : {true, false})
        row(is_new ? "  new" : "  remembered",
            (per_inference(many, is_new) - per_inference(none, is_new)) / kLaunches);
      row("  a whole run of one InferShape, remembered", per_inference(many, false));
    }
}

}  // namespace

int main() {
  print_build();
  bench_extents();
  bench_nodes();
  bench_edges();
  bench_relations();
  bench_prepare();
}
