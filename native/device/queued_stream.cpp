#include "device/queued_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/float_environment.h"
#include "memory/output_pool.h"
#include "threads/forks.h"
#include "threads/start_thread.h"

namespace grainline {
namespace {

Status made_before_a_fork() {
  return Status(StatusCode::invalid_argument,
                "the stream was made before a fork and its thread stayed behind; make a new one");
}

}  // namespace

QueuedStream::QueuedStream(BeforeCommand before_command)
    : before_command_(std::move(before_command)), forks_at_start_(forks()) {}

QueuedStream::~QueuedStream() {
  if (!is_started_ || !is_usable()) return;  // no thread here to be joined
  static_cast<void>(submit([](Command& command) {
    command.kind = Kind::stop;
    return Status();
  }));
  pthread_join(thread_, nullptr);
}

bool QueuedStream::is_usable() const noexcept { return forks_at_start_ == forks(); }

void QueuedStream::log_commands(CommandLog* log, int number) {
  const std::lock_guard<std::mutex> held(lock_);
  log_ = log;
  number_in_log_ = number;
}

// write(command) fills the next slot, or fails and leaves it unsubmitted.
template <typename Write>
Status QueuedStream::submit(Write write) {
  if (!is_usable()) [[unlikely]]
    return made_before_a_fork();
  const std::lock_guard<std::mutex> held(lock_);
  if (!is_started_) [[unlikely]] {
    if (Status status = start_thread([this] { serve(); }, &thread_); !status.is_ok()) return status;
    is_started_ = true;
  }
  const uint32_t number = submitted_.reached();
  completed_.await(number + 1 - kCapacity, kNoTimeout);
  Command& command = ring_[number % kCapacity];
  if (Status status = write(command); !status.is_ok()) return status;
  command.log = log_;
  if (log_ != nullptr) [[unlikely]]
    command.time = {CommandLog::cause(), number_in_log_, {}, now_ns(), 0, 0};
  submitted_.advance_to(number + 1);
  return Status();
}

Status QueuedStream::launch(const Dispatch& dispatch, ArgumentWords words,
                            std::span<const MemoryAccess>) {
  return submit([&](Command& command) {
    command.kind = Kind::launch;
    command.dispatch = dispatch;
    command.arguments.assign(dispatch.args, dispatch.args + words.count);
    command.dispatch.args = command.arguments.data();
    const uint64_t moved_by = reinterpret_cast<uint64_t>(command.dispatch.args) -
                              reinterpret_cast<uint64_t>(dispatch.args);
    for (const uint32_t word : words.inner) command.arguments[word] += moved_by;
    return Status();
  });
}

Status QueuedStream::copy(void* destination, const void* source, size_t size_bytes, CopyKind kind) {
  if (size_bytes == 0) return Status();
  return submit([&](Command& command) {
    command.kind = Kind::copy;
    command.destination = destination;
    command.source = source;
    command.size_bytes = size_bytes;
    if (kind != CopyKind::host_to_device_buffered) return Status();
    command.staged = OutputPool::process().acquire(size_bytes);
    if (command.staged == nullptr)
      return Status(StatusCode::out_of_memory,
                    "no memory to buffer a copy of " + std::to_string(size_bytes) + " bytes");
    std::memcpy(command.staged, source, size_bytes);
    command.source = command.staged;
    return Status();
  });
}

Status QueuedStream::fill(std::byte* memory, std::byte value, size_t size_bytes) {
  if (size_bytes == 0) return Status();
  return submit([&](Command& command) {
    command.kind = Kind::fill;
    command.destination = memory;
    command.value = value;
    command.size_bytes = size_bytes;
    return Status();
  });
}

Status QueuedStream::record(Event& event) {
  return submit([&](Command& command) {
    command.kind = Kind::record;
    command.event = &event;
    return event.add_record(this, &command.record_number);
  });
}

Status QueuedStream::wait(Event& event) {
  return submit([&](Command& command) {
    command.kind = Kind::wait;
    command.event = &event;
    command.record_number = event.recorded();
    return Status();
  });
}

Status QueuedStream::synchronize(int64_t timeout_ns) {
  if (!is_usable()) [[unlikely]]
    return made_before_a_fork();
  if (!completed_.await(submitted_.reached(), timeout_ns))
    return Status(StatusCode::timed_out, "the stream did not finish in time");
  // Acquire: pairs with keep. False at a failure that came after what was waited for is no harm.
  if (!has_failed_.load(std::memory_order_acquire)) [[likely]]
    return Status();
  const std::lock_guard<std::mutex> held(failure_lock_);
  has_failed_.store(false, std::memory_order_relaxed);  // under failure_lock_
  return std::exchange(failure_, Status());
}

void QueuedStream::keep(Status failure) {
  const std::lock_guard<std::mutex> held(failure_lock_);
  if (!failure_.is_ok()) return;
  failure_ = std::move(failure);
  has_failed_.store(true, std::memory_order_release);
}

void QueuedStream::serve() {
  pthread_setname_np(pthread_self(), "grainline-strm");
  const DefaultFloatScope float_scope;
  for (uint32_t number = 0;; ++number) {
    submitted_.await(number + 1, kNoTimeout);
    Command& command = ring_[number % kCapacity];
    const bool is_last = command.kind == Kind::stop;
    if (Status status = run(command); !status.is_ok()) keep(std::move(status));
    OutputPool::process().release(std::exchange(command.staged, nullptr));
    completed_.advance_to(number + 1);
    if (is_last) return;
  }
}

Status QueuedStream::run(Command& command) {
  // Marks are reached after a failure too, or whoever waits for them would wait for ever.
  if (command.kind == Kind::record) command.event->completed().advance_to(command.record_number);
  if (command.kind == Kind::wait)
    command.event->completed().await(command.record_number, kNoTimeout);
  const bool is_work = command.kind <= Kind::fill;
  // Relaxed: this thread sets it; a synchronize that clears it is ordered by what is submitted
  // next.
  if (!is_work || has_failed_.load(std::memory_order_relaxed)) return Status();
  if (command.log == nullptr) [[likely]]
    return work(command);
  CommandTime& time = command.time;
  time.kind = command.kind == Kind::launch ? CommandKind::launch
              : command.kind == Kind::copy ? CommandKind::copy
                                           : CommandKind::fill;
  time.begin_ns = now_ns();
  Status status = work(command);
  time.end_ns = now_ns();
  command.log->add(time);
  return status;
}

Status QueuedStream::work(const Command& command) {
  if (before_command_)
    if (Status status = before_command_(); !status.is_ok()) return status;
  if (command.kind == Kind::launch)
    return status_of_fault(Pool::process().dispatch(command.dispatch));
  if (command.kind == Kind::copy)
    std::memmove(command.destination, command.source, command.size_bytes);
  else
    std::memset(command.destination, static_cast<int>(command.value), command.size_bytes);
  return Status();
}

}  // namespace grainline
