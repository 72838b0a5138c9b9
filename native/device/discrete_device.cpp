#include "device/discrete_device.h"

#include "device/queued_stream.h"

namespace grainline {
namespace {

// A queued stream behind the checks and faults of its device.
class DiscreteStream final : public Stream {
 public:
  explicit DiscreteStream(DiscreteDevice& device)
      : disturbance_(device.disturbance()),
        order_(device.order()),
        number_(order_ ? order_->add_stream() : 0),
        queue_([this] { return disturbance_.at_completion(); }) {}

  Status launch(const Dispatch& dispatch, ArgumentWords words,
                std::span<const MemoryAccess> accesses) override {
    if (Status status = admit(accesses); !status.is_ok()) return status;
    return queue_.launch(dispatch, words, accesses);
  }

  Status copy(void* destination, const void* source, size_t size_bytes, CopyKind kind) override {
    const MemoryAccess written{static_cast<const std::byte*>(destination), size_bytes, true};
    const MemoryAccess read{static_cast<const std::byte*>(source), size_bytes, false};
    const MemoryAccess both[] = {written, read};
    // Only device memory is checked.
    std::span<const MemoryAccess> accesses = both;
    if (kind == CopyKind::device_to_host) accesses = accesses.last(1);
    if (kind == CopyKind::host_to_device || kind == CopyKind::host_to_device_buffered)
      accesses = accesses.first(1);
    if (Status status = admit(accesses); !status.is_ok()) return status;
    return queue_.copy(destination, source, size_bytes, kind);
  }

  Status fill(std::byte* memory, std::byte value, size_t size_bytes) override {
    const MemoryAccess written{memory, size_bytes, true};
    if (Status status = admit({&written, 1}); !status.is_ok()) return status;
    return queue_.fill(memory, value, size_bytes);
  }

  Status record(Event& event) override {
    Status status = queue_.record(event);
    if (order_ && status.is_ok()) order_->record(number_, event);
    return status;
  }

  Status wait(Event& event) override {
    if (order_) order_->wait(number_, event);
    return queue_.wait(event);
  }

  Status synchronize(int64_t timeout_ns) override {
    if (order_ == nullptr) return queue_.synchronize(timeout_ns);
    const StreamClocks::Snapshot covered = order_->begin_synchronize(number_);
    Status status = queue_.synchronize(timeout_ns);
    if (status.code() != StatusCode::timed_out) order_->end_synchronize(covered);
    return status.is_ok() ? order_->take_violation() : std::move(status);
  }

  bool is_inline() const noexcept override { return false; }
  bool is_usable() const noexcept override { return queue_.is_usable(); }
  void log_commands(CommandLog* log, int number) override { queue_.log_commands(log, number); }

 private:
  Status admit(std::span<const MemoryAccess> accesses) {
    if (order_)
      if (Status status = order_->submit(number_, accesses); !status.is_ok()) return status;
    return disturbance_.at_submission();
  }

  Disturbance& disturbance_;
  CheckedOrder* const order_;
  const int number_;
  QueuedStream queue_;
};

}  // namespace

DiscreteDevice::DiscreteDevice(const Options& options)
    : order_(options.is_checked ? std::make_unique<CheckedOrder>() : nullptr),
      arena_(options.arena, order_
                                ? Arena::OnRelease([order = order_.get()](const std::byte* memory,
                                                                          size_t size_bytes) {
                                    order->release(memory, size_bytes);
                                  })
                                : nullptr) {}

std::unique_ptr<Stream> DiscreteDevice::create_stream() {
  return std::make_unique<DiscreteStream>(*this);
}

}  // namespace grainline
