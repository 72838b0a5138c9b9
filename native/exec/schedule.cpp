#include "exec/schedule.h"

#include <algorithm>
#include <string>

#include "exec/kernels.h"
#include "exec/program.h"

namespace grainline {
namespace {

Status refused(std::string message) {
  return Status(StatusCode::invalid_argument, "the packed program is malformed: " + message);
}

std::string at_node(size_t node) { return " at node " + std::to_string(node); }

WorkerClass class_of_section(std::string_view section) {
  if (section == "memory") return WorkerClass::memory;
  return section == "launch" ? WorkerClass::launch : WorkerClass::normal;
}

const KernelType& type_of(const Program& p, size_t node) {
  return kernel_types()[static_cast<size_t>(p.node_rows[node].kernel)];
}

bool is_class(int64_t number) {
  return 0 <= number && number < static_cast<int64_t>(kWorkerClasses);
}

// With three workers a kernel may leave the memory worker for the normal one.
Status check_workers(const Program& p) {
  if (p.node_workers.size() != p.node_rows.size())
    return refused("expected workers of " + std::to_string(p.node_rows.size()) + " nodes, found " +
                   std::to_string(p.node_workers.size()));
  for (size_t node = 0; node < p.node_workers.size(); ++node) {
    const NodeWorkers& workers = p.node_workers[node];
    if (!is_class(workers.worker) || !is_class(workers.worker_of_three))
      return refused("an unknown worker" + at_node(node));
    const WorkerClass wanted = class_of_section(type_of(p, node).section);
    const auto of_three = static_cast<WorkerClass>(workers.worker_of_three);
    const bool is_wrong =
        wanted != WorkerClass::normal && (static_cast<WorkerClass>(workers.worker) != wanted ||
                                          (of_three != wanted && of_three != WorkerClass::normal));
    if (is_wrong) return refused("a worker that does not fit the kernel's section" + at_node(node));
  }
  return {};
}

Status check_watchers(const Program& p) {
  for (size_t node = 0; node < p.node_rows.size(); ++node)
    for (const int64_t watcher : p.watchers.row(node))
      if (watcher <= static_cast<int64_t>(node) &&
          type_of(p, static_cast<size_t>(watcher)).control != Control::join)
        return refused("a watcher that does not stand behind" + at_node(node));
  return {};
}

Status check_relations(const Program& p) {
  for (size_t node = 0; node < p.node_rows.size(); ++node) {
    const std::span<const int64_t> row = p.relations.row(node);
    if (row.empty() == type_of(p, node).holds_address)
      return refused(row.empty() ? "a Free keeps its address without a relation" + at_node(node)
                                 : "a relation of a node that is no such Free" + at_node(node));
    for (const int64_t launch : row)
      if (type_of(p, static_cast<size_t>(launch)).section != "launch")
        return refused("a relation to a node that is not registered as a launch" + at_node(node));
  }
  return {};
}

Status check_borders(const Program& p) {
  const std::vector<int32_t> frame_of = frames_of_nodes(p);
  std::vector<uint8_t> is_started(frame_of.size());
  for (const FrameRow& frame : p.frames) is_started[static_cast<size_t>(frame.begin)] = 1;
  for (size_t node = 0; node < frame_of.size(); ++node) {
    const int32_t frame = frame_of[node];
    if (frame < 0 && type_of(p, node).control != Control::none)
      return refused("a switch outside of the frames" + at_node(node));
    for (const int64_t id : p.watchers.row(node)) {
      const auto watcher = static_cast<size_t>(id);
      const int32_t other = frame_of[watcher];
      if (other >= 0 && other != frame &&
          static_cast<int64_t>(node) > p.frames[static_cast<size_t>(other)].begin)
        return refused("an edge back into a frame" + at_node(node));
      is_started[watcher] |= other == frame;
    }
    bool is_related = !p.relations.row(node).empty() && frame >= 0;
    for (const int64_t launch : p.relations.row(node))
      is_related |= frame_of[static_cast<size_t>(launch)] >= 0;
    if (is_related) return refused("a relation inside of a frame" + at_node(node));
  }
  for (size_t node = 0; node < frame_of.size(); ++node)
    if (frame_of[node] >= 0 && !is_started[node])
      return refused("nothing of the frame starts it" + at_node(node));
  return {};
}

Status check_frames(const Program& p) {
  int64_t last = 0;
  for (const FrameRow& frame : p.frames) {
    const bool is_behind = last <= frame.begin && frame.begin < frame.end &&
                           frame.end <= static_cast<int64_t>(p.node_rows.size());
    if (!is_behind)
      return refused("a frame that does not stand behind" + at_node(static_cast<size_t>(last)));
    last = frame.end;
  }
  return check_borders(p);
}

}  // namespace

std::vector<int32_t> frames_of_nodes(const Program& program) {
  std::vector<int32_t> frame_of(program.node_rows.size(), -1);
  for (size_t frame = 0; frame < program.frames.size(); ++frame)
    std::fill(frame_of.begin() + program.frames[frame].begin,
              frame_of.begin() + program.frames[frame].end, static_cast<int32_t>(frame));
  return frame_of;
}

Status check_rows(const IdRows& rows, size_t nodes, std::string_view what) {
  const std::string name(what);
  if (rows.offsets.empty()) return rows.ids.empty() ? Status() : refused(name + " without offsets");
  if (rows.offsets.size() != nodes + 1)
    return refused(name + ": expected " + std::to_string(nodes + 1) + " offsets, found " +
                   std::to_string(rows.offsets.size()));
  if (rows.offsets.front() != 0) return refused(name + ": the first offset is not 0");
  if (!std::ranges::is_sorted(rows.offsets)) return refused(name + ": the offsets fall");
  if (rows.offsets.back() != static_cast<int64_t>(rows.ids.size()))
    return refused(name + ": the last offset is not the number of entries");
  const auto is_foreign = [&](int64_t id) { return id < 0 || id >= static_cast<int64_t>(nodes); };
  if (std::ranges::any_of(rows.ids, is_foreign)) return refused(name + ": an id of no node");
  return {};
}

Status check_schedule(const Program& program) {
  const size_t nodes = program.node_rows.size();
  if (Status status = check_workers(program); !status.is_ok()) return status;
  if (Status status = check_rows(program.watchers, nodes, "watchers"); !status.is_ok())
    return status;
  if (Status status = check_rows(program.relations, nodes, "relations"); !status.is_ok())
    return status;
  if (Status status = check_watchers(program); !status.is_ok()) return status;
  if (Status status = check_relations(program); !status.is_ok()) return status;
  return check_frames(program);
}

IdRows rows_of(const std::vector<std::vector<int64_t>>& lists) {
  IdRows rows{{0}, {}};
  for (const auto& list : lists) {
    rows.ids.insert(rows.ids.end(), list.begin(), list.end());
    rows.offsets.push_back(static_cast<int64_t>(rows.ids.size()));
  }
  return rows;
}

IdRows reversed(const IdRows& rows, size_t nodes) {
  IdRows back;
  back.offsets.assign(nodes + 1, 0);
  back.ids.resize(rows.ids.size());
  for (const int64_t id : rows.ids) ++back.offsets[static_cast<size_t>(id) + 1];
  for (size_t node = 0; node < nodes; ++node) back.offsets[node + 1] += back.offsets[node];
  std::vector<int64_t> next(back.offsets.begin(), back.offsets.end() - 1);
  for (size_t node = 0; node < nodes; ++node)
    for (const int64_t id : rows.row(node))
      back.ids[static_cast<size_t>(next[static_cast<size_t>(id)]++)] = static_cast<int64_t>(node);
  return back;
}

}  // namespace grainline
