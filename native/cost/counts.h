// Closed counts: what a launch of `programs` tile programs means in packets, blocks and tasks.
// Exact as counts, be tasks dealt to h homes in turn or in ranges; stealing makes them no bound in
// time.
#pragma once

#include <cstdint>

namespace grainline {

struct WorkRequest {
  int64_t physical_programs = 0;
  int64_t packet_width = 8;        // W
  int64_t block_size = 32;         // B, a multiple of W
  int64_t workers = 1;             // H
  int64_t blocks_per_task = 0;     // G; 0: ceil(L / (H T))
  int64_t chunks_per_worker = 32;  // T
};

// h = 1  =>  task_count = 1 and blocks_per_task = block_count.  No programs: all zero.
struct ExecutionWork {
  double arithmetic_per_packet = 0;
  double memory_per_packet = 0;
  int64_t packet_count = 0;     // Q
  int64_t block_count = 0;      // L
  int64_t task_count = 0;       // C
  int64_t active_workers = 0;   // h
  int64_t blocks_per_task = 0;  // G, effective
  int64_t critical_packets = 0;
  int64_t critical_blocks = 0;
  int64_t critical_tasks = 0;
};

// Pure. Everything but the two per-packet figures, which the caller fills in.
ExecutionWork count_work(const WorkRequest& request);

// The same for packets and blocks that the mapping has counted: of `blocks` blocks all but the last
// hold packets_per_block packets.
ExecutionWork count_tasks(int64_t packets, int64_t blocks, int64_t packets_per_block,
                          int64_t workers, int64_t blocks_per_task, int64_t chunks_per_worker);

}  // namespace grainline
