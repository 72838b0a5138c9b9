// When the commands of asynchronous streams were submitted and ran, for whoever watches a run.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace grainline {

enum class CommandKind : int8_t { launch, copy, fill };

// cause: what the submitting thread had named, see set_cause. Skipped commands leave no time.
struct CommandTime {
  int64_t cause;
  int stream;
  CommandKind kind;
  int64_t submitted_ns, begin_ns, end_ns;
};

// Streams that were given a log add to it from their threads; it outlives what was submitted.
class CommandLog {
 public:
  // Of what the calling thread submits from now on: the node that it runs.
  static void set_cause(int64_t cause) noexcept { cause_ = cause; }
  static int64_t cause() noexcept { return cause_; }

  void add(const CommandTime& time) {
    const std::lock_guard<std::mutex> held(lock_);
    times_.push_back(time);
  }
  // When everything is complete; in the order of completion.
  std::vector<CommandTime> take() {
    const std::lock_guard<std::mutex> held(lock_);
    return std::exchange(times_, {});
  }

 private:
  static inline thread_local int64_t cause_ = -1;
  std::mutex lock_;
  std::vector<CommandTime> times_;
};

}  // namespace grainline
