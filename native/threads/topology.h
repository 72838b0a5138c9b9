// How many processors this process may use.
#pragma once

#include <string>

namespace grainline {

// min(processors in the scheduler affinity, floor(cgroup CPU quota)), at least 1. A half processor
// rounds down: a lockstep group of threads is throttled otherwise. Missing files mean no quota.
// Reads files: call rarely. root is put in front of /proc and /sys (tests).
int allowed_processors(const std::string& root = "");

// Processors in the affinity mask of the calling thread, at least 1.
int affinity_processors();

// floor of the tightest CPU quota of our cgroup and its parents, v2 or v1, at least 1;
// 0 when there is none.
int quota_processors(const std::string& root = "");

// The processor that the calling thread runs on, or -1.
int current_processor() noexcept;

// The system's number of the calling thread, for avoid_processor.
int current_thread() noexcept;

// Forbids `thread` of this process (0: the calling one) the processor `avoided`, and allows it
// `before` again, which was forbidden so, if the caller itself is allowed there. False, and nothing
// changed, when the thread is gone or would have no processor left.
bool avoid_processor(int thread, int avoided, int before) noexcept;

}  // namespace grainline
