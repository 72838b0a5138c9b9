#include <sched.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "check.h"
#include "threads/topology.h"

using namespace grainline;
namespace fs = std::filesystem;

namespace {

// A file tree below a temporary folder, removed at the end.
class FakeRoot {
 public:
  FakeRoot() {
    path_ = (fs::temp_directory_path() / "grainline-topology-XXXXXX").string();
    EXPECT(mkdtemp(path_.data()) != nullptr, "a temporary folder");
  }
  ~FakeRoot() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) {
    const fs::path file = path_ + name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

TEST(missing_files_mean_no_quota) {
  const FakeRoot root;
  EXPECT(quota_processors(root.path()) == 0, "no files, no quota");
  EXPECT(allowed_processors(root.path()) == affinity_processors(), "the affinity alone counts");
  EXPECT(affinity_processors() >= 1, "there is always one processor");
}

TEST(quota_v2_rounds_down_to_at_least_one) {
  struct {
    const char* text;
    int expected;
  } const cases[] = {
      {"max 100000\n", 0},    {"100000 100000\n", 1}, {"150000 100000\n", 1}, {"50000 100000\n", 1},
      {"399999 100000\n", 3}, {"400000 100000\n", 4}, {"garbage", 0},         {"", 0},
      {"100000 0\n", 0}};
  for (const auto& c : cases) {
    FakeRoot root;
    root.write("/proc/self/cgroup", "0::/\n");
    root.write("/sys/fs/cgroup/cpu.max", c.text);
    EXPECT(quota_processors(root.path()) == c.expected, c.text);
    EXPECT(allowed_processors(root.path()) <= affinity_processors(), "never above the affinity");
  }
}

TEST(the_tightest_parent_group_counts) {
  FakeRoot root;
  root.write("/proc/self/cgroup", "0::/a/b\n");
  root.write("/sys/fs/cgroup/a/b/cpu.max", "800000 100000");
  root.write("/sys/fs/cgroup/a/cpu.max", "300000 100000");
  root.write("/sys/fs/cgroup/cpu.max", "max 100000");
  EXPECT(quota_processors(root.path()) == 3, "the parent's quota is tighter");
}

TEST(a_group_path_of_the_host_falls_back_to_the_mount) {
  FakeRoot root;
  root.write("/proc/self/cgroup", "0::/kubepods/pod17/deadbeef\n");
  root.write("/sys/fs/cgroup/cpu.max", "250000 100000");
  EXPECT(quota_processors(root.path()) == 2, "inside a container the mount is our group");
}

TEST(quota_v1_reads_both_files) {
  FakeRoot root;
  root.write("/proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/job\n0::/\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT(quota_processors(root.path()) == 2, "two and a half processors are two");
}

TEST(damaged_group_lines_are_ignored) {
  FakeRoot root;
  root.write("/proc/self/cgroup", "\n:\n::\nnonsense\n3:cpuset\n1:cpu:relative\n");
  EXPECT(quota_processors(root.path()) == 0, "nothing readable, no quota");
}

TEST(an_avoided_processor_is_left_and_given_back) {
  cpu_set_t before, after;
  if (sched_getaffinity(0, sizeof before, &before) != 0) return;
  const int first = current_processor();
  const bool has_choice = CPU_COUNT(&before) > 1;
  EXPECT(avoid_processor(0, first, -1) == has_choice, "unless it is the only one");
  EXPECT((current_processor() != first) == has_choice, "the thread is elsewhere at once");
  EXPECT(!avoid_processor(0, -1, -1) && !avoid_processor(0, CPU_SETSIZE, -1), "no such processor");
  sched_setaffinity(0, sizeof before, &before);
  if (!has_choice) return;
  std::atomic<int> thread{0};
  std::atomic<bool> may_end{false};
  std::thread other([&] {
    thread = current_thread();
    while (!may_end) sched_yield();
  });
  while (thread == 0) sched_yield();
  EXPECT(avoid_processor(thread, first, -1), "another thread can be kept off");
  int second = 0;
  while (second == first || !CPU_ISSET(static_cast<size_t>(second), &before)) ++second;
  EXPECT(avoid_processor(thread, second, first), "and then off another processor");
  sched_getaffinity(thread, sizeof after, &after);
  EXPECT(CPU_ISSET(static_cast<size_t>(first), &after), "the first one is given back");
  EXPECT(!CPU_ISSET(static_cast<size_t>(second), &after), "the second one is forbidden");
  EXPECT(CPU_COUNT(&after) == CPU_COUNT(&before) - 1, "nothing else changed");
  may_end = true;
  other.join();
}
