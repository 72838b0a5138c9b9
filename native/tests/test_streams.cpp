// Asynchronous streams, events, and the discrete device with everything that can be done to it.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "device/cpu_device.h"
#include "device/discrete_device.h"
#include "memory/poison.h"
#include "pool_fixture.h"
#include "random_seed.h"

using namespace grainline;
using namespace grainline::test;

namespace {

constexpr size_t kPage = Arena::kPageBytes;
constexpr int64_t kMillisecond = 1'000'000;

// args: int64 array, its length is the number of blocks, a number to add.
int32_t add_to_all(const uint64_t* args, int64_t begin, int64_t end, void*) {
  auto* data = reinterpret_cast<int64_t*>(args[0]);
  for (int64_t i = begin; i < end; ++i) data[i] += static_cast<int64_t>(args[1]);
  return 0;
}

int32_t divide_by_zero(const uint64_t*, int64_t, int64_t, void*) {
  return static_cast<int32_t>(KernelFault::divide_by_zero);
}

Status add(Stream& stream, std::byte* data, int64_t count, int64_t number) {
  const uint64_t args[] = {reinterpret_cast<uint64_t>(data), static_cast<uint64_t>(number)};
  const MemoryAccess accesses[] = {{data, static_cast<size_t>(count) * sizeof(int64_t), true}};
  return stream.launch({add_to_all, args, count, 64, 2, nullptr, 0}, {2, {}}, accesses);
}

struct Held {
  explicit Held(DiscreteDevice& owner) : device(owner) { device.disturbance().hold(); }
  ~Held() { device.disturbance().resume(); }
  DiscreteDevice& device;
};

DiscreteDevice::Options checked() {
  DiscreteDevice::Options options;
  options.is_checked = true;
  return options;
}

}  // namespace

TEST(asynchronous_stream_runs_everything_in_order) {
  CpuDevice device;
  const std::unique_ptr<Stream> stream = device.create_asynchronous_stream();
  EXPECT(!stream->is_inline(), "it has a thread of its own");
  std::vector<int64_t> data(1000, 0), result(1000, 0);
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  int64_t expected = 0;
  for (int64_t i = 0; i < 2000; ++i) {  // several times the ring
    EXPECT(add(*stream, bytes, 1000, i).is_ok(), "a launch is accepted");
    expected += i;
  }
  EXPECT(stream->copy(result.data(), data.data(), 8000, CopyKind::device_to_host).is_ok(),
         "a copy");
  EXPECT(stream->fill(bytes, std::byte{0}, 8000).is_ok(), "and a fill");
  EXPECT(stream->synchronize().is_ok(), "all of it succeeds");
  EXPECT(result[0] == expected && result[999] == expected, "the copy came after the launches");
  EXPECT(data[0] == 0 && data[999] == 0, "the fill came after the copy");
}

TEST(first_failure_is_kept_what_follows_is_skipped_then_all_is_well) {
  CpuDevice device;
  const std::unique_ptr<Stream> stream = device.create_asynchronous_stream();
  std::vector<int64_t> data(10, 1);
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  Event event;
  EXPECT(stream->launch({divide_by_zero, nullptr, 1, 1, 1, nullptr, 0}, {}, {}).is_ok(),
         "the submission succeeds");
  EXPECT(add(*stream, bytes, 10, 5).is_ok(), "so does the next");
  EXPECT(stream->record(event).is_ok() && event.synchronize().is_ok(), "marks are still reached");
  EXPECT(stream->synchronize().code() == StatusCode::divide_by_zero, "the failure is reported");
  EXPECT(data[0] == 1, "what came after it was skipped");
  EXPECT(add(*stream, bytes, 10, 5).is_ok() && stream->synchronize().is_ok(), "a fresh start");
  EXPECT(data[0] == 6 && data[9] == 6, "works");
}

TEST(events_order_streams) {
  DiscreteDevice device(checked());
  const std::unique_ptr<Stream> first = device.create_stream(), second = device.create_stream();
  std::byte* data = device.memory().acquire(kPage);
  Event never, event, answer;
  EXPECT(second->wait(never).is_ok() && never.synchronize(0).is_ok(),
         "no record, nothing to await");
  for (int round = 0; round < 50; ++round) {
    EXPECT(first->fill(data, static_cast<std::byte>(round), kPage).is_ok(), "the first writes");
    EXPECT(first->record(event).is_ok() && second->wait(event).is_ok(), "the second waits");
    int64_t found = 0;
    EXPECT(add(*second, data, 8, 0).is_ok(), "touches it");
    EXPECT(second->copy(&found, data, 1, CopyKind::device_to_host).is_ok(), "reads it");
    EXPECT(second->record(answer).is_ok() && first->wait(answer).is_ok(), "and the first waits");
    EXPECT(second->synchronize().is_ok() && found == round, "the write was seen");
  }
  EXPECT(second->record(event).code() == StatusCode::invalid_argument, "an event has one owner");
  EXPECT(first->synchronize().is_ok(), "nothing went wrong");
  device.memory().release(data, kPage);
}

