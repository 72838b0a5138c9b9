// The default objective over ExecutionWork: six terms and their sum. Smaller is better.
#pragma once

#include "cost/counts.h"

namespace grainline {

struct CostCoefficients {
  double arithmetic = 1;
  double broadcast_load = 1;
  double contiguous_memory = 2;
  double gathered_lane = 2;
  double block_dispatch = 128;
  double task_dispatch = 0;
  double worker_activation = 0;
};

struct CostTerms {
  double arithmetic = 0;
  double memory = 0;
  double block_dispatch = 0;
  double imbalance = 0;
  double task_dispatch = 0;
  double worker_activation = 0;
  double score = 0;  // the sum of the six
};

// Pure. The per-packet figures of `work` already hold the four per-operation
// coefficients.
CostTerms cost_terms(const ExecutionWork& work, const CostCoefficients& coefficients);

}  // namespace grainline
