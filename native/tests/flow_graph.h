// Random graphs with branches and loops inside each other, as the planner makes them for a device
// with memory of its own: see execgraph/frames.py for the frames and execgraph/placement.py for the
// copies.
#pragma once

#include <cstdint>

#include "copy_graph.h"

namespace grainline::test {

// Every condition and trip count is computed by launches. `outputs` are what a walk over the
// structure gives, which knows nothing of nodes, edges and slots that take turns. keeps_reads:
// what replaces the contents of a slot waits for who reads them, as it must.
CopyGraph random_flow_graph(uint64_t seed, bool keeps_reads = true);

}  // namespace grainline::test
