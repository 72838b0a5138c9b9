#include "exec/observer.h"

#include <algorithm>

#include "base/clock.h"
#include "device/command_log.h"

namespace grainline {

void NodeTimes::on_event(const RunEvent& event) {
  NodeTime& time = times_[event.node];
  const auto live_bytes = static_cast<int64_t>(event.live_bytes);
  if (event.kind == EventKind::node_started || event.kind == EventKind::node_resumed)
    CommandLog::set_cause(static_cast<int64_t>(event.node));
  if (event.kind == EventKind::node_started) time = {now_ns(), 0, event.worker, -live_bytes};
  // What others did meanwhile is not the node's. (A parked node keeps what it has got: it gets the
  // rest before it ends.)
  if (event.kind == EventKind::node_parked) time.taken_bytes += live_bytes;
  if (event.kind == EventKind::node_resumed) time.taken_bytes -= live_bytes;
  if (event.kind == EventKind::node_ended || event.kind == EventKind::node_failed) {
    time.end_ns = now_ns();
    time.taken_bytes += live_bytes;
  }
}

void EventLog::on_event(const RunEvent& event) {
  const size_t number = count_.fetch_add(1, std::memory_order_seq_cst);
  entries_[number % entries_.size()] = {now_ns(), static_cast<int64_t>(event.node), event.worker,
                                        event.kind};
}

std::vector<EventLog::Entry> EventLog::entries() const {
  const size_t count = count_.load(std::memory_order_acquire);
  std::vector<Entry> ordered;
  for (size_t number = lost(); number < count; ++number)
    ordered.push_back(entries_[number % entries_.size()]);
  return ordered;
}

size_t EventLog::lost() const {
  const size_t count = count_.load(std::memory_order_acquire);
  return count - std::min(count, entries_.size());
}

}  // namespace grainline
