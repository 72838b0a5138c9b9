// The laws of the Free-to-Launch relations, against a model that counts from scratch.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "exec/relations.h"

using namespace grainline;

namespace {

using Waiting = Relations::Waiting;

// Nodes 0 and 1 are Frees of launch 2; node 1 also of launch 3; node 4 is unrelated.
const IdRows kRows{{0, 1, 3, 3, 3, 3}, {2, 2, 3}};

bool begin(Relations& relations, Waiting waiting = Waiting::refuse) {
  return relations.begin_epoch(waiting).is_ok();
}

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

TEST(relations_take_exactly_the_memory_of_the_formula) {
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

TEST(relations_only_an_executed_free_requires_and_several_count_once) {
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

TEST(relations_agree_with_counting_from_scratch) {
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

TEST(relations_an_abort_is_kept_wakes_everyone_and_ends_with_its_epoch) {
  Relations relations;
  EXPECT(relations.prepare(kRows, 5).is_ok() && begin(relations, Waiting::block), "prepared");
  EXPECT(relations.record(0), "a Free");
  std::atomic<int> woken{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i)
    waiters.emplace_back([&] {
      if (relations.wait().code() == StatusCode::end_of_sequence) ++woken;
    });
  relations.abort(Status(StatusCode::end_of_sequence, "the end"));
  relations.abort(Status(StatusCode::kernel_failed, "too late"));
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT(woken == 3, "every waiter gets the first status");
  EXPECT(!relations.record(2) && !relations.record(0), "nothing is recorded any more");
  EXPECT(relations.record(4), "an unrelated node is not asked");
  EXPECT(begin(relations) && relations.wait().is_ok() && relations.epoch() == 2, "a new epoch");
}

TEST(relations_a_blocked_waiter_leaves_with_the_last_submission) {
  Relations relations;
  EXPECT(relations.prepare(kRows, 5).is_ok(), "prepared");
  for (int turn = 0; turn < 200; ++turn) {
    EXPECT(begin(relations, Waiting::block) && relations.record(1), "a Free of two launches");
    std::thread waiter([&] { EXPECT(relations.wait().is_ok(), "met"); });
    relations.record(2);
    relations.record(3);
    waiter.join();
  }
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
  EXPECT(relations.begin_epoch(Waiting::refuse).code() == StatusCode::internal, "an epoch");
  EXPECT(!relations.record(0) && relations.epoch() == UINT64_MAX, "is refused, and does not wrap");
}
