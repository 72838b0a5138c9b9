#include "threads/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <sstream>
#include <string_view>

namespace grainline {
namespace {

// A quota of `quota_us` in every `period_us` in whole processors; INT_MAX: none.
int whole_processors(int64_t quota_us, int64_t period_us) {
  if (quota_us <= 0 || period_us <= 0) return INT_MAX;
  return static_cast<int>(std::clamp<int64_t>(quota_us / period_us, 1, INT_MAX));
}

// "max 100000" or "150000 100000".
int quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  int64_t quota_us = 0, period_us = 0;
  if (!(file >> quota_us >> period_us)) return INT_MAX;
  return whole_processors(quota_us, period_us);
}

// -1 in the first file means none.
int quota_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  int64_t quota_us = 0, period_us = 0;
  if (!(quota_file >> quota_us) || !(period_file >> period_us)) return INT_MAX;
  return whole_processors(quota_us, period_us);
}

// The tightest quota from the group up to the mount. In a container the group's path may belong to
// the host and not exist below the mount; its missing folders say nothing, the mount itself does.
template <typename Quota>
int tightest(const std::string& mount, std::string group, Quota quota) {
  int result = INT_MAX;
  while (!group.empty() && group != "/") {
    result = std::min(result, quota(mount + group));
    group.resize(group.rfind('/'));
  }
  return std::min(result, quota(mount));
}

bool lists_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

// One line of /proc/self/cgroup: "0::/group" (v2) or "4:cpu,cpuacct:/group" (v1).
int quota_of_line(const std::string& root, const std::string& line) {
  const size_t first = line.find(':');
  const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
  if (second == std::string::npos) return INT_MAX;
  const std::string controllers = line.substr(first + 1, second - first - 1);
  std::string group = line.substr(second + 1);
  if (group.empty() || group.front() != '/') group.clear();
  const std::string base = root + "/sys/fs/cgroup";
  if (controllers.empty())
    return std::min(tightest(base, group, quota_v2), tightest(base + "/unified", group, quota_v2));
  if (!lists_cpu(controllers)) return INT_MAX;
  return std::min(tightest(base + "/cpu", group, quota_v1),
                  tightest(base + "/" + controllers, group, quota_v1));
}

}  // namespace

int affinity_processors() {
  // Grown until the kernel's mask fits: it says EINVAL for one that is too small.
  for (int limit = 1024; limit <= 1 << 20; limit *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(limit));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(limit));
    const bool is_known = sched_getaffinity(0, bytes, set) == 0;
    const int count = is_known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (is_known) return std::max(count, 1);
  }
  return static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

int quota_processors(const std::string& root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  int result = INT_MAX;
  for (std::string line; std::getline(groups, line);)
    result = std::min(result, quota_of_line(root, line));
  // No /proc, or a namespace that hides our group: the root group of the mount is still ours.
  result = std::min(result, quota_v2(root + "/sys/fs/cgroup"));
  return result == INT_MAX ? 0 : result;
}

int allowed_processors(const std::string& root) {
  const int quota = quota_processors(root);
  const int affinity = affinity_processors();
  return quota == 0 ? affinity : std::min(affinity, quota);
}

int current_processor() noexcept { return sched_getcpu(); }

int current_thread() noexcept { return gettid(); }

// A mask that does not fit cpu_set_t is an error of the first call.
bool avoid_processor(int thread, int avoided, int before) noexcept {
  cpu_set_t mask, own;
  if (avoided < 0 || avoided >= CPU_SETSIZE) return false;
  if (sched_getaffinity(thread, sizeof mask, &mask) != 0) return false;
  if (sched_getaffinity(0, sizeof own, &own) != 0) return false;
  if (before >= 0 && CPU_ISSET(static_cast<size_t>(before), &own))
    CPU_SET(static_cast<size_t>(before), &mask);
  CPU_CLR(static_cast<size_t>(avoided), &mask);
  return CPU_COUNT(&mask) > 0 && sched_setaffinity(thread, sizeof mask, &mask) == 0;
}

}  // namespace grainline
