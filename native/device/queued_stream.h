// An asynchronous stream: a ring of commands, and a thread that runs them in order.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "device/stream.h"
#include "threads/milestone.h"

namespace grainline {

// The thread starts with the first command (out_of_memory where the system has none to give; the
// next command tries again) and sleeps while there is none. Launches use the process-wide pool. A
// full ring makes the submitter wait. In the child of a fork every call fails with
// invalid_argument, because the thread stayed behind.
//
// Shared fields. The ring: slot n is written by the submitter, under lock_, before submitted_
// reaches n + 1; then it is the stream thread's until completed_ does. failure_ is under
// failure_lock_; has_failed_ says whether it is worth taking.
class QueuedStream final : public Stream {
 public:
  // Runs on the stream thread before each launch, copy and fill; a failure takes the command's
  // place. May be null.
  using BeforeCommand = std::function<Status()>;

  explicit QueuedStream(BeforeCommand before_command = nullptr);
  // Completes what was submitted.
  ~QueuedStream() override;
  QueuedStream(const QueuedStream&) = delete;
  QueuedStream& operator=(const QueuedStream&) = delete;

  using Stream::synchronize;
  Status launch(const Dispatch& dispatch, ArgumentWords words,
                std::span<const MemoryAccess> accesses) override;
  Status copy(void* destination, const void* source, size_t size_bytes, CopyKind kind) override;
  Status fill(std::byte* memory, std::byte value, size_t size_bytes) override;
  Status record(Event& event) override;
  Status wait(Event& event) override;
  Status synchronize(int64_t timeout_ns) override;
  bool is_inline() const noexcept override { return false; }
  bool is_usable() const noexcept override;
  void log_commands(CommandLog* log, int number) override;

 private:
  enum class Kind : int8_t { launch, copy, fill, record, wait, stop };
  struct Command {
    Kind kind = Kind::stop;
    Dispatch dispatch;
    std::vector<uint64_t> arguments;  // keeps its room
    void* destination = nullptr;
    const void* source = nullptr;
    std::byte* staged = nullptr;  // host bytes read at submission; goes back to the output pool
    size_t size_bytes = 0;
    std::byte value{};
    Event* event = nullptr;
    uint32_t record_number = 0;
    CommandLog* log = nullptr;
    CommandTime time{};  // when there is a log
  };
  static constexpr uint32_t kCapacity = 512;

  template <typename Write>
  Status submit(Write write);
  void serve();
  Status run(Command& command);
  Status work(const Command& command);
  void keep(Status failure);

  const BeforeCommand before_command_;
  const uint32_t forks_at_start_;
  std::array<Command, kCapacity> ring_;
  std::mutex lock_;
  Milestone submitted_;
  Milestone completed_;
  std::mutex failure_lock_;
  Status failure_;
  std::atomic<bool> has_failed_{false};
  CommandLog* log_ = nullptr;  // under lock_, as the next three
  int number_in_log_ = 0;
  bool is_started_ = false;
  pthread_t thread_{};
};

}  // namespace grainline
