// The packed schedule is refused for every wrong field, by name.
#include <random>
#include <string>

#include "check.h"
#include "exec/kernels.h"
#include "exec/program.h"

using namespace grainline;

namespace {

int64_t kernel_number(std::string_view name) {
  const auto types = kernel_types();
  for (size_t i = 0; i < types.size(); ++i)
    if (types[i].name == name) return static_cast<int64_t>(i);
  return -1;
}

// alloc, launch, hold-address Free of alloc ahead of the launch, plain Free, host call
Program valid_program() {
  Program p;
  for (const char* name : {"AllocMemory", "Launch", "FreeMemoryHoldAddr", "FreeMemory", "HostCall"})
    p.node_rows.push_back({kernel_number(name), 0, 0, 0, 0, 0, 0, 0});
  p.node_workers = {{1, 1}, {2, 2}, {1, 1}, {1, 1}, {0, 0}};
  p.watchers = {{0, 2, 3, 3, 3, 3}, {1, 2, 3}};
  p.relations = {{0, 0, 0, 1, 1, 1}, {1}};
  return p;
}

template <typename Change>
std::string refusal(Change change) {
  Program p = valid_program();
  change(p);
  return check_schedule(p).text();
}

bool mentions(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(schedule_a_valid_one_is_accepted) {
  EXPECT(refusal([](Program&) {}) == "ok", "the example is valid");
  EXPECT(refusal([](Program& p) { p.watchers = {}; }) == "ok", "no edges");
  EXPECT(refusal([](Program& p) { p.node_workers[0].worker_of_three = 0; }) == "ok",
         "with three workers a memory kernel may be a normal one");
}

TEST(schedule_each_wrong_field_is_named) {
  const auto says = [](const std::string& text, const char* part) {
    EXPECT(mentions(text, part), part);
    if (!mentions(text, part)) std::printf("  found: %s\n", text.c_str());
  };
  says(refusal([](Program& p) { p.node_workers.pop_back(); }), "workers of 5 nodes, found 4");
  says(refusal([](Program& p) { p.node_workers[4].worker = 3; }), "unknown worker at node 4");
  says(refusal([](Program& p) { p.node_workers[4].worker_of_three = -1; }),
       "unknown worker at node 4");
  says(refusal([](Program& p) { p.node_workers[0].worker = 0; }), "section at node 0");
  says(refusal([](Program& p) { p.node_workers[1].worker_of_three = 1; }), "section at node 1");
  says(refusal([](Program& p) { p.watchers.offsets.pop_back(); }), "watchers: expected 6 offsets");
  says(refusal([](Program& p) { p.watchers.offsets[0] = 1; }), "watchers: the first offset");
  says(refusal([](Program& p) { p.watchers.offsets[2] = 1; }), "watchers: the offsets fall");
  says(refusal([](Program& p) { p.watchers.ids.pop_back(); }), "watchers: the last offset");
  says(refusal([](Program& p) { p.watchers.ids[2] = 1; }), "does not stand behind at node 1");
  says(refusal([](Program& p) { p.watchers.ids[0] = 5; }), "watchers: an id of no node");
  says(refusal([](Program& p) { p.watchers.ids[0] = -1; }), "watchers: an id of no node");
  says(refusal([](Program& p) { p.watchers.offsets.clear(); }), "watchers without offsets");
  says(refusal([](Program& p) { p.relations.offsets.push_back(1); }), "relations: expected 6");
  says(refusal([](Program& p) { p.relations.offsets[0] = -1; }), "relations: the first offset");
  says(refusal([](Program& p) { p.relations.offsets[4] = 0; }), "relations: the offsets fall");
  says(refusal([](Program& p) { p.relations.ids.push_back(1); }), "relations: the last offset");
  says(refusal([](Program& p) { p.relations.ids[0] = 9; }), "relations: an id of no node");
  says(refusal([](Program& p) { p.relations = {}; }), "without a relation at node 2");
  says(refusal([](Program& p) { p.relations = {{0, 0, 0, 1, 2, 2}, {1, 1}}; }),
       "no such Free at node 3");
  says(refusal([](Program& p) { p.relations.ids[0] = 4; }), "not registered as a launch at node 2");
}

TEST(schedule_each_wrong_frame_is_named) {
  const auto says = [](const std::string& text, const char* part) {
    EXPECT(mentions(text, part), part);
    if (!mentions(text, part)) std::printf("  found: %s\n", text.c_str());
  };
  const auto framed = [](std::vector<FrameRow> frames) {
    return refusal([&](Program& p) { p.frames = frames; });
  };
  EXPECT(framed({{3, 4}, {4, 5}}) == "ok", "two frames");
  says(framed({{4, 6}}), "does not stand behind at node 0");
  says(framed({{3, 3}}), "does not stand behind at node 0");
  says(framed({{-1, 1}}), "does not stand behind at node 0");
  says(framed({{3, 5}, {4, 5}}), "does not stand behind at node 5");
  says(framed({{2, 3}}), "a relation inside of a frame at node 2");
  says(framed({{1, 2}}), "a relation inside of a frame at node 2");
  says(framed({{3, 5}}), "nothing of the frame starts it at node 4");
  const int64_t join = kernel_number("WaitAnyone");
  says(refusal([&](Program& p) { p.node_rows[4].kernel = join; }),
       "outside of the frames at node 4");
  says(refusal([&](Program& p) {
         p.node_rows[3].kernel = join;
         p.node_workers[3] = {0, 0};
         p.frames = {{3, 4}};
         p.watchers = {{0, 2, 3, 3, 3, 4}, {1, 2, 3, 3}};
       }),
       "back into a frame at node 4");
}

TEST(schedule_reversing_twice_sorts_the_rows) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 100; ++turn) {
    const size_t nodes = 1 + random() % 20;
    IdRows rows{{0}, {}};
    for (size_t node = 0; node < nodes; ++node) {
      for (size_t id = 0; id < nodes; ++id)
        if (random() % 3 == 0) rows.ids.push_back(static_cast<int64_t>(id));
      rows.offsets.push_back(static_cast<int64_t>(rows.ids.size()));
    }
    const IdRows twice = reversed(reversed(rows, nodes), nodes);
    EXPECT(twice.offsets == rows.offsets && twice.ids == rows.ids, "reversal is its own inverse");
  }
}
