// The laws of the Free-to-Launch relations, against a model that counts from scratch.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "exec/relations.h"
#include "program_fixture.h"

using namespace grainline;
using namespace grainline::test;

namespace {

// Nodes 0 and 1 are Frees of launch 2; node 1 also of launch 3; node 4 is unrelated.
const IdRows kRows{{0, 1, 3, 3, 3, 3}, {2, 2, 3}};

bool begin(Relations& relations) { return relations.begin_epoch().is_ok(); }

}  // namespace

TEST(relations_prepare_refuses_wrong_rows_and_keeps_the_old_ones) {
  Relations relations;
  EXPECT(relations.prepare(kRows, 5).is_ok(), "valid rows");
  const IdRows wrong[] = {
      {{}, {1}},        // no offsets
      {{0, 0, 0}, {}},  // too few
      {{1, 1, 1, 1, 1, 1}, {0}},
      {{0, 2, 1, 2, 2, 2}, {0, 1}},
      {{0, 0, 0, 0, 0, 1}, {}},
      {{0, 1, 1, 1, 1, 1}, {5}},
      {{0, 1, 1, 1, 1, 1}, {-1}},
  };
  for (const IdRows& rows : wrong)
    EXPECT(relations.prepare(rows, 5).code() == StatusCode::invalid_argument, "wrong rows");
  EXPECT(begin(relations) && relations.record(0) && !relations.is_met(), "the old rows still hold");
}

TEST(R33_relations_take_exactly_the_memory_of_the_formula) {
  std::mt19937 random(3);
  for (const size_t nodes : {size_t{1}, size_t{10}, size_t{1000}}) {
    IdRows rows{{0}, {}};
    for (size_t node = 0; node < nodes; ++node) {
      for (size_t k = random() % 5; k-- > 0;) rows.ids.push_back(random() % nodes);
      rows.offsets.push_back(static_cast<int64_t>(rows.ids.size()));
    }
    rows.ids.shrink_to_fit();
    rows.offsets.shrink_to_fit();
    Relations relations;
    EXPECT(relations.prepare(rows, nodes).is_ok(), "valid rows");
    EXPECT(relations.memory_bytes() == 33 * nodes + 8 * rows.ids.size() + 8, "33 N + 8 R + 8");
  }
}

TEST(R59_R61_only_an_executed_free_requires_and_several_count_once) {
  Relations relations;
  EXPECT(relations.prepare(kRows, 5).is_ok() && begin(relations), "prepared");
  EXPECT(relations.wait().is_ok(), "nothing was freed yet");
  EXPECT(relations.record(0) && relations.unmet_launches() == std::vector<size_t>{2}, "one launch");
  EXPECT(relations.record(1) && relations.unmet_launches() == std::vector<size_t>({2, 3}),
         "the same occurrence of launch 2 counts once");
  EXPECT(relations.record(4) && !relations.is_met(), "an unrelated node changes nothing");
  EXPECT(relations.wait().code() == StatusCode::not_ready && relations.has_refused_wait(), "unmet");
  EXPECT(!relations.has_refused_wait(), "asked once");
  EXPECT(relations.record(2) && !relations.is_met(), "launch 3 is left");
  EXPECT(relations.record(3) && relations.wait().is_ok(), "met");
  EXPECT(relations.record(2) && relations.record(0) && relations.wait().is_ok(),
         "submitted before its Free: satisfied at once");
}

TEST(R57_R58_relations_agree_with_counting_from_scratch) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const size_t nodes = 2 + random() % 12;
    IdRows rows{{0}, {}};
    for (size_t node = 0; node < nodes; ++node) {
      for (size_t launch = 0; launch < nodes; ++launch)
        if (random() % 4 == 0) rows.ids.push_back(static_cast<int64_t>(launch));
      rows.offsets.push_back(static_cast<int64_t>(rows.ids.size()));
    }
    Relations relations;
    EXPECT(relations.prepare(rows, nodes).is_ok(), "valid rows");
    for (int epoch = 0; epoch < 3; ++epoch) {
      EXPECT(begin(relations), "an epoch starts");
      std::vector<uint64_t> runs(nodes);
      for (int step = 0; step < 60; ++step) {
        const size_t node = random() % nodes;
        EXPECT(relations.record(node), "recorded");
        ++runs[node];
        std::vector<size_t> unmet;
        for (size_t launch = 0; launch < nodes; ++launch) {
          uint64_t required = 0;
          for (size_t free = 0; free < nodes; ++free)
            for (const int64_t id : rows.row(free))
              if (id == static_cast<int64_t>(launch)) required = std::max(required, runs[free]);
          if (runs[launch] < required) unmet.push_back(launch);
        }
        const bool is_same = relations.unmet_launches() == unmet;
        EXPECT(is_same && relations.is_met() == unmet.empty(), "unmet launches");
        if (!is_same) std::printf("  seed %u\n", seed);
      }
    }
  }
}

