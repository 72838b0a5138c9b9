// What an operation that may fail for the user's reasons returns. Our own bugs are CHECKs instead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace grainline {

enum class StatusCode : int32_t {
  ok = 0,
  invalid_argument,
  out_of_memory,
  out_of_bounds,
  divide_by_zero,
  kernel_failed,
  host_failed,
  end_of_sequence,
  cancelled,
  timed_out,
  missing_synchronization,
  not_ready,
  internal,
};

std::string_view name_of(StatusCode code) noexcept;

// Invariant: failure_ == nullptr  <=>  code() == ok. So an ok Status is one null pointer.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, std::string message);

  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  Status(const Status& other);
  Status& operator=(const Status& other);

  bool is_ok() const noexcept { return failure_ == nullptr; }
  StatusCode code() const noexcept { return failure_ ? failure_->code : StatusCode::ok; }
  // Empty when ok.
  std::string_view message() const noexcept;
  // "out_of_memory: ..." or "ok".
  std::string text() const;

  // Puts a place in front of the message ("node 12 'add': ..."); an ok Status stays as it is.
  void add_context(std::string_view place);

 private:
  struct Failure {
    StatusCode code;
    std::string message;
  };
  std::unique_ptr<Failure> failure_;
};

}  // namespace grainline
