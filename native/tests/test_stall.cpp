// All are stuck, or somebody can move: found out by one who looks while the others move.
#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "check.h"
#include "exec/stall.h"
#include "random_seed.h"

using namespace grainline;
using namespace grainline::test;

namespace {

constexpr size_t kWorkers = 3, kSteps = 3;

// Workers with a few steps each. A step waits for steps that stand before it in one common order,
// and some wait for somebody else, who never comes. Workers move at random, also between two reads.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    std::array<size_t, kWorkers> dealt{};
    std::vector<Step*> order;
    while (order.size() < kWorkers * kSteps) {
      const size_t worker = random_() % kWorkers;
      if (dealt[worker] == kSteps) continue;
      Step& step = steps_[worker][dealt[worker]++];
      step.is_hopeless = random_() % 8 == 0;
      for (Step* earlier : order)
        if (random_() % 3 == 0) step.before.push_back(earlier);
      order.push_back(&step);
    }
  }

  uint32_t place_of(size_t worker) {
    move_on();
    return places_[worker];
  }
  bool is_stuck(size_t worker, uint32_t place) {
    move_on();
    return place == kFinished || (place != 0 && !is_due(steps_[worker][place - 1]));
  }
  bool can_move() const {
    for (size_t worker = 0; worker < kWorkers; ++worker)
      if (places_[worker] != kFinished &&
          (places_[worker] == 0 || is_due(steps_[worker][at_[worker]])))
        return true;
    return false;
  }

 private:
  static constexpr uint32_t kFinished = UINT32_MAX;
  struct Step {
    std::vector<const Step*> before;
    bool is_hopeless = false, is_done = false;
  };

  static bool is_due(const Step& step) {
    return !step.is_hopeless &&
           std::ranges::all_of(step.before, [](const Step* s) { return s->is_done; });
  }

  void move_on() {
    while (random_() % 3 != 0) move(random_() % kWorkers);
  }

  // One of: run the next step, begin to wait for it, notice that it is due, finish.
  void move(size_t worker) {
    if (at_[worker] == kSteps) {
      places_[worker] = kFinished;
      return;
    }
    Step& step = steps_[worker][at_[worker]];
    if (!is_due(step)) {
      places_[worker] = static_cast<uint32_t>(at_[worker]) + 1;
    } else if (places_[worker] != 0) {
      places_[worker] = 0;
    } else {
      step.is_done = true;
      ++at_[worker];
    }
  }

  std::mt19937_64 random_;
  std::array<std::array<Step, kSteps>, kWorkers> steps_;
  std::array<size_t, kWorkers> at_{};
  std::array<uint32_t, kWorkers> places_{};
};

}  // namespace

TEST(stall_is_seen_when_there_is_one_and_never_before) {
  const uint64_t seed = printed_seed("stall");
  int seen = 0, denied = 0;
  for (uint64_t world_seed = seed; world_seed < seed + 20'000; ++world_seed) {
    World world(world_seed);
    for (bool is_over = false; !is_over;) {
      is_over = !world.can_move();
      uint32_t places[kWorkers];
      const bool is_found = were_all_stuck(
          places, [&](size_t worker) { return world.place_of(worker); },
          [&](size_t worker, uint32_t place) { return world.is_stuck(worker, place); });
      ++(is_found ? seen : denied);
      EXPECT(!is_found || !world.can_move(), "what is found stuck cannot move");
      EXPECT(is_found || !is_over, "what cannot move is found stuck");
    }
  }
  EXPECT(seen >= 20'000 && denied >= 20'000, "both answers are given");
}
