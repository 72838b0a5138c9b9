// A random graph of copies and launches, spread over several streams as the planner would do it.
#pragma once

#include <cstddef>
#include <random>

#include "copy_graph.h"

namespace grainline::test {

// The graph, which has fused copies, with every submission on a random one of `streams` streams:
// events where one needs what another stream does, an access of its own for every stream that uses
// a block, and no order between launches but the one that their data ask for. drops_events: some
// events are missing.
CopyGraph spread_over_streams(const CopyGraph& graph, size_t streams, bool drops_events,
                              std::mt19937_64& random);

}  // namespace grainline::test
