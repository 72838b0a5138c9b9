// bench_kernels FILE [write]: how many instructions every host kernel takes, beside those that FILE
// keeps. Fails when one takes kAllowed more, which are 100 ns at one instruction a cycle of 3 GHz.
//
// The graphs of the searches run on the discrete device, where a launch is its submission. A kernel
// runs step by step (the trap flag of x86-64), so the number is no matter of how busy the machine
// is: it is the median over the nodes of warm runs, and differs by a few between compilers. A
// kernel that stands in no graph fails too. Extents as a tensor, which a device reads from the
// host, have a graph of their own.
#include <signal.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "build_type.h"
#include "copy_bench.h"
#include "device/discrete_device.h"
#include "exec/kernels.h"
#include "flow_graph.h"
#include "program_fixture.h"
#include "stream_graph.h"

using namespace grainline;
using namespace grainline::test;

namespace {

constexpr int64_t kAllowed = 300;
constexpr uint64_t kGraphs = 4;
constexpr int kWarmRuns = 2, kCountedRuns = 1;

#if defined(__x86_64__)

thread_local volatile int64_t steps = 0;

void on_step(int) { steps = steps + 1; }

// Threads of the engine block all signals, and one that steps must not.
void take_steps() {
  sigset_t mine;
  sigemptyset(&mine);
  sigaddset(&mine, SIGTRAP);
  pthread_sigmask(SIG_UNBLOCK, &mine, nullptr);
}

// Below the stack pointer lies what a function without calls keeps there.
inline void step() {
  asm volatile("sub $128, %%rsp\n pushfq\n orq $256, (%%rsp)\n popfq\n add $128, %%rsp" ::
                   : "memory", "cc");
}
inline void run_on() {
  asm volatile("sub $128, %%rsp\n pushfq\n andq $~256, (%%rsp)\n popfq\n add $128, %%rsp" ::
                   : "memory", "cc");
}

bool is_counting = false;  // between runs alone
std::mutex counts_lock;
std::map<KernelFn, std::vector<int64_t>> counts;

bool counted(RunState& state, const Node& node) {
  const Program& program = state.program();
  const auto number = static_cast<size_t>(&node - program.nodes.data());
  const KernelFn kernel = kernel_types()[static_cast<size_t>(program.node_rows[number].kernel)].fn;
  if (!is_counting) return kernel(state, node);
  take_steps();
  steps = 0;
  step();
  const bool has_failed = kernel(state, node);
  run_on();
  const int64_t taken = steps;
  const std::lock_guard<std::mutex> held(counts_lock);
  counts[kernel].push_back(taken);
  return has_failed;
}

bool count_in(const CopyGraph& graph, const ExecutorOptions& options, bool has_relations,
              Frees frees) {
  DiscreteDevice device(DiscreteDevice::Options{});
  CopyBench bench(graph, options, has_relations, frees, device);
  bench.replace_kernels(counted);
  bool is_right = true;
  for (int run = 0; run < kWarmRuns + kCountedRuns; ++run) {
    is_counting = run >= kWarmRuns;
    const Status status = bench.run();
    if (!status.is_ok()) std::printf("%s\n", std::string(status.message()).c_str());
    is_right = is_right && status.is_ok();
  }
  is_counting = false;
  return is_right;
}

// Blocks into which the extents of a tensor of four dimensions are written.
bool count_extents(const ExecutorOptions& options) {
  constexpr int32_t kBlocks = 8, kRank = 4;
  const auto kernel_of = [](std::string_view name) {
    return kernel_types()[static_cast<size_t>(kernel_number(name))].fn;
  };
  std::vector<ToyNode> nodes;
  for (int32_t slot = 0; slot < kBlocks; ++slot) {
    const auto first = static_cast<int64_t>(nodes.size());
    nodes.push_back({"AllocMemory", {}, {}, kernel_of("AllocMemory"), slot, 1});
    nodes.push_back({"ExtentsTensor", {first}, {}, counted, slot, 0});
    nodes.push_back({"FreeMemory", {first + 1}, {}, kernel_of("FreeMemory"), slot});
  }
  const auto program = std::make_shared<Program>(*program_of(nodes, kBlocks));
  program->constants = {0, kRank * sizeof(int64_t), 3, 5, 7, 11};  // an offset, a size, extents
  program->words = {2, 3, 4, 5};
  for (size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].kernel == "ExtentsTensor") program->nodes[i].d = kRank;
  ToyRun toys(program, options);
  bool is_right = true;
  for (int run = 0; run < kWarmRuns + kCountedRuns; ++run) {
    is_counting = run >= kWarmRuns;
    is_right = toys.run().is_ok() && is_right;
  }
  is_counting = false;
  return is_right;
}

bool count_all() {
  struct sigaction action{};
  action.sa_handler = on_step;
  sigaction(SIGTRAP, &action, nullptr);
  constexpr ExecutorOptions kSequential{ExecutorKind::sequential, 0, 0};
  constexpr ExecutorOptions kTopological{ExecutorKind::topological, 0, 0};
  constexpr ExecutorOptions kWorkers{ExecutorKind::multi_worker, 3, 0};
  bool is_right = count_extents(kSequential);
  for (uint64_t seed = 0; seed < kGraphs; ++seed) {
    std::mt19937_64 random(seed);
    const CopyGraph mixed = random_copy_graph(seed, Copies::mixed);
    const CopyGraph split = random_copy_graph(seed, Copies::split);
    const CopyGraph spread =
        spread_over_streams(random_copy_graph(seed, Copies::fused), 2, false, random);
    is_right &= count_in(mixed, kSequential, false, Frees::in_sequence);
    is_right &= count_in(split, kWorkers, true, Frees::early);
    is_right &= count_in(spread, kSequential, false, Frees::in_sequence);
    is_right &= count_in(random_flow_graph(seed), kTopological, false, Frees::in_sequence);
  }
  return is_right;
}

// 0: the kernel stands in no graph.
int64_t instructions_of(const KernelType& type) {
  std::vector<int64_t>& all = counts[type.fn];
  if (all.empty()) return 0;
  std::ranges::sort(all);
  return all[all.size() / 2];
}

int write(const char* path) {
  std::ofstream file(path);
  for (const KernelType& type : kernel_types())
    file << type.name << ' ' << instructions_of(type) << '\n';
  return file.good() ? 0 : 1;
}

int compare(const char* path) {
  std::map<std::string, int64_t> kept;
  std::ifstream file(path);
  for (std::string name; file >> name;) file >> kept[name];
  int failures = 0;
  for (const KernelType& type : kernel_types()) {
    const int64_t before = kept[std::string(type.name)], now = instructions_of(type);
    const bool is_good = before > 0 && now > 0 && now <= before + kAllowed;
    failures += !is_good;
    std::printf("%-24s %8" PRId64 " %8" PRId64 "  %s\n", std::string(type.name).c_str(), now,
                before, is_good ? "" : "NO");
  }
  std::printf("kernels that take over %" PRId64
              " instructions more than before, or are not known: %d\n",
              kAllowed, failures);
  return failures == 0 ? 0 : 1;
}

int run(int count, char** words) {
  if (!count_all()) return 1;
  return count > 2 && std::strcmp(words[2], "write") == 0 ? write(words[1]) : compare(words[1]);
}

#else

int run(int, char**) {
  std::printf("instructions are counted on x86-64 only\n");
  return 0;
}

#endif

}  // namespace

int main(int count, char** words) {
  if (count < 2) {
    std::printf("bench_kernels FILE [write]\n");
    return 2;
  }
  print_build();
  return run(count, words);
}
