// Predicted time of one launch, and the task grain and homes that end it first. Pure, no
// allocation, about ten nanoseconds per grain. The choice changes time only, never bits.
//
// The model: a launch is cut into tasks of G blocks. The caller begins at once, every other home
// after a delay, and whoever is free takes the next task; the launch ends when all are done. A task
// costs something of its own, and memory beyond the caches is shared by all homes. Arithmetic and
// memory overlap: the square of the work's time is the sum of the squares of both.
//
// Homes are never equally fast, and what static balance promises is no proof. So launches are
// chosen by the time that is expected when now and then the others take longer, for which small
// tasks leave less to wait for; and of times that are as good as the same the safest is chosen:
// fewest homes, then the smallest tasks.
#pragma once

#include <cstdint>

namespace grainline {

// What one launch asks for. work_ps: arithmetic, on one core with everything in its first cache.
struct LaunchWork {
  int64_t work_ps = 0;
  int64_t traffic_bytes = 0;  // distinct bytes that it reads and writes
  int64_t task_ps = 0;        // done again by every task, such as streaming a packed matrix
  int64_t blocks = 0;
};

// What this machine takes, in picoseconds. The defaults suit a virtual x86-64 server.
struct MachineCosts {
  double task_ps = 39e3;            // claiming and settling one task
  double hot_paid_ps = 150e3;       // what the caller pays to hand work over, threads awake
  double hot_delay_ps = 300e3;      // until another home has begun
  double parked_paid_ps = 7e6;      // the same when threads must be woken
  double parked_delay_ps = 17e6;    // since the dispatch began
  double home_delay_ps = 1e6;       // parked: later by this for each doubling of the homes
  double nearest_bytes = 32 << 10;  // first cache of a core
  double private_bytes = 1 << 20;   // all caches of a core
  double shared_bytes = 32 << 20;   // cache of all cores
  double private_byte_ps = 5;       // a byte that is not found in the first cache, on one core
  double shared_byte_ps = 6.5;      // beyond the core's own
  double memory_byte_ps = 48;       // beyond all
  double bus_byte_ps = 29;          // a byte of memory, all cores together
  double crowd = 0;   // of the work: how much slower each home is when others work too
  double tie = 0.02;  // predictions this close are the same

  bool operator==(const MachineCosts&) const = default;
};

// What launches are chosen by in this process; set when a machine's own costs are known.
void set_machine_costs(const MachineCosts& costs);
MachineCosts machine_costs();

// grain: blocks per task.  homes == 1  =>  grain == max(blocks, 1): one inline call.
struct LaunchChoice {
  int64_t grain;
  int homes;
  double time_ps;  // expected
};

// With homes that are equally fast. grain >= 1, homes >= 1. One task or one home is an inline call.
double launch_time(const LaunchWork& work, int64_t grain, int homes, bool is_hot,
                   const MachineCosts& costs);

// One launch of kSlowShare meets other homes that take kSlower times as long as the caller:
// somebody else's thread had their processors, or the sibling of their core. That is no price of a
// machine.
inline constexpr double kSlowShare = 1.0 / 8;
inline constexpr double kSlower = 2;
double expected_time(const LaunchWork& work, int64_t grain, int homes, bool is_hot,
                     const MachineCosts& costs);

// Where the expected time of a launch goes, on the home that ends last: the objective of a
// planner's candidate. blocks_ps of work_ps are what starting blocks takes. The terms sum to
// time_ps, but for the rounding, and but for what memory shared by all homes saves.
struct LaunchTerms {
  double arithmetic_ps, memory_ps, blocks_ps, lost_ps, tasks_ps, paid_ps, time_ps;
};
LaunchTerms launch_terms(const LaunchWork& work, double blocks_ps, int64_t grain, int homes,
                         bool is_hot, const MachineCosts& costs);

// The choice that is expected to end first among the whole range, 1, 2, 4 ... 64 equal tasks a
// home, and for two awake homes a task each of which the caller's is longer, for it begins first.
// Of those within `tie` of it the safest: fewest homes, then smallest tasks.
LaunchChoice choose_launch(const LaunchWork& work, int homes_allowed, bool is_hot,
                           const MachineCosts& costs);

}  // namespace grainline
