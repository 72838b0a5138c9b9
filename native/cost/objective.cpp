#include "cost/objective.h"

#include <algorithm>

namespace grainline {
CostTerms cost_terms(const ExecutionWork& work, const CostCoefficients& c) {
  CostTerms terms;
  if (work.active_workers > 0) {
    const double share =
        static_cast<double>(work.packet_count) / static_cast<double>(work.active_workers);
    const double excess = std::max(0.0, static_cast<double>(work.critical_packets) - share);
    terms.arithmetic = work.arithmetic_per_packet * share;
    terms.memory = work.memory_per_packet * share;
    terms.block_dispatch = c.block_dispatch * static_cast<double>(work.critical_blocks);
    terms.imbalance = excess * (work.arithmetic_per_packet + work.memory_per_packet);
    terms.task_dispatch = c.task_dispatch * static_cast<double>(work.critical_tasks);
    terms.worker_activation = work.active_workers > 1 ? c.worker_activation : 0;
  }
  terms.score = terms.arithmetic + terms.memory + terms.block_dispatch + terms.imbalance +
                terms.task_dispatch + terms.worker_activation;
  return terms;
}

}  // namespace grainline
