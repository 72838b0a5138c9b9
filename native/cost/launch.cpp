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

// Where every processor of an architecture must run the code, std::ceil is a call.
int64_t rounded_up(double value) {
  const auto whole = static_cast<int64_t>(value);
  return whole + (static_cast<double>(whole) < value ? 1 : 0);
}

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
// begins at 0 and `others` homes that begin at `delay` and take `slower` times as long; who is free
// takes the next.
double finish(int64_t tasks, double each, double last, int64_t others, double delay,
              double slower) {
  const double full = static_cast<double>(tasks) * each;
  if (full + last <= delay || each <= 0) return full + last;
  const double theirs = each * slower;
  const double speed = static_cast<double>(others) / slower;
  // Nobody lacks a task before all tasks had ended if they could be cut at will; until one of the
  // others' tasks before that, counting suffices.
  const double fluid = (full + delay * speed) / (1 + speed);
  const double start = std::max(std::min(fluid, full) - theirs, 0.0);
  const int64_t mine = rounded_up(start / each);
  const int64_t rounds = start > delay ? rounded_up((start - delay) / theirs) : 0;
  int64_t left = tasks - mine - others * rounds;
  double caller = static_cast<double>(mine) * each;
  // When the first of the others is free.
  double earliest = delay + static_cast<double>(rounds) * theirs;
  double latest = rounds > 0 ? earliest : 0;
  while (left > 0) {
    if (caller <= earliest) {
      caller += each;
      --left;
      continue;
    }
    latest = earliest + theirs;
    if (left >= others) earliest = latest;
    left -= others;
  }
  const double end = std::max(caller, latest);
  if (last <= 0) return end;
  return std::max(end, caller <= earliest ? caller + last : earliest + last * slower);
}

// What the grain of a launch by two homes or more does not change. `late`: when the others begin,
// after the caller; bus: what memory shared by all takes at least.
struct Shared {
  int64_t blocks, others;
  double block, task, paid, late, bus;
};

double work_of(const LaunchWork& w, int homes, const MachineCosts& c) {
  const double memory = memory_ps(static_cast<double>(w.traffic_bytes), homes, c);
  return overlapped(static_cast<double>(w.work_ps), memory);
}

Shared shared_by(int homes, const LaunchWork& w, bool is_hot, const MachineCosts& c) {
  const int64_t blocks = std::max<int64_t>(w.blocks, 1);
  const int levels = std::bit_width(static_cast<unsigned>(homes - 1)) - 1;
  const double paid = is_hot ? c.hot_paid_ps : c.parked_paid_ps;
  const double delay = is_hot ? c.hot_delay_ps : c.parked_delay_ps + levels * c.home_delay_ps;
  const double bus = beyond(static_cast<double>(w.traffic_bytes), c.shared_bytes) * c.bus_byte_ps;
  return {blocks,
          homes - 1,
          work_of(w, homes, c) * (1 + c.crowd) / static_cast<double>(blocks),
          static_cast<double>(w.task_ps) + c.task_ps,
          paid,
          std::max(delay - paid, 0.0),
          bus};
}

// The time in tasks of `grain` blocks, one for every home at least, where the others take `slower`
// times as long as the caller.
double time_beside(double slower, const Shared& s, int64_t grain) {
  const int64_t whole = s.blocks / grain, rest = s.blocks % grain;
  const double each = s.block * static_cast<double>(grain) + s.task;
  const double last = rest > 0 ? s.block * static_cast<double>(rest) + s.task : 0;
  return s.paid + std::max(finish(whole, each, last, s.others, s.late, slower), s.bus);
}

double expected(const Shared& s, int64_t grain) {
  const double equal = time_beside(1, s, grain);
  return equal + kSlowShare * (time_beside(kSlower, s, grain) - equal);
}

double time_alone(const LaunchWork& w, const MachineCosts& c) {
  return work_of(w, 1, c) + static_cast<double>(w.task_ps);
}

// Of `homes` those that have a task.
int homes_with_tasks(int64_t blocks, int64_t grain, int homes) {
  const int64_t tasks = grain >= blocks ? 1 : ceil_div(blocks, grain);
  return static_cast<int>(std::min<int64_t>(homes, tasks));
}

// Two tasks of which the caller's is longer by what it does before the other home has begun, which
// is awake: nobody knows so well when a sleeping one comes, and then more tasks leave less to wait
// for.
int64_t head_start_grain(const Shared& s) {
  const auto blocks = static_cast<double>(s.blocks);
  const double more = s.block > 0 ? s.late / s.block : 0;
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
  homes = homes_with_tasks(w.blocks, grain, homes);
  return homes <= 1 ? time_alone(w, c) : time_beside(1, shared_by(homes, w, is_hot, c), grain);
}

double expected_time(const LaunchWork& w, int64_t grain, int homes, bool is_hot,
                     const MachineCosts& c) {
  homes = homes_with_tasks(w.blocks, grain, homes);
  return homes <= 1 ? time_alone(w, c) : expected(shared_by(homes, w, is_hot, c), grain);
}

LaunchTerms launch_terms(const LaunchWork& w, double blocks_ps, int64_t grain, int homes,
                         bool is_hot, const MachineCosts& c) {
  const int64_t blocks = std::max<int64_t>(w.blocks, 1);
  const int64_t tasks = grain >= blocks ? 1 : ceil_div(blocks, grain);
  const int64_t active = std::max<int64_t>(std::min<int64_t>(homes, tasks), 1);
  const auto share = static_cast<double>(active);
  const auto work = static_cast<double>(w.work_ps);
  LaunchTerms t{};
  t.time_ps = expected_time(w, grain, homes, is_hot, c);
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
  const auto consider = [&](int64_t grain, int homes, double time_ps) {
    best_ps = count == 0 ? time_ps : std::min(best_ps, time_ps);
    if (count < kMostChoices) tried[count++] = {grain, homes, time_ps};
  };
  consider(blocks, 1, time_alone(work, costs));
  // Fewest homes first, and for each from small tasks to large ones, so that the first of those
  // that are as good as the best is the safest.
  const int most = static_cast<int>(std::min<int64_t>(homes_allowed, blocks));
  for (int homes = 2; homes <= most; homes = homes < most ? std::min(homes * 2, most) : most + 1) {
    const Shared shared = shared_by(homes, work, is_hot, costs);
    // Shares that are equal: every home has as many tasks, but for what cannot be divided.
    int64_t before = 0;
    for (int64_t tasks = kTasksPerHome; tasks >= 1; tasks /= 2) {
      const int64_t grain = ceil_div(blocks, homes * tasks);
      const int used = homes_with_tasks(blocks, grain, homes);
      if (grain != before && used == homes) consider(grain, homes, expected(shared, grain));
      if (grain != before && used < homes)
        consider(grain, used, expected_time(work, grain, used, is_hot, costs));
      before = grain;
    }
    const int64_t grain = head_start_grain(shared);
    if (homes == 2 && is_hot && grain < blocks) consider(grain, homes, expected(shared, grain));
  }
  const auto is_as_good = [&](const LaunchChoice& choice) {
    return choice.time_ps <= best_ps * (1 + costs.tie);
  };
  return *std::find_if(tried, tried + count, is_as_good);
}

}  // namespace grainline
