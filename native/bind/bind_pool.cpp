// The process-wide pool, memory counters, and native-entry timing for benchmarks.

#include <nanobind/stl/vector.h>
#include <time.h>

#include <memory>

#include "bind/bindings.h"
#include "memory/host_memory.h"
#include "memory/output_pool.h"
#include "threads/pool.h"

namespace nb = nanobind;

namespace grainline {
namespace {

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct AlignedRelease {
  void operator()(std::byte* memory) const { OutputPool::process().release(memory); }
};

Dispatch dispatch_of(uint64_t address, const std::vector<uint64_t>& args, int64_t blocks,
                     int64_t grain, int homes, std::byte* scratch, size_t scratch_bytes) {
  return {reinterpret_cast<TileKernel>(address),
          args.data(),
          blocks,
          grain,
          homes,
          scratch,
          scratch_bytes};
}

// Elapsed nanoseconds of each of `repeat` dispatches, all inside one run, without the GIL.
std::vector<int64_t> time_dispatch(uint64_t address, const std::vector<uint64_t>& args,
                                   int64_t blocks, int64_t grain, int homes, size_t scratch_bytes,
                                   int repeat) {
  const size_t stride =
      (scratch_bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
  const std::unique_ptr<std::byte, AlignedRelease> scratch(
      OutputPool::process().acquire(stride * static_cast<size_t>(homes < 1 ? 1 : homes)));
  const Dispatch dispatch = dispatch_of(address, args, blocks, grain, homes, scratch.get(), stride);
  std::vector<int64_t> elapsed(static_cast<size_t>(repeat));
  int32_t fault = 0;
  {
    const nb::gil_scoped_release unlocked;
    const RunScope scope;
    for (int64_t& one : elapsed) {
      const int64_t begin = now_ns();
      fault |= Pool::process().dispatch(dispatch);
      one = now_ns() - begin;
    }
  }
  throw_unless_ok(status_of_fault(fault));
  return elapsed;
}

nb::list stop_pool_log() {
  PoolLog& log = Pool::process().log();
  log.stop();
  nb::list rows;
  for (const PoolSpan& span : log.spans())
    rows.append(nb::make_tuple(span.home, span.begin_ns, span.end_ns, span.tasks));
  return rows;
}

nb::dict memory_statistics() {
  const HostMemory::Statistics s = HostMemory::process().statistics();
  nb::dict row;
  row["live_bytes"] = s.live_bytes;
  row["peak_bytes"] = s.peak_bytes;
  row["system_calls"] = s.system_calls;
  row["output_cache_bytes"] = OutputPool::process().cached_bytes();
  return row;
}

}  // namespace

void bind_pool(nb::module_& module) {
  using nb::arg;
  module.def(
      "set_thread_limit", [](int limit) { Pool::process().set_thread_limit(limit); }, arg("limit"),
      "Upper limit of threads in this process; 0: all processors allowed.");
  module.def(
      "processors", [] { return Pool::process().processors(); },
      "Processors that this process may use.");
  module.def("threads_started", [] { return Pool::process().threads_started(); });
  module.def("active_runs", [] { return Pool::process().active_runs(); });
  module.def("dispatch", time_dispatch, arg("address"), arg("args"), arg("blocks"),
             arg("grain") = 0, arg("homes") = 1, arg("scratch_bytes") = 0, arg("repeat") = 1,
             "Runs a tile kernel over all blocks `repeat` times; returns the ns of each.");
  module.def(
      "start_pool_log", [] { Pool::process().log().start(); },
      "From now on every dispatch with several homes notes what each of them did.");
  module.def("stop_pool_log", stop_pool_log,
             "Ends that; returns (home, begin_ns, end_ns, tasks) for each, in no order.");
  module.def("memory_statistics", memory_statistics);
  module.def(
      "set_memory_limit", [](size_t bytes) { HostMemory::process().set_limit(bytes); },
      arg("limit_bytes"));
  module.def(
      "trim_outputs", [] { return OutputPool::process().trim(); },
      "Gives cached memory of returned arrays back to the system; returns the bytes.");
}

}  // namespace grainline
