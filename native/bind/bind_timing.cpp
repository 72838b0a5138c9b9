// Clocks around tile kernels for the measuring suites: the bare entry, and dispatches through the
// pool from a hot or a parked start. The time_ functions return the nanoseconds of a whole batch.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/relax.h"
#include "bind/bindings.h"
#include "memory/host_memory.h"
#include "memory/output_pool.h"
#include "threads/pool.h"

namespace nb = nanobind;

namespace grainline {
namespace {

constexpr int64_t kParkingLimitNs = 5'000'000;  // a thread that is not asleep by then will not be
constexpr int64_t kMeetingLimitNs = 5'000'000;  // nor is one that has not come by then
// How long a pool sleeps before a parked start. A processor that went idle is quick to come back at
// first: the hypervisor polls for it for some 200 us. A program that computes now and then meets
// none of that.
constexpr int64_t kAsleepNs = 1'000'000;

struct AlignedRelease {
  void operator()(std::byte* memory) const { OutputPool::process().release(memory); }
};

// Private memory for every home; cache lines are not shared between homes.
class Scratch {
 public:
  Scratch(size_t bytes_per_home, int homes)
      : stride_((bytes_per_home + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment),
        memory_(
            OutputPool::process().acquire(stride_ * static_cast<size_t>(homes < 1 ? 1 : homes))) {}
  std::byte* data() const { return memory_.get(); }
  size_t stride() const { return stride_; }

 private:
  size_t stride_;
  std::unique_ptr<std::byte, AlignedRelease> memory_;
};

// How pool threads wait, for as long as this lives.
class HotThreads {
 public:
  explicit HotThreads(bool is_wanted) { Pool::process().keep_threads_hot(is_wanted); }
  ~HotThreads() { Pool::process().keep_threads_hot(before_); }
  HotThreads(const HotThreads&) = delete;
  HotThreads& operator=(const HotThreads&) = delete;

