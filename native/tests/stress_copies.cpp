// stress_copies [first seed] [count]: random graphs with copies on the discrete device.
//
// Each graph (copy_graph.h) runs on the sequential, both topological and the multi-worker
// executors, on one stream and spread over several (stream_graph.h), and so does one with loops and
// branches (flow_graph.h), on a device that is slow at random, has little memory, is checked or
// not, and fails now and then. Every run must
//   end (an alarm names the seed otherwise),
//   return what the oracle says,
//   succeed wherever the sequential executor does with the same capacity and one stream,
//   after a failure or an end of sequence, at a node, a submission or a completion, report that
//   status, leak nothing, and succeed the next time.
// Meant for the sanitizers: the host buffers of copies are gone as soon as they may be.
// unproven: Frees stand right behind their allocations, without regard to the proof; the program
// must then complain, which shows that it can.
// unordered: streams do not wait for each other now and then; unread: what a
// turn carries on does not wait for who reads what it replaces; the same.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "copy_bench.h"
#include "device/discrete_device.h"
#include "flow_graph.h"
#include "memory/poison.h"
#include "pool_fixture.h"
#include "stream_graph.h"

using namespace grainline;
using namespace grainline::test;

namespace {

constexpr unsigned kPatienceSeconds = kIsThreadSanitized || kIsAddressSanitized ? 600 : 60;
constexpr size_t kPage = size_t{64} << 10;
volatile uint64_t current_seed = 0;
const char* volatile current_arm = "";

[[noreturn]] void complain(const std::string& what) {
  std::printf("seed %" PRIu64 ", %s: %s\n", static_cast<uint64_t>(current_seed), current_arm,
              what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

void require(bool is_true, const std::string& what) {
  if (!is_true) complain(what);
}

// ---- runs ---------------------------------------------------------------------------------------

struct Tally {
  uint64_t graphs = 0, nodes = 0, runs = 0, out_of_memory = 0, faults = 0;
};

struct Arm {
  const char* name;
  ExecutorOptions options;
  bool has_relations;
  Frees frees;
};

// One program on one executor and a device of its own.
class Bench {
 public:
  Bench(const CopyGraph& graph, const Arm& arm, const DiscreteDevice::Options& options)
      : device_(options), bench_(graph, arm.options, arm.has_relations, arm.frees, device_) {}

  CopyBench* operator->() { return &bench_; }
  size_t leaked_bytes() {
    bench_.trim();
    return device_.arena().statistics().live_bytes;
  }
  Disturbance& disturbance() { return device_.disturbance(); }

 private:
  DiscreteDevice device_;
  CopyBench bench_;
};

void check_faults(const CopyGraph& graph, Bench& bench, std::mt19937_64& random, Tally& tally) {
  const auto check = [&](StatusCode code, const Status& found, const char* where) {
    require(found.code() == code, std::string("the status injected at ") + where +
                                      " is lost: " + std::string(found.message()));
    require(bench.leaked_bytes() == 0, std::string("a run that failed at ") + where + " leaks");
    const Status next = bench->run();
    require(next.is_ok(), "the run after a failed one: " + std::string(next.message()));
    ++tally.faults;
  };
  for (int i = 0; i < 3; ++i) {
    const StatusCode code = some_failure(random);
    const size_t place = random() % bench->nodes();
    Status found = bench->run_with_fault_at(place, 1 + static_cast<int>(random() % 3), code);
    if (found.is_ok()) found = bench->run_with_fault_at(place, 1, code);
    if (found.is_ok() && has_frames(graph)) continue;  // a branch that was not taken
    check(code, found, "a node");
  }
  for (const Moment moment : {Moment::submission, Moment::completion}) {
    const StatusCode code = some_failure(random);
    bench.disturbance().inject(moment, static_cast<int64_t>(random() % graph.launches), code);
    Status found = bench->run();
    // Of launches in branches that are not taken there are no commands.
    for (size_t i = 0; found.is_ok() && has_frames(graph) && i < graph.launches; ++i)
      found = bench->run();
    check(code, found, moment == Moment::submission ? "a submission" : "a completion");
  }
}

// 0, or a command that takes as long as several nodes or as a wake-up.
int64_t some_delay_ns(std::mt19937_64& random) {
  static constexpr int64_t kDelays[] = {0, 0, 1'000, 20'000};
  return kDelays[random() % std::size(kDelays)];
}

// Whether all runs found memory.
bool check_arm(const CopyGraph& graph, const Arm& arm, const DiscreteDevice::Options& options,
               bool has_memory, std::mt19937_64& random, Tally& tally) {
  current_arm = arm.name;
  Bench bench(graph, arm, options);
  bool was_ok = true;
  for (int turn = 0; turn < 2 && was_ok; ++turn, ++tally.runs) {
    bench.disturbance().set_delay(some_delay_ns(random));
    const Status status = bench->run();
    was_ok = status.is_ok();
    require(was_ok || status.code() == StatusCode::out_of_memory, std::string(status.message()));
    require(was_ok || !has_memory, "fails where the sequential executor succeeds");
  }
  tally.out_of_memory += !was_ok;
  bench.disturbance().set_delay(0);
  if (was_ok) check_faults(graph, bench, random, tally);
  require(bench.leaked_bytes() == 0, "memory is left");
  return was_ok;
}

enum class Flaw { none, unproven, unordered, unread };

// Memory that one stream gave back is of use to another when that one has waited.
void check_streams(uint64_t seed, bool drops_events, std::mt19937_64& random, Tally& tally) {
  const size_t streams = 2 + random() % 3;
  const CopyGraph graph =
      spread_over_streams(random_copy_graph(seed, Copies::fused), streams, drops_events, random);
  const auto workers = static_cast<int>(2 + random() % 3);
  using enum ExecutorKind;
  const Arm arms[] = {
      {"sequential, streams", {sequential, 0, 0}, false, Frees::in_sequence},
      {"topological, streams", {topological, 0, 0}, false, Frees::in_sequence},
      {"priority topological, streams", {priority_topological, 0, 0}, false, Frees::in_sequence},
      {"several workers, streams", {multi_worker, workers, 0}, false, Frees::in_sequence},
  };
  for (const Arm& arm : arms) {
    DiscreteDevice::Options options;
    const bool has_room = random() % 2;
    options.arena.capacity_bytes =
        has_room ? kPage * 16 * graph.nodes.size() : graph.peak_bytes + random() % 8 * kPage;
    options.is_checked = drops_events || random() % 2;
    check_arm(graph, arm, options, has_room, random, tally);
  }
  tally.nodes += graph.nodes.size();
}

// In the order of the nodes a walk needs what the structure needs, so that twice as much is room
// for all that is torn. Several workers keep that order.
void check_frames(uint64_t seed, bool keeps_reads, Frees frees, std::mt19937_64& random,
                  Tally& tally) {
  const CopyGraph graph = random_flow_graph(seed, keeps_reads);
  const auto workers = static_cast<int>(2 + random() % 3);
  using enum ExecutorKind;
  const Arm in_order{"priority topological, frames", {priority_topological, 0, 0}, false, {}};
  const Arm others[] = {
      {"topological, frames", {topological, 0, 0}, false, {}},
      {"sequential, frames", {sequential, 0, 0}, false, {}},
  };
  const Arm same_order[] = {
      {"several workers, frames", {multi_worker, workers, 0}, false, {}},
      {"several workers, early Frees, frames", {multi_worker, workers, 0}, true, frees},
  };
  DiscreteDevice::Options options;
  options.arena.capacity_bytes = size_t{1} << 30;
  const size_t peak_bytes = [&] {
    Bench bench(graph, in_order, options);
    current_arm = in_order.name;
    require(bench->run().is_ok(), "fails where there is room");
    return bench->peak_bytes();
  }();
  options.arena.capacity_bytes = 2 * peak_bytes + 16 * kPage;
  check_arm(graph, in_order, options, true, random, tally);
  options.arena.capacity_bytes = peak_bytes + random() % 4 * kPage;
  const bool has_memory = check_arm(graph, in_order, options, false, random, tally);
  for (const Arm& arm : same_order) check_arm(graph, arm, options, has_memory, random, tally);
  for (const Arm& arm : others) {
    const bool has_room = random() % 2;
    options.arena.capacity_bytes = has_room ? size_t{1} << 30 : peak_bytes + random() % 8 * kPage;
    options.is_checked = random() % 2;
    check_arm(graph, arm, options, has_room, random, tally);
  }
  tally.nodes += graph.nodes.size();
}

void check_graph(uint64_t seed, Flaw flaw, Tally& tally) {
  current_seed = seed;
  alarm(kPatienceSeconds);
  std::mt19937_64 random(seed + 1);
  const CopyGraph mixed_graph = random_copy_graph(seed, Copies::mixed);
  const CopyGraph split_graph = random_copy_graph(seed, Copies::split);
  const auto options_for = [&](const CopyGraph& graph) {
    DiscreteDevice::Options options;
    options.arena.capacity_bytes = graph.peak_bytes + random() % 4 * kPage;
    options.is_checked = random() % 2;
    return options;
  };
  const auto workers = static_cast<int>(2 + random() % 3);
  const Frees frees = flaw == Flaw::unproven ? Frees::unproven
                      : random() % 2         ? Frees::early
                                             : Frees::in_sequence;
  using enum ExecutorKind;
  const Arm in_sequence{"sequential", {sequential, 0, 0}, false, Frees::in_sequence};
  const Arm plain[] = {
      {"topological", {topological, 0, 0}, false, Frees::in_sequence},
      {"priority topological", {priority_topological, 0, 0}, false, Frees::in_sequence},
      {"several workers", {multi_worker, workers, 0}, false, Frees::in_sequence},
  };
  const Arm ahead{"several workers, early Frees", {multi_worker, workers, 0}, true, frees};
  DiscreteDevice::Options options = options_for(mixed_graph);
  bool has_memory = check_arm(mixed_graph, in_sequence, options, false, random, tally);
  for (const Arm& arm : plain) {
    // Another order may need more.
    const bool is_same_order = arm.options.kind == multi_worker;
    options.arena.capacity_bytes += is_same_order ? 0 : kPage * mixed_graph.nodes.size();
    check_arm(mixed_graph, arm, options, has_memory || !is_same_order, random, tally);
    options.arena.capacity_bytes -= is_same_order ? 0 : kPage * mixed_graph.nodes.size();
  }
  options = options_for(split_graph);
  has_memory = check_arm(split_graph, in_sequence, options, false, random, tally);
  check_arm(split_graph, ahead, options, has_memory, random, tally);
  check_streams(seed, flaw == Flaw::unordered, random, tally);
  check_frames(seed, flaw != Flaw::unread, frees, random, tally);
  ++tally.graphs;
  tally.nodes += mixed_graph.nodes.size() + split_graph.nodes.size();
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 200;
  const std::string_view found = argc > 3 ? argv[3] : "";
  const Flaw flaw = found == "unproven"    ? Flaw::unproven
                    : found == "unordered" ? Flaw::unordered
                    : found == "unread"    ? Flaw::unread
                                           : Flaw::none;
  signal(SIGALRM, [](int) { complain("hangs"); });
  Tally tally;
  for (uint64_t seed = first; seed < first + count; ++seed) check_graph(seed, flaw, tally);
  std::printf("%" PRIu64 " graphs, %" PRIu64 " nodes, %" PRIu64 " runs, %" PRIu64
              " out of memory, %" PRIu64 " faults: all as the oracle says\n",
              tally.graphs, tally.nodes, tally.runs, tally.out_of_memory, tally.faults);
  return 0;
}
