// The process-wide pool and memory counters.

#include "bind/bindings.h"
#include "memory/host_memory.h"
#include "memory/output_pool.h"
#include "threads/pool.h"

namespace nb = nanobind;

namespace grainline {
namespace {

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
      "keep_threads_hot", [](bool is_wanted) { Pool::process().keep_threads_hot(is_wanted); },
      arg("is_wanted"),
      "Whether pool threads spin between the launches of a run, or sleep on a condition variable.");
  module.def(
      "processors", [] { return Pool::process().processors(); },
      "Processors that this process may use.");
  module.def("threads_started", [] { return Pool::process().threads_started(); });
  module.def("active_runs", [] { return Pool::process().active_runs(); });
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