TEST(R23_buffered_copy_reads_the_host_during_the_call) {
  DiscreteDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream();
  std::byte* data = device.memory().acquire(2 * kPage);
  std::vector<char> buffered(kPage, 'a'), plain(kPage, 'a');
  {
    const Held held(device);
    EXPECT(stream->copy(data, buffered.data(), kPage, CopyKind::host_to_device_buffered).is_ok(),
           "submitted");
    EXPECT(stream->copy(data + kPage, plain.data(), kPage, CopyKind::host_to_device).is_ok(),
           "submitted");
    std::ranges::fill(buffered, 'b');
    std::ranges::fill(plain, 'b');
  }
  EXPECT(stream->synchronize().is_ok(), "both ran");
  EXPECT(data[0] == std::byte{'a'} && data[kPage - 1] == std::byte{'a'},
         "overwriting the host buffer right after the call changed nothing");
  EXPECT(data[kPage] == std::byte{'b'}, "the plain kind reads when the copy runs");
  device.memory().release(data, 2 * kPage);
}

TEST(launch_arguments_are_read_during_the_call) {
  DiscreteDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream();
  std::byte* data = device.memory().acquire(kPage);
  EXPECT(stream->fill(data, std::byte{0}, kPage).is_ok(), "zeros");
  uint64_t args[] = {reinterpret_cast<uint64_t>(data), 7};
  {
    const Held held(device);
    EXPECT(stream->launch({add_to_all, args, 4, 1, 1, nullptr, 0}, {2, {}}, {}).is_ok(),
           "submitted");
    args[0] = args[1] = 0;
  }
  EXPECT(stream->synchronize().is_ok(), "ran");
  EXPECT(reinterpret_cast<int64_t*>(data)[3] == 7, "with the arguments of the call");
  device.memory().release(data, kPage);
}

TEST(submitting_and_completing_are_two_moments) {
  DiscreteDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream();
  std::byte* data = device.memory().acquire(kPage);
  {
    const Held held(device);
    EXPECT(stream->fill(data, std::byte{1}, kPage).is_ok(), "submitted");
    EXPECT(data[0] != std::byte{1}, "not complete");
    EXPECT(stream->synchronize(2 * kMillisecond).code() == StatusCode::timed_out, "not in time");
  }
  EXPECT(stream->synchronize().is_ok() && data[0] == std::byte{1}, "complete");
  device.disturbance().set_delay(3 * kMillisecond);
  Event event;
  EXPECT(stream->fill(data, std::byte{2}, kPage).is_ok() && stream->record(event).is_ok(), "slow");
  EXPECT(event.synchronize(kMillisecond / 2).code() == StatusCode::timed_out, "takes its time");
  EXPECT(stream->synchronize().is_ok() && data[0] == std::byte{2}, "and arrives");
  device.memory().release(data, kPage);
}

TEST(faults_come_where_they_were_injected) {
  for (const Moment moment : {Moment::submission, Moment::completion}) {
    for (const StatusCode code : {StatusCode::kernel_failed, StatusCode::end_of_sequence}) {
      DiscreteDevice device;
      const std::unique_ptr<Stream> stream = device.create_stream();
      std::byte* data = device.memory().acquire(kPage);
      EXPECT(stream->fill(data, std::byte{0}, kPage).is_ok(), "zeros");
      EXPECT(stream->synchronize().is_ok(), "before the fault");
      device.disturbance().inject(moment, 2, code);
      int submitted = 0;
      while (submitted < 4 && add(*stream, data, 1, 1).is_ok()) ++submitted;
      const Status end = stream->synchronize();
      EXPECT(submitted == (moment == Moment::submission ? 2 : 4), "the third call fails, or none");
      EXPECT(end.code() == (moment == Moment::submission ? StatusCode::ok : code), "or the wait");
      EXPECT(*reinterpret_cast<int64_t*>(data) == 2, "two launches had their effect");
      EXPECT(add(*stream, data, 1, 1).is_ok() && stream->synchronize().is_ok(), "it goes on");
      device.memory().release(data, kPage);
    }
  }
}

