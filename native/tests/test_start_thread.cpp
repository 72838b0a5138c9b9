// Where the system starts no thread, what needs one fails or does without, and works again later.
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "check.h"
#include "device/cpu_device.h"
#include "pool_fixture.h"
#include "program_fixture.h"
#include "threads/start_thread.h"

using namespace grainline;
using namespace grainline::test;

#if defined(__GLIBC__)
namespace {

// While it lives, a new thread has a stack of this size.
class StackSize {
 public:
  explicit StackSize(size_t bytes) {
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, bytes);
    EXPECT(pthread_setattr_default_np(&attributes) == 0, "a size that the library accepts");
    pthread_attr_destroy(&attributes);
  }
  ~StackSize() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  StackSize(const StackSize&) = delete;
  StackSize& operator=(const StackSize&) = delete;

 private:
  pthread_attr_t before_;
};

// Beyond every address space: no thread starts.
constexpr size_t kTooMuch = size_t{1} << 50;

// While it lives, this process may map so much more than it has.
class RoomLeft {
 public:
  explicit RoomLeft(size_t bytes) {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    const rlimit now{pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + bytes, before_.rlim_max};
    EXPECT(setrlimit(RLIMIT_AS, &now) == 0, "a limit");
  }
  ~RoomLeft() { setrlimit(RLIMIT_AS, &before_); }
  RoomLeft(const RoomLeft&) = delete;
  RoomLeft& operator=(const RoomLeft&) = delete;

 private:
  rlimit before_;
};

const ExecutorOptions kFiveWorkers{ExecutorKind::multi_worker, 5, 1};

}  // namespace

TEST(a_run_whose_workers_cannot_start_fails_and_the_next_one_works) {
  std::mt19937_64 random(20'241'201);
  ToyRun run(random_program(random, 100), kFiveWorkers);
  {
    const StackSize none(kTooMuch);
    for (int turn = 0; turn < 2; ++turn)
      EXPECT(run.run().code() == StatusCode::out_of_memory, "no worker starts");
  }
  EXPECT(run.run().is_ok() && run.run().is_ok(), "they start when they can");
}

TEST(workers_that_started_are_joined_when_another_cannot) {
  if (kIsThreadSanitized || kIsAddressSanitized) return;  // they map more than a limit allows
  constexpr size_t kStack = size_t{1} << 30;
  std::mt19937_64 random(20'241'202);
  ToyRun run(random_program(random, 100), kFiveWorkers);
  {
    const StackSize large(kStack);
    const RoomLeft two_and_a_half(kStack * 5 / 2);
    for (int turn = 0; turn < 2; ++turn)
      EXPECT(run.run().code() == StatusCode::out_of_memory, "two of four start");
  }
  EXPECT(run.run().is_ok() && run.run().is_ok(), "all start when they can");
}

TEST(a_stream_whose_thread_cannot_start_refuses_the_command_and_takes_the_next) {
  CpuDevice device;
  const std::unique_ptr<Stream> stream = device.create_asynchronous_stream();
  std::byte data[64] = {};
  {
    const StackSize none(kTooMuch);
    EXPECT(stream->fill(data, std::byte{1}, 64).code() == StatusCode::out_of_memory, "no thread");
    EXPECT(stream->synchronize().is_ok(), "nothing was submitted");
  }
  EXPECT(stream->fill(data, std::byte{2}, 64).is_ok() && stream->synchronize().is_ok(), "later");
  EXPECT(data[0] == std::byte{2} && data[63] == std::byte{2}, "it ran");
}

TEST(a_pool_without_threads_runs_everything_on_the_caller) {
  const int before = Pool::process().threads_started();
  const PretendProcessors more(before + 3);
  static std::atomic<int64_t> blocks;
  blocks = 0;
  const TileKernel count = [](const uint64_t*, int64_t begin, int64_t end, void*) -> int32_t {
    blocks += end - begin;
    return 0;
  };
  const StackSize none(kTooMuch);
  EXPECT(Pool::process().dispatch({count, nullptr, 64, 1, before + 3, nullptr, 0}) == 0, "runs");
  EXPECT(blocks == 64, "every block once");
  EXPECT(Pool::process().threads_started() == before, "and no thread was added");
}
#endif
