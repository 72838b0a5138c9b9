// How the nodes of a Program are run once.
#pragma once

namespace grainline {

class RunState;

// One per RunState, made with it: what a kind of executor keeps between runs.
class Walk {
 public:
  virtual ~Walk() = default;
  // Returns true when the run failed; the RunState then has the first failure. Either way it can
  // run again.
  virtual bool run(RunState& state) = 0;
  // Whether this thread is the one that called run.
  virtual bool is_in_caller() const { return true; }
};

// The node array from front to back, in the calling thread.
class SequentialWalk final : public Walk {
 public:
  bool run(RunState& state) override;

 private:
  template <bool kObserved>
  static bool walk(RunState& state);
};

}  // namespace grainline
