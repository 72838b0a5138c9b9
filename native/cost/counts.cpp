#include "cost/counts.h"

#include <algorithm>

namespace grainline {
namespace {

int64_t ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// The most that one of `homes` homes gets of `total` items in `tasks` tasks, `per_task` in each
// but the last: either a home with full tasks only, or the one that holds the last.
int64_t critical(int64_t total, int64_t per_task, int64_t tasks, int64_t homes) {
  const int64_t full = tasks - 1;
  const int64_t last = total - full * per_task;
  return std::max(ceil_div(full, homes) * per_task, full / homes * per_task + last);
}

}  // namespace

ExecutionWork count_work(const WorkRequest& r) {
  ExecutionWork work;
  if (r.physical_programs <= 0) return work;
  work.packet_count = ceil_div(r.physical_programs, r.packet_width);
  work.block_count = ceil_div(r.physical_programs, r.block_size);
  const int64_t chunks = r.workers * r.chunks_per_worker;
  const int64_t grain =
      r.blocks_per_task > 0 ? r.blocks_per_task : ceil_div(work.block_count, chunks);
  work.blocks_per_task = std::min(grain, work.block_count);
  work.task_count = ceil_div(work.block_count, work.blocks_per_task);
  work.active_workers = std::min(work.task_count, r.workers);
  if (work.active_workers <= 1) {
    // The runtime makes one call for the whole range, whatever grain was asked for.
    work.task_count = work.active_workers = work.critical_tasks = 1;
    work.blocks_per_task = work.critical_blocks = work.block_count;
    work.critical_packets = work.packet_count;
    return work;
  }
  const int64_t packets_per_task = work.blocks_per_task * (r.block_size / r.packet_width);
  work.critical_packets =
      critical(work.packet_count, packets_per_task, work.task_count, work.active_workers);
  work.critical_blocks =
      critical(work.block_count, work.blocks_per_task, work.task_count, work.active_workers);
  work.critical_tasks = ceil_div(work.task_count, work.active_workers);
  return work;
}

}  // namespace grainline
