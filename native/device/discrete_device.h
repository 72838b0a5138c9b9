// A stand-in accelerator on the host: memory of its own, and work that completes later than it was
// submitted. It exercises copies, recycling and liveness for real, and can be disturbed on purpose.
#pragma once

#include <memory>

#include "device/arena.h"
#include "device/checked_order.h"
#include "device/device.h"
#include "device/disturbance.h"

namespace grainline {

class DiscreteDevice final : public Device {
 public:
  struct Options {
    Arena::Options arena;
    // Every submission is checked for missing synchronisation between streams, and every release
    // for work that was not waited for.
    bool is_checked = false;
  };

  explicit DiscreteDevice(const Options& options);
  DiscreteDevice() : DiscreteDevice(Options{}) {}

  std::string_view name() const noexcept override { return "discrete"; }
  bool is_unified() const noexcept override { return false; }
  bool holds(const void* data) const noexcept override { return arena_.contains(data); }
  bool is_checked() const noexcept override { return order_ != nullptr; }
  MemorySource& memory() noexcept override { return arena_; }
  std::unique_ptr<Stream> create_stream() override;

  const Arena& arena() const noexcept { return arena_; }
  Disturbance& disturbance() noexcept { return disturbance_; }
  // nullptr unless is_checked.
  CheckedOrder* order() noexcept { return order_.get(); }

 private:
  std::unique_ptr<CheckedOrder> order_;
  Arena arena_;
  Disturbance disturbance_;
};

}  // namespace grainline
