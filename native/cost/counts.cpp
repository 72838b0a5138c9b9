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

ExecutionWork count_tasks(int64_t packets, int64_t blocks, int64_t packets_per_block,
                          int64_t workers, int64_t blocks_per_task, int64_t chunks_per_worker) {
  ExecutionWork work;
  if (blocks <= 0) return work;
  work.packet_count = packets;
  work.block_count = blocks;
  const int64_t grain =
      blocks_per_task > 0 ? blocks_per_task : ceil_div(blocks, workers * chunks_per_worker);
  work.blocks_per_task = std::min(grain, blocks);
  work.task_count = ceil_div(blocks, work.blocks_per_task);
  work.active_workers = std::min(work.task_count, workers);
  if (work.active_workers <= 1) {
    // The runtime makes one call for the whole range, whatever grain was asked for.
    work.task_count = work.active_workers = work.critical_tasks = 1;
    work.blocks_per_task = work.critical_blocks = blocks;
    work.critical_packets = packets;
    return work;
  }
  work.critical_packets = critical(packets, work.blocks_per_task * packets_per_block,
                                   work.task_count, work.active_workers);
  work.critical_blocks =
      critical(blocks, work.blocks_per_task, work.task_count, work.active_workers);
  work.critical_tasks = ceil_div(work.task_count, work.active_workers);
  return work;
}

ExecutionWork count_work(const WorkRequest& r) {
  if (r.physical_programs <= 0) return {};
  return count_tasks(ceil_div(r.physical_programs, r.packet_width),
                     ceil_div(r.physical_programs, r.block_size), r.block_size / r.packet_width,
                     r.workers, r.blocks_per_task, r.chunks_per_worker);
}

}  // namespace grainline