TEST(arena_has_a_capacity_fragments_and_poison) {
  Arena arena({.capacity_bytes = 12 * kPage, .fragment_bytes = 3 * kPage});
  EXPECT(arena.acquire(4 * kPage) == nullptr, "no piece crosses the border of a fragment");
  std::byte* pieces[4];
  for (std::byte*& piece : pieces) piece = arena.acquire(3 * kPage - 5);
  EXPECT(arena.acquire(1) == nullptr, "full");
  EXPECT(arena.contains(pieces[3] + 3 * kPage - 1) && !arena.contains(&arena), "knows its memory");
  std::memset(pieces[1], 1, 3 * kPage);
  arena.release(pieces[1], 3 * kPage - 5);
  EXPECT(pieces[1][0] == kPoison && pieces[1][3 * kPage - 1] == kPoison, "poison on release");
  arena.release(pieces[2], 3 * kPage - 5);
  EXPECT(arena.statistics().largest_free_bytes == 3 * kPage, "fragments do not join");
  std::byte* page = arena.acquire(kPage);
  std::byte* rest = arena.acquire(2 * kPage);
  EXPECT(page == pieces[1] && rest == page + kPage, "first fit");
  arena.release(page, kPage);
  arena.release(rest, 2 * kPage);
  EXPECT(arena.acquire(3 * kPage) == pieces[1], "neighbours join again");
  EXPECT(arena.acquire(SIZE_MAX) == nullptr, "an absurd size is refused");
}

TEST(arena_random_stress_against_a_model) {
  std::mt19937_64 random(printed_seed("arena stress"));
  Arena arena({.capacity_bytes = 64 * kPage});
  std::vector<std::pair<std::byte*, size_t>> live;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 2 == 0) {
      const size_t size = random() % (9 * kPage) + 1;
      std::byte* data = arena.acquire(size);
      if (data == nullptr) {
        EXPECT(arena.statistics().largest_free_bytes < size, "refused only when nothing fits");
        continue;
      }
      for (const auto& [other, bytes] : live)
        EXPECT(data + size <= other || other + bytes <= data, "pieces are apart");
      live.emplace_back(data, size);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      arena.release(live.back().first, live.back().second);
      live.pop_back();
    }
  }
  for (const auto& [data, bytes] : live) arena.release(data, bytes);
  EXPECT(arena.statistics().live_bytes == 0, "all is free");
  EXPECT(arena.statistics().largest_free_bytes == 64 * kPage, "in one piece");
}

TEST(R01_use_on_another_stream_needs_a_synchronise_or_an_event) {
  DiscreteDevice device(checked());
  const std::unique_ptr<Stream> load = device.create_stream(), run = device.create_stream();
  std::byte* weights = device.memory().acquire(kPage);
  const std::vector<char> host(kPage, 1);
  const auto copy = [&] {
    return load->copy(weights, host.data(), kPage, CopyKind::host_to_device_buffered);
  };
  EXPECT(copy().is_ok() && add(*load, weights, 8, 1).is_ok(), "one stream keeps its own order");
  const Status hazard = add(*run, weights + 256, 8, 1);
  EXPECT(hazard.code() == StatusCode::missing_synchronization, "another stream is found out");
  EXPECT(hazard.message().find("stream 0") != std::string_view::npos &&
             hazard.message().find("stream 1") != std::string_view::npos,
         "and both are named");
  EXPECT(add(*run, weights + kPage, 1, 0).is_ok(), "other memory is no matter");
  EXPECT(load->synchronize().is_ok() && add(*run, weights, 8, 1).is_ok(), "a synchronise helps");
  Event event;
  EXPECT(copy().code() == StatusCode::missing_synchronization, "in the other direction too");
  EXPECT(run->record(event).is_ok() && load->wait(event).is_ok() && copy().is_ok(),
         "an event helps");
  EXPECT(run->synchronize().is_ok() && load->synchronize().is_ok(), "all done");
  device.memory().release(weights, kPage);
}

TEST(R01_readers_need_no_order_among_themselves) {
  DiscreteDevice device(checked());
  const std::unique_ptr<Stream> first = device.create_stream(), second = device.create_stream();
  std::byte* data = device.memory().acquire(kPage);
  char host[2] = {};
  EXPECT(first->copy(&host[0], data, 1, CopyKind::device_to_host).is_ok(), "one reads");
  EXPECT(second->copy(&host[1], data, 1, CopyKind::device_to_host).is_ok(), "the other reads");
  EXPECT(second->fill(data, std::byte{1}, 1).code() == StatusCode::missing_synchronization,
         "a writer must wait for the other reader");
  EXPECT(first->synchronize().is_ok() && second->synchronize().is_ok(), "all done");
  device.memory().release(data, kPage);
}

