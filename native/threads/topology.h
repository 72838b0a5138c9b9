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

}  // namespace grainline
