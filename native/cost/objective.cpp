#include "cost/objective.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace grainline {
namespace {

Status check_terms(const CostTerms& t) {
  const struct {
    const char* name;
    double value;
  } terms[] = {{"arithmetic", t.arithmetic},
               {"memory", t.memory},
               {"block_dispatch", t.block_dispatch},
               {"imbalance", t.imbalance},
               {"task_dispatch", t.task_dispatch},
               {"worker_activation", t.worker_activation},
               {"score", t.score}};
  for (const auto& term : terms) {
    if (!std::isfinite(term.value) || term.value < 0)
      return Status(StatusCode::invalid_argument, std::string("cost term ") + term.name +
                                                      ": expected a finite number >= 0, found " +
                                                      std::to_string(term.value));
  }
  return Status();
}

}  // namespace

Status evaluate_cost(const ExecutionWork& work, const CostCoefficients& c, CostTerms& terms) {
  terms = CostTerms{};
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
  return check_terms(terms);
}

}  // namespace grainline