TEST(memory_that_goes_back_too_early_is_found_out) {
  DiscreteDevice device(checked());
  const std::unique_ptr<Stream> stream = device.create_stream();
  std::byte* data = device.memory().acquire(kPage);
  {
    const Held held(device);
    EXPECT(stream->fill(data, std::byte{1}, kPage).is_ok(), "submitted");
    device.memory().release(data, kPage);
  }
  EXPECT(stream->synchronize().code() == StatusCode::missing_synchronization, "not waited for");
  data = device.memory().acquire(kPage);
  EXPECT(stream->fill(data, std::byte{1}, kPage).is_ok() && stream->synchronize().is_ok(),
         "waited");
  device.memory().release(data, kPage);
  EXPECT(stream->synchronize().is_ok(), "no violation");
}

TEST(several_threads_may_submit_and_synchronize) {
  DiscreteDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream();
  std::byte* data = device.memory().acquire(kPage);
  EXPECT(stream->fill(data, std::byte{0}, kPage).is_ok(), "zeros");
  const int rounds = scaled(2000);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < rounds; ++i) {
        if (!add(*stream, data, 1, 1).is_ok()) ++failures;
        if (i % 100 == t && !stream->synchronize().is_ok()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(failures == 0 && stream->synchronize().is_ok(), "every call succeeds");
  EXPECT(*reinterpret_cast<int64_t*>(data) == 3 * rounds, "every launch ran once, one at a time");
  device.memory().release(data, kPage);
}

TEST(a_forked_child_is_told_to_make_its_own_stream) {
  if (kIsThreadSanitized || kIsAddressSanitized) return;  // a fork beside running threads
  CpuDevice device;
  std::unique_ptr<Stream> stream = device.create_asynchronous_stream();
  std::vector<int64_t> data(10, 1);
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  EXPECT(add(*stream, bytes, 10, 1).is_ok() && stream->synchronize().is_ok(), "before the fork");
  const pid_t child = fork();
  if (child == 0) {
    bool is_right = stream->synchronize().code() == StatusCode::invalid_argument;
    is_right &= add(*stream, bytes, 10, 1).code() == StatusCode::invalid_argument;
    stream = device.create_asynchronous_stream();
    is_right &= add(*stream, bytes, 10, 1).is_ok() && stream->synchronize().is_ok();
    stream.reset();
    _exit(is_right && data[0] == 3 ? 0 : 1);
  }
  int state = 0;
  waitpid(child, &state, 0);
  EXPECT(WIFEXITED(state) && WEXITSTATUS(state) == 0, "the old one is refused, a new one works");
  EXPECT(add(*stream, bytes, 10, 1).is_ok() && stream->synchronize().is_ok(), "the parent goes on");
}

TEST(a_log_has_when_each_command_was_submitted_and_ran_and_for_what) {
  DiscreteDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream();
  std::byte* data = device.memory().acquire(kPage);
  device.disturbance().inject(Moment::completion, 4, StatusCode::kernel_failed);
  CommandLog log;
  EXPECT(stream->fill(data, std::byte{0}, kPage).is_ok(), "before the log");
  stream->log_commands(&log, 3);
  CommandLog::set_cause(7);
  EXPECT(stream->fill(data, std::byte{1}, kPage).is_ok(), "a fill");
  CommandLog::set_cause(8);
  Event event;
  EXPECT(stream->record(event).is_ok() && stream->wait(event).is_ok(), "marks are no work");
  EXPECT(add(*stream, data, 8, 1).is_ok(), "a launch");
  int64_t found = 0;
  EXPECT(stream->copy(&found, data, 8, CopyKind::device_to_host).is_ok(), "a copy");
  EXPECT(add(*stream, data, 8, 1).is_ok() && add(*stream, data, 8, 1).is_ok(), "one fails");
  stream->log_commands(nullptr, 0);
  EXPECT(add(*stream, data, 8, 1).is_ok(), "after the log");
  EXPECT(stream->synchronize().code() == StatusCode::kernel_failed, "as injected");
  const std::vector<CommandTime> times = log.take();
  const CommandKind kinds[] = {CommandKind::fill, CommandKind::launch, CommandKind::copy,
                               CommandKind::launch};
  EXPECT(times.size() == std::size(kinds), "nothing that was skipped");
  for (size_t i = 0; i < std::min(times.size(), std::size(kinds)); ++i) {
    const CommandTime& time = times[i];
    EXPECT(time.kind == kinds[i] && time.cause == (i == 0 ? 7 : 8) && time.stream == 3, "who");
    EXPECT(time.submitted_ns <= time.begin_ns && time.begin_ns <= time.end_ns, "and when");
    EXPECT(i == 0 || times[i - 1].end_ns <= time.begin_ns, "in the order of the stream");
  }
  EXPECT(log.take().empty(), "taken once");
  device.memory().release(data, kPage);
}
