// Finding out that nothing can move any more, and saying why. Off the hot path: only who has waited
// long looks around.
#include <algorithm>

#include "exec/stall.h"
#include "exec/worker_team.h"

namespace grainline {
namespace {

constexpr size_t kLongestChain = 16;

}  // namespace

bool WorkerTeam::is_stuck(size_t worker, uint32_t blocked_at) const {
  if (blocked_at == kFinished) return true;
  if (blocked_at == 0) return false;
  return !are_predecessors_done(plan_.workers[worker].steps[blocked_at - 1].node);
}

// Whether no other worker can run a step before `worker` does. Acquire: whoever reads where a
// worker waits sees all steps that it ran before.
bool WorkerTeam::are_others_stuck(size_t worker) {
  return were_all_stuck(
      desks_[worker].places,
      [&](size_t other) { return desks_[other].blocked_at.load(std::memory_order_acquire); },
      [&](size_t other, uint32_t at) { return other == worker || is_stuck(other, at); });
}

// The watchdog of whoever sleeps. While the memory worker is out of order it decides itself.
void WorkerTeam::look_around(size_t worker) {
  if (control_.load(std::memory_order_acquire) != 0) return;
  const uint32_t at = desks_[worker].blocked_at.load(std::memory_order_relaxed);  // its own
  // In this order: before the others were stuck, one of them may have released this one.
  if (at == kFinished || !are_others_stuck(worker) || !is_stuck(worker, at)) return;
  fail(StatusCode::internal, stall_report({}));
}

std::string WorkerTeam::name_of_node(size_t node) const {
  const std::string number = std::to_string(node);
  if (node >= program_.node_rows.size() || program_.strings.empty()) return "node " + number;
  const NodeRow& row = program_.node_rows[node];
  return "node " + number + " '" + program_.string(row.compute_node) + "' (" +
         program_.string(row.kernel_name) + ")";
}

// "nothing can go on: allocation node 3 'm' (AllocMemory) waits for launches; node 5 'l' (Launch)
// is to be submitted and waits for node 4 ..., which waits for ..."
std::string WorkerTeam::stall_report(const std::vector<size_t>& waiting) {
  std::string report = "nothing can go on";
  for (const size_t node : waiting) report += "; " + name_of_node(node) + " waits for launches";
  std::vector<size_t> roots = relations_.unmet_launches();
  for (size_t worker = 0; roots.empty() && worker < desks_.size(); ++worker) {
    const uint32_t at = desks_[worker].blocked_at.load(std::memory_order_acquire);
    if (at != 0 && at != kFinished) roots.push_back(plan_.workers[worker].steps[at - 1].node);
  }
  for (size_t node : roots) {
    report += "; " + name_of_node(node) + " is to be run";
    for (size_t links = 0; links < kLongestChain; ++links) {
      const auto before = plan_.predecessors.row(node);
      const auto undone = std::ranges::find_if(
          before, [&](int64_t other) { return !is_done(static_cast<size_t>(other)); });
      if (undone == before.end()) break;
      node = static_cast<size_t>(*undone);
      report += ", waits for " + name_of_node(node);
    }
  }
  return report;
}

}  // namespace grainline