TEST(R60_an_abort_is_kept_and_ends_with_its_epoch) {
  Relations relations;
  EXPECT(relations.prepare(kRows, 5).is_ok() && begin(relations), "prepared");
  EXPECT(relations.record(0), "a Free");
  relations.abort(Status(StatusCode::end_of_sequence, "the end"));
  relations.abort(Status(StatusCode::kernel_failed, "too late"));
  EXPECT(relations.wait().code() == StatusCode::end_of_sequence, "who waits gets the first status");
  EXPECT(!relations.has_refused_wait(), "an abort is no reason to try again");
  EXPECT(!relations.record(2) && !relations.record(0), "nothing is recorded any more");
  EXPECT(relations.record(4), "an unrelated node is not asked");
  EXPECT(begin(relations) && relations.wait().is_ok() && relations.epoch() == 2, "a new epoch");
}

// What the submission of a launch wrote is seen by who finds the launch met.
TEST(relations_a_launch_is_recorded_beside_the_frees) {
  constexpr int kTurns = 2000;
  Relations relations;
  EXPECT(relations.prepare(kRows, 5).is_ok() && begin(relations), "prepared");
  std::vector<int> submitted(kTurns);
  std::atomic<int> freed{0};
  std::thread launches([&] {
    for (int turn = 0; turn < kTurns; ++turn) {
      // Half of the launches wait for their Free, the others run ahead of it.
      while (turn % 2 == 0 && freed.load(std::memory_order_relaxed) < turn)
        std::this_thread::yield();
      submitted[static_cast<size_t>(turn)] = turn;
      relations.record(2);
      relations.record(3);
    }
  });
  bool is_right = true;
  for (int turn = 0; turn < kTurns; ++turn) {
    relations.record(1);
    freed.store(turn + 1, std::memory_order_relaxed);
    while (!relations.is_met()) std::this_thread::yield();
    is_right &= submitted[static_cast<size_t>(turn)] == turn && relations.wait().is_ok();
  }
  launches.join();
  EXPECT(is_right && relations.unmet_launches().empty(), "each Free sees what it waited for");
}

// A Free of launches, a launch and what fails: neither activates, nor advances, unless it ended
// well.
TEST(R58_only_what_ended_well_is_recorded) {
  const auto program = program_of({{"Launch", {}, {}},
                                   {"FreeMemoryHoldAddr", {0}, {3, 4}},
                                   {"Launch", {1}, {}},
                                   {"Launch", {2}, {}},
                                   {"Launch", {3}, {}}});
  const WorkerPlan plan(*program, 2);
  for (const StatusCode code : {StatusCode::kernel_failed, StatusCode::end_of_sequence})
    for (int64_t fault = -1; fault < 5; ++fault) {
      RunState state(program, CpuDevice::process());
      auto team = std::make_unique<WorkerTeam>(plan, *program);
      const Relations& relations = team->relations();
      state.walk = std::move(team);
      ToyCells cells(*program);
      cells.fault = fault;
      cells.code = code;
      state.host.context = &cells;
      const std::atomic<int32_t> never{0};
      state.terminate = &never;
      EXPECT(state.walk->run(state) == (fault >= 0), "the fault fails the run");
      std::vector<size_t> unmet;
      if (fault == 2 || fault == 3) unmet = {3, 4};
      if (fault == 4) unmet = {4};
      EXPECT(relations.unmet_launches() == unmet, "the requirements of the Free that ended well");
      EXPECT(fault < 0 || state.failure().code() == code, "the status is the node's");
      state.clean_up();
    }
}

// Nothing but an address and a count is kept of an epoch: the state is that of a new one.
TEST(R57_ten_thousand_epochs_start_from_nothing) {
  Relations relations;
  EXPECT(relations.prepare(kRows, 5).is_ok(), "prepared");
  const size_t bytes = relations.memory_bytes();
  bool is_new = true;
  std::mt19937 random(7);
  for (uint64_t epoch = 1; epoch <= 10'000; ++epoch) {
    is_new &= begin(relations) && relations.epoch() == epoch;
    is_new &= relations.unmet_launches().empty() && relations.wait().is_ok();
    for (int event = 0; event < 3; ++event) relations.record(random() % 5);
    if (random() % 4 == 0) relations.abort(Status(StatusCode::kernel_failed, "a fault"));
    if (random() % 4 == 0) static_cast<void>(relations.wait().is_ok());
  }
  EXPECT(is_new, "no epoch sees the one before");
  EXPECT(relations.memory_bytes() == bytes, "the buffers are the same");
}

TEST(relations_exhausted_counters_abort_instead_of_wrapping) {
  Relations relations;
  EXPECT(relations.prepare(kRows, 5).is_ok() && begin(relations), "prepared");
  relations.override_counts_for_test(1, UINT64_MAX);
  EXPECT(!relations.record(0) && relations.wait().code() == StatusCode::internal, "a Free");
  EXPECT(begin(relations), "an epoch later");
  relations.override_counts_for_test(1, UINT64_MAX);
  EXPECT(!relations.record(2) && relations.wait().code() == StatusCode::internal, "a launch");
  relations.override_counts_for_test(UINT64_MAX, 0);
  EXPECT(relations.begin_epoch().code() == StatusCode::internal, "an epoch");
  EXPECT(!relations.record(0) && relations.epoch() == UINT64_MAX, "is refused, and does not wrap");
}
