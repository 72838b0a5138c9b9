#include "cost/launch.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>

namespace grainline {
namespace {

constexpr int64_t kTasksPerHome = 64;  // smaller tasks than that are not tried
constexpr size_t kMostChoices = 160;   // 8 numbers of homes, at most 8 grains each

int64_t ceil_div(int64_t value, int64_t unit) { return (value - 1) / unit + 1; }

constexpr double kOverflow = 4;  // of what does not fit, see beyond

// Of bytes that are walked through again and again, those that are not found in caches that hold
// `held`: all of them once they are a third more, for what comes next drives out what is next.
double beyond(double bytes, double held) {
  return std::min(bytes, kOverflow * std::max(bytes - held, 0.0));
}

// Bytes that fit a cache cost what the next nearer one could not hold; homes bring their own.
double memory_ps(double bytes, int homes, const MachineCosts& c) {
  const double beyond_nearest = beyond(bytes, homes * c.nearest_bytes);
  const double beyond_private = beyond(bytes, homes * c.private_bytes);
  const double beyond_shared = beyond(bytes, c.shared_bytes);
  const double near = std::max(beyond_nearest - beyond_private, 0.0);
  const double shared = std::max(beyond_private - beyond_shared, 0.0);
  return near * c.private_byte_ps + shared * c.shared_byte_ps + beyond_shared * c.memory_byte_ps;
}

double overlapped(double work, double memory) {
  return memory > 0 ? std::sqrt(work * work + memory * memory) : work;
}

// When `tasks` tasks that take `each`, and then one that takes `last`, are done by a caller that
// begins at 0 and `others` homes that begin at `delay`; who is free takes the next.
double finish(int64_t tasks, double each, double last, int64_t others, double delay) {
  const double alone = static_cast<double>(tasks) * each + last;
  if (alone <= delay || each <= 0) return alone;
  // When the others begin the caller has done some tasks and may be in the middle of one.
  const auto done = static_cast<int64_t>(delay / each);
  const int64_t taken = std::min(done + (static_cast<double>(done) * each < delay ? 1 : 0), tasks);
  // From then on rounds: a task for every other home, and one for the caller.
  const int64_t rounds = (tasks - taken) / (others + 1);
  const int64_t rest = (tasks - taken) % (others + 1);
  const double caller = static_cast<double>(taken + rounds) * each;
  const double latest = delay + static_cast<double>(rounds + (rest > 0)) * each;
  const double earliest = delay + static_cast<double>(rounds + (rest == others)) * each;
  const double end = tasks > taken ? std::max(caller, latest) : caller;
  return last > 0 ? std::max(end, std::min(caller, earliest) + last) : end;
}

// Two tasks of which the caller's is longer by what it does before the other home has begun, which
// is awake: nobody knows so well when a sleeping one comes, and then more tasks leave less to wait
// for.
int64_t head_start_grain(const LaunchWork& w, const MachineCosts& c) {
  const auto blocks = static_cast<double>(std::max<int64_t>(w.blocks, 1));
  const double memory = memory_ps(static_cast<double>(w.traffic_bytes), 2, c);
  const double work = overlapped(static_cast<double>(w.work_ps), memory) * (1 + c.crowd);
  const double late = std::max(c.hot_delay_ps - c.hot_paid_ps, 0.0);
  const double more = work > 0 ? late / work * blocks : 0;
  return std::max<int64_t>(static_cast<int64_t>(std::min((blocks + more) / 2, blocks)), 1);
}

// Costs that were set once; never freed, because somebody may be copying them.
struct KnownCosts {
  MachineCosts costs;
  const KnownCosts* older = nullptr;
};

constexpr KnownCosts kDefaultCosts;
std::atomic<const KnownCosts*> newest_costs{&kDefaultCosts};
std::atomic<const KnownCosts*> process_costs{&kDefaultCosts};

// The entry of these costs, which stands among the known ones from now on: every model that is
// loaded sets them again, and a process has few different ones.
const KnownCosts* known_costs(const MachineCosts& costs) {
  const KnownCosts* newest = newest_costs.load(std::memory_order_acquire);
  for (const KnownCosts* one = newest; one != nullptr; one = one->older)
    if (one->costs == costs) return one;
  auto* added = new KnownCosts{costs, newest};
  // Release: whoever sees the entry sees its numbers. Two that are added at once may be equal.
  while (!newest_costs.compare_exchange_weak(added->older, added, std::memory_order_release,
                                             std::memory_order_acquire)) {
  }
  return added;
}

}  // namespace

// Release and acquire: whoever sees the pointer sees the numbers.
void set_machine_costs(const MachineCosts& costs) {
  process_costs.store(known_costs(costs), std::memory_order_release);
}

MachineCosts machine_costs() { return process_costs.load(std::memory_order_acquire)->costs; }

double launch_time(const LaunchWork& w, int64_t grain, int homes, bool is_hot,
                   const MachineCosts& c) {
  const int64_t blocks = std::max<int64_t>(w.blocks, 1);
  const auto bytes = static_cast<double>(w.traffic_bytes);
  const auto own = static_cast<double>(w.task_ps);
  const int64_t tasks = grain >= blocks ? 1 : ceil_div(blocks, grain);
  homes = static_cast<int>(std::max<int64_t>(std::min<int64_t>(homes, tasks), 1));
  const double work = overlapped(static_cast<double>(w.work_ps), memory_ps(bytes, homes, c));
  if (homes <= 1) return work + own;

  const double per_block = work * (1 + c.crowd) / static_cast<double>(blocks);
  const int64_t short_blocks = blocks % grain;
  const double each = per_block * static_cast<double>(grain) + own + c.task_ps;
  const double last =
      short_blocks > 0 ? per_block * static_cast<double>(short_blocks) + own + c.task_ps : 0;
  const int levels = std::bit_width(static_cast<unsigned>(homes - 1)) - 1;
  const double paid = is_hot ? c.hot_paid_ps : c.parked_paid_ps;
  const double delay = is_hot ? c.hot_delay_ps : c.parked_delay_ps + levels * c.home_delay_ps;
  const double cores = finish(blocks / grain, each, last, homes - 1, std::max(delay - paid, 0.0));
  const double bus = beyond(bytes, c.shared_bytes) * c.bus_byte_ps;
  return paid + std::max(cores, bus);
}

LaunchTerms launch_terms(const LaunchWork& w, double blocks_ps, int64_t grain, int homes,
                         bool is_hot, const MachineCosts& c) {
  const int64_t blocks = std::max<int64_t>(w.blocks, 1);
  const int64_t tasks = grain >= blocks ? 1 : ceil_div(blocks, grain);
  const int64_t active = std::max<int64_t>(std::min<int64_t>(homes, tasks), 1);
  const auto share = static_cast<double>(active);
  const auto work = static_cast<double>(w.work_ps);
  LaunchTerms t{};
  t.time_ps = launch_time(w, grain, homes, is_hot, c);
  t.arithmetic_ps = (work - blocks_ps) / share;
  t.blocks_ps = blocks_ps / share;
  const double memory = memory_ps(static_cast<double>(w.traffic_bytes), 1, c);
  t.memory_ps = (overlapped(work, memory) - work) / share;
  t.tasks_ps = static_cast<double>(w.task_ps);
  if (active > 1) {
    t.tasks_ps = static_cast<double>(ceil_div(tasks, active)) * (c.task_ps + t.tasks_ps);
    t.paid_ps = is_hot ? c.hot_paid_ps : c.parked_paid_ps;
  }
  const double known = work / share + t.memory_ps + t.tasks_ps + t.paid_ps;
  t.lost_ps = std::max(t.time_ps - known, 0.0);
  return t;
}

LaunchChoice choose_launch(const LaunchWork& work, int homes_allowed, bool is_hot,
                           const MachineCosts& costs) {
  const int64_t blocks = std::max<int64_t>(work.blocks, 1);
  LaunchChoice tried[kMostChoices];  // not initialised: count of them are
  size_t count = 0;
  double best_ps = 0;
  const auto consider = [&](int64_t grain, int homes) {
    const double time_ps = launch_time(work, grain, homes, is_hot, costs);
    best_ps = count == 0 ? time_ps : std::min(best_ps, time_ps);
    if (count < kMostChoices) tried[count++] = {grain, homes, time_ps};
  };
  consider(blocks, 1);
  // Fewest homes first, and for each from small tasks to large ones, so that the first of those
  // that are as good as the best is the safest.
  const int most = static_cast<int>(std::min<int64_t>(homes_allowed, blocks));
  for (int homes = 2; homes <= most; homes = homes < most ? std::min(homes * 2, most) : most + 1) {
    // Shares that are equal: every home has as many tasks, but for what cannot be divided.
    int64_t before = 0;
    for (int64_t tasks = kTasksPerHome; tasks >= 1; tasks /= 2) {
      const int64_t grain = ceil_div(blocks, homes * tasks);
      if (grain != before) consider(grain, homes);
      before = grain;
    }
    if (homes == 2 && is_hot) consider(head_start_grain(work, costs), homes);
  }
  const auto is_as_good = [&](const LaunchChoice& choice) {
    return choice.time_ps <= best_ps * (1 + costs.tie);
  };
  LaunchChoice chosen = *std::find_if(tried, tried + count, is_as_good);
  chosen.homes = static_cast<int>(std::min<int64_t>(chosen.homes, ceil_div(blocks, chosen.grain)));
  return chosen;
}

}  // namespace grainline
