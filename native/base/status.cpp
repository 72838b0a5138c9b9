#include "base/status.h"

#include <utility>

#include "base/check.h"

namespace grainline {

std::string_view name_of(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid_argument";
    case StatusCode::out_of_memory:
      return "out_of_memory";
    case StatusCode::out_of_bounds:
      return "out_of_bounds";
    case StatusCode::divide_by_zero:
      return "divide_by_zero";
    case StatusCode::kernel_failed:
      return "kernel_failed";
    case StatusCode::host_failed:
      return "host_failed";
    case StatusCode::end_of_sequence:
      return "end_of_sequence";
    case StatusCode::cancelled:
      return "cancelled";
    case StatusCode::timed_out:
      return "timed_out";
    case StatusCode::missing_synchronization:
      return "missing_synchronization";
    case StatusCode::not_ready:
      return "not_ready";
    case StatusCode::internal:
      return "internal";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message)
    : failure_(new Failure{code, std::move(message)}) {
  CHECK(code != StatusCode::ok, "an ok Status is made by Status() and has no message");
}

Status::Status(const Status& other)
    : failure_(other.failure_ ? new Failure(*other.failure_) : nullptr) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) failure_.reset(other.failure_ ? new Failure(*other.failure_) : nullptr);
  return *this;
}

std::string_view Status::message() const noexcept {
  return failure_ ? std::string_view(failure_->message) : std::string_view();
}

std::string Status::text() const {
  std::string result(name_of(code()));
  if (failure_) result.append(": ").append(failure_->message);
  return result;
}

void Status::add_context(std::string_view place) {
  if (failure_) failure_->message.insert(0, std::string(place) + ": ");
}

}  // namespace grainline