 private:
  bool before_ = Pool::process().keeps_threads_hot();
};

// A kernel that takes `slowdown` times as long on every thread but the one that submits. Its
// arguments stand behind one pointer-sized word, as the ABI wants it.
struct Throttle {
  TileKernel kernel;
  const uint64_t* args;
  double slowdown;
  uint64_t submitter;
};

uint64_t this_thread() {
  static thread_local char mark;
  return reinterpret_cast<uintptr_t>(&mark);
}

int32_t run_throttled(const uint64_t* args, int64_t begin, int64_t end, void* scratch) {
  const auto& throttle = *reinterpret_cast<const Throttle*>(args[0]);
  const int64_t start = now_ns();
  const int32_t fault = throttle.kernel(throttle.args, begin, end, scratch);
  if (this_thread() == throttle.submitter) return fault;
  const auto extra =
      static_cast<int64_t>(static_cast<double>(now_ns() - start) * (throttle.slowdown - 1.0));
  const int64_t until = now_ns() + extra;
  while (now_ns() < until) cpu_relax();
  return fault;
}

// A dispatch in which every home runs one task and waits there until all have begun, or until the
// limit. The caller writes before the dispatch and reads after it; each thread writes its own time.
struct Meeting {
  std::atomic<int> missing{0};
  int64_t until_ns = 0;
  uint64_t caller = 0;
  int64_t caller_ns = 0;
  int64_t other_ns = 0;  // of the only other home; 0: it did not come
};

int32_t arrive(const uint64_t* args, int64_t, int64_t, void*) {
  auto& meeting = *reinterpret_cast<Meeting*>(args[0]);
  (this_thread() == meeting.caller ? meeting.caller_ns : meeting.other_ns) = now_ns();
  // Relaxed: a number to wait for; what was written is published by settling the task.
  meeting.missing.fetch_sub(1, std::memory_order_relaxed);
  while (meeting.missing.load(std::memory_order_relaxed) > 0 && now_ns() < meeting.until_ns)
    cpu_relax();
  return 0;
}

// Afterwards the threads of `homes` homes run, each on a processor, inside the caller's run.
void meet(Meeting& meeting, int homes) {
  homes = std::min(homes, Pool::process().homes_allowed());
  meeting.missing = homes;
  meeting.until_ns = now_ns() + kMeetingLimitNs;
  meeting.caller = this_thread();
  meeting.caller_ns = meeting.other_ns = 0;
  const uint64_t args[] = {reinterpret_cast<uintptr_t>(&meeting)};
  Pool::process().dispatch({&arrive, args, homes, 1, homes, nullptr, 0});
}

// Elapsed nanoseconds of each of `repeat` dispatches, all inside one run, without the GIL.
std::vector<int64_t> dispatch(uint64_t address, const std::vector<uint64_t>& args, int64_t blocks,
                              int64_t grain, int homes, size_t scratch_bytes, int repeat) {
  const Scratch scratch(scratch_bytes, homes);
  const Dispatch dispatch{reinterpret_cast<TileKernel>(address),
                          args.data(),
                          blocks,
                          grain,
                          homes,
                          scratch.data(),
                          scratch.stride()};
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

int64_t time_hot(const Dispatch& dispatch, int repeat, int32_t& fault) {
  const RunScope scope;
  // A dispatch alone would not do: it does not wait for a thread that comes late.
  Meeting meeting;
  if (dispatch.homes > 1) meet(meeting, dispatch.homes);
  const int64_t begin = now_ns();
  for (int i = 0; i < repeat; ++i) fault |= Pool::process().dispatch(dispatch);
  return now_ns() - begin;
}

void await_parked_pool(int64_t asleep_ns) {
  const int64_t until = now_ns() + kParkingLimitNs;
  while (Pool::process().pool_threads_hot() && now_ns() < until) cpu_relax();
  const int64_t asleep = now_ns() + asleep_ns;
  while (now_ns() < asleep) cpu_relax();
}

// One run per dispatch, each begun when the pool sleeps; the waiting is not counted.
int64_t time_parked(const Dispatch& dispatch, int repeat, int32_t& fault) {
  int64_t elapsed = 0;
  for (int i = 0; i < repeat; ++i) {
    if (dispatch.homes > 1) await_parked_pool(kAsleepNs);
    const int64_t begin = now_ns();
    {
      const RunScope scope;
      fault |= Pool::process().dispatch(dispatch);
    }
    elapsed += now_ns() - begin;
  }
  return elapsed;
}

int64_t time_dispatches(uint64_t address, const std::vector<uint64_t>& args, int64_t blocks,
                        int64_t grain, int homes, size_t scratch_bytes, int repeat, bool is_parked,
                        double worker_slowdown, bool keeps_hot) {
  const Scratch scratch(scratch_bytes, homes);
  const auto kernel = reinterpret_cast<TileKernel>(address);
  const Throttle throttle{kernel, args.data(), worker_slowdown, this_thread()};
  const uint64_t throttled_args[] = {reinterpret_cast<uintptr_t>(&throttle)};
  const bool is_throttled = worker_slowdown > 1.0;
  const Dispatch dispatch{is_throttled ? run_throttled : kernel,
                          is_throttled ? throttled_args : args.data(),
                          blocks,
                          grain,
                          homes,
                          scratch.data(),
                          scratch.stride()};
  int32_t fault = 0;
  int64_t elapsed = 0;
  {
    const nb::gil_scoped_release unlocked;
    const HotThreads hot(keeps_hot);
    elapsed = is_parked ? time_parked(dispatch, repeat, fault) : time_hot(dispatch, repeat, fault);
  }
  throw_unless_ok(status_of_fault(fault));
  return elapsed;
}

// What handing work to one sleeping or waiting thread takes, `repeat` times: nanoseconds from the
// dispatch until the caller works itself, and until the other does. asleep_ns = 0: it is awake.
// keeps_hot: see time_dispatches. Pairs in which it did not come are left out.
std::vector<std::pair<int64_t, int64_t>> time_handovers(int repeat, int64_t asleep_ns,
                                                        bool keeps_hot) {
  std::vector<std::pair<int64_t, int64_t>> found;
  const nb::gil_scoped_release unlocked;
  const HotThreads hot(keeps_hot);
  Meeting meeting;
  std::optional<RunScope> run(std::in_place);
  meet(meeting, 2);
  for (int i = 0; i < repeat; ++i) {
    if (asleep_ns > 0) {
      run.reset();
      await_parked_pool(asleep_ns);
    }
    const int64_t begin = now_ns();
    if (!run) run.emplace();
    meet(meeting, 2);
    if (meeting.other_ns > 0)
      found.emplace_back(meeting.caller_ns - begin, meeting.other_ns - begin);
  }
  return found;
}

int64_t time_entry(uint64_t address, const std::vector<uint64_t>& args, int64_t blocks,
                   size_t scratch_bytes, int repeat) {
  const Scratch scratch(scratch_bytes, 1);
  const auto kernel = reinterpret_cast<TileKernel>(address);
  int32_t fault = 0;
  int64_t elapsed = 0;
  {
    const nb::gil_scoped_release unlocked;
    const DefaultFloatScope float_scope;
    const int64_t begin = now_ns();
    for (int i = 0; i < repeat; ++i) fault |= kernel(args.data(), 0, blocks, scratch.data());
    elapsed = now_ns() - begin;
  }
  throw_unless_ok(status_of_fault(fault));
  return elapsed;
}

}  // namespace

void bind_timing(nb::module_& module) {
  using nb::arg;
  module.def("dispatch", dispatch, arg("address"), arg("args"), arg("blocks"), arg("grain") = 0,
             arg("homes") = 1, arg("scratch_bytes") = 0, arg("repeat") = 1,
             "Runs a tile kernel over all blocks `repeat` times; returns the ns of each.");
  module.def("time_entry", time_entry, arg("address"), arg("args"), arg("blocks"),
             arg("scratch_bytes") = 0, arg("repeat") = 1,
             "Calls a tile kernel `repeat` times for all blocks; returns the ns of all calls.");
  module.def(
      "time_dispatches", time_dispatches, arg("address"), arg("args"), arg("blocks"),
      arg("grain") = 0, arg("homes") = 1, arg("scratch_bytes") = 0, arg("repeat") = 1,
      arg("is_parked") = false, arg("worker_slowdown") = 1.0, arg("keeps_hot") = true,
      "Dispatches a tile kernel `repeat` times, hot inside one run or each in a run of its "
      "own begun with a sleeping pool; returns the ns of all dispatches. A slowdown above 1 "
      "makes every pool thread take that many times as long; without keeps_hot they sleep on "
      "a condition variable.");
  module.def("time_handovers", time_handovers, arg("repeat"), arg("asleep_ns") = 0,
             arg("keeps_hot") = true,
             "(ns until the caller works, ns until a pool thread does) of dispatches to two homes, "
             "the thread awake or asleep for so long.");
}

}  // namespace grainline
