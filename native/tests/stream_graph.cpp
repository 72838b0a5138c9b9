#include "stream_graph.h"

#include <algorithm>
#include <map>
#include <utility>

namespace grainline::test {
namespace {

// Per stream how many of its submissions are known to be over.
using Clock = std::vector<size_t>;

void advance(Clock& clock, const Clock& by) {
  for (size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], by[s]);
}

class Spreading {
 public:
  Spreading(const CopyGraph& graph, size_t streams, bool drops_events, std::mt19937_64& random)
      : graph_(graph),
        made_(graph),
        random_(random),
        drops_events_(drops_events),
        queues_(streams),
        known_(streams, Clock(streams)) {
    made_.nodes.clear();
    choose_streams();
  }

  CopyGraph graph() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) put(i);
    return std::move(made_);
  }

 private:
  struct Access {
    int64_t alias;  // a slot
    int64_t node;   // that makes it
    std::vector<int64_t> users = {};
  };
  using StreamOfSlot = std::pair<int64_t, int64_t>;

  // The device slots that a submission touches, where they are named.
  std::vector<int64_t*> slots_of(CopyNode& node) {
    Program& p = made_.tables;
    std::vector<int64_t*> found;
    const auto add_targets = [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        found.push_back(&p.tensor_copies[static_cast<size_t>(t)].target);
    };
    if (node.kernel == "CopyH2D" || node.kernel == "MakeSureTensorAtDevice") {
      add_targets(node.a, node.b);
    } else if (node.kernel == "CopyFlowLaunch") {
      const CopyFlowRow& flow = p.copy_flows[static_cast<size_t>(node.a)];
      add_targets(flow.tensor_begin, flow.tensor_end);
    } else if (node.kernel == "Launch") {
      const LaunchRow& row = p.launches[static_cast<size_t>(node.a)];
      for (int64_t v = row.view_begin; v < row.view_end; ++v)
        found.push_back(&p.views[static_cast<size_t>(v)].slot);
    } else if (node.kernel == "CopyD2H" || node.kernel == "EnsureTensorAtOutMemory") {
      found.push_back(&node.a);
    }
    return found;
  }

  // The first submission that uses a block is on the stream where the block is born.
  void choose_streams() {
    for (const CopyNode& original : graph_.nodes) {
      CopyNode node = original;
      const std::vector<int64_t*> slots = slots_of(node);
      const auto stream = static_cast<int64_t>(random_() % queues_.size());
      stream_of_.push_back(slots.empty() ? -1 : stream);
      for (const int64_t* slot : slots) birth_.emplace(*slot, stream);
      if (node.kernel == "Launch") launch_streams_[node.a] = stream;
    }
    for (const CopyNode& node : graph_.nodes)
      if (node.kernel == "AllocWorkspace") birth_[node.a] = launch_streams_[node.b];
    for (const auto& [slot, stream] : birth_)
      made_.tables.slots[static_cast<size_t>(slot)].stream = stream;
  }

  int64_t add(CopyNode node, const Clock& clock) {
    made_.nodes.push_back(std::move(node));
    clocks_.push_back(clock);
    return static_cast<int64_t>(made_.nodes.size()) - 1;
  }

  Clock clock_behind(const std::vector<int64_t>& before) const {
    Clock clock(queues_.size());
    for (const int64_t other : before) advance(clock, clocks_[static_cast<size_t>(other)]);
    return clock;
  }

  void put(size_t index) {
    CopyNode node = graph_.nodes[index];
    node.related.clear();
    const bool is_launch = node.kernel == "Launch";
    if (is_launch && last_launch_ >= 0) node.before.erase(node.before.begin());
    if (is_launch) last_launch_ = static_cast<int64_t>(index);
    if (node.before.empty() && index > 0) node.before = {0};
    for (int64_t& other : node.before) other = place_[static_cast<size_t>(other)];
    if (node.kernel == "FreeMemory" && node.b == 0) free_accesses(node);
    const int64_t allocated = node.kernel == "AllocMemory" ? node.a : -1;
    const Clock clock = clock_behind(node.before);
    place_.push_back(stream_of_[index] < 0 ? add(std::move(node), clock)
                                           : submit(std::move(node), stream_of_[index], clock));
    if (allocated >= 0) maker_[allocated] = place_.back();
  }

  int64_t submit(CopyNode node, int64_t stream, Clock clock) {
    const auto s = static_cast<size_t>(stream);
    node.stream = stream;
    const bool makes = node.kernel != "Launch" && node.kernel != "CopyD2H" &&
                       node.kernel != "EnsureTensorAtOutMemory";
    std::vector<Access*> used;
    for (int64_t* slot : slots_of(node))
      if (!makes && birth_[*slot] != stream) used.push_back(&access(slot, stream, node));
    for (size_t other = 0; other < queues_.size(); ++other)
      if (other != s && clock[other] > known_[s][other]) wait(node, s, other, clock[other]);
    if (!queues_[s].empty()) node.before.push_back(queues_[s].back());
    clock[s] = queues_[s].size() + 1;
    std::vector<int64_t> made;
    if (makes)
      for (const int64_t* slot : slots_of(node)) made.push_back(*slot);
    const int64_t placed = add(std::move(node), clock);
    for (const int64_t slot : made) maker_[slot] = placed;
    queues_[s].push_back(placed);
    for (Access* one : used) one->users.push_back(placed);
    return placed;
  }

  // Names another slot of this stream in the place of a slot that was born on another.
  Access& access(int64_t* slot, int64_t stream, CopyNode& node) {
    const auto [at, is_new] = accesses_.try_emplace(StreamOfSlot{*slot, stream});
    if (is_new) {
      SlotRow row = made_.tables.slots[static_cast<size_t>(*slot)];
      row.stream = stream;
      made_.tables.slots.push_back(row);
      at->second.alias = static_cast<int64_t>(made_.tables.slots.size()) - 1;
      const std::vector<int64_t> before = {maker_.at(*slot)};
      at->second.node =
          add({"AccessMemCrossStream", *slot, at->second.alias, 0, before}, clock_behind(before));
    }
    *slot = at->second.alias;
    node.before.push_back(at->second.node);
    return at->second;
  }

  void wait(CopyNode& node, size_t stream, size_t other, size_t position) {
    known_[stream][other] = position;
    if (drops_events_ && random_() % 2) return;
    std::vector<int64_t>& events = made_.tables.event_lists;
    const auto number = static_cast<int64_t>(events.size());
    events.push_back(number);
    const int64_t behind = queues_[other][position - 1];
    const Clock clock = clocks_[static_cast<size_t>(behind)];
    const int64_t sent =
        add({"SendEvents", static_cast<int64_t>(other), number, number + 1, {behind}}, clock);
    node.before.push_back(
        add({"WaitEvents", static_cast<int64_t>(stream), number, number + 1, {sent}}, clock));
  }

  // Every stream that uses the block gives its own access back; the guarder waits for the access
  // and for users of its stream.
  void free_accesses(CopyNode& guarder) {
    for (auto at = accesses_.begin(); at != accesses_.end();) {
      if (at->first.first != guarder.a) {
        ++at;
        continue;
      }
      const Access& one = at->second;
      std::vector<int64_t> before = one.users;
      before.push_back(one.node);
      add({"FreeMemory", one.alias, 0, 0, before}, clock_behind(before));
      std::erase_if(guarder.before,
                    [&](int64_t other) { return std::ranges::count(one.users, other) > 0; });
      guarder.before.push_back(one.node);
      at = accesses_.erase(at);
    }
  }

  const CopyGraph& graph_;
  CopyGraph made_;
  std::mt19937_64& random_;
  const bool drops_events_;
  std::vector<std::vector<int64_t>> queues_;  // what each stream submits
  std::vector<Clock> known_;                  // what each stream waited for
  std::vector<Clock> clocks_;                 // by node that was made
  std::vector<int64_t> stream_of_;            // by node of the graph; -1: submits nothing
  std::vector<int64_t> place_;                // by node of the graph: its place in what is made
  std::map<int64_t, int64_t> birth_, launch_streams_;  // by slot; by launch
  std::map<int64_t, int64_t> maker_;                   // by slot: the node that was made
  std::map<StreamOfSlot, Access> accesses_;
  int64_t last_launch_ = -1;
};

}  // namespace

CopyGraph spread_over_streams(const CopyGraph& graph, size_t streams, bool drops_events,
                              std::mt19937_64& random) {
  return Spreading(graph, streams, drops_events, random).graph();
}

}  // namespace grainline::test
