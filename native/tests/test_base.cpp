#include "base/kernel_abi.h"
#include "base/status.h"
#include "check.h"

using namespace grainline;

TEST(status_ok_is_one_null_pointer) {
  const Status ok;
  EXPECT(ok.is_ok() && ok.code() == StatusCode::ok, "a default Status is ok");
  EXPECT(ok.message().empty() && ok.text() == "ok", "ok has no message");
  EXPECT(sizeof(Status) == sizeof(void*), "a Status costs a pointer");
}

TEST(status_keeps_code_and_message_through_copies_and_moves) {
  Status failure(StatusCode::out_of_memory, "no room for 12 bytes");
  Status copy = failure;
  copy.add_context("node 3 'add'");
  EXPECT(failure.text() == "out_of_memory: no room for 12 bytes", "a copy is independent");
  EXPECT(copy.message() == "node 3 'add': no room for 12 bytes", "context stands in front");
  const Status moved = std::move(copy);
  EXPECT(moved.code() == StatusCode::out_of_memory, "a move keeps the code");
  failure = Status();
  EXPECT(failure.is_ok(), "assignment replaces");
  failure.add_context("nowhere");
  EXPECT(failure.is_ok(), "context leaves an ok Status ok");
}

TEST(every_status_code_has_a_name) {
  for (int32_t code = 0; code <= static_cast<int32_t>(StatusCode::internal); ++code)
    EXPECT(name_of(static_cast<StatusCode>(code)) != "unknown", "a code without a name");
}

TEST(kernel_faults_become_their_status) {
  EXPECT(status_of_fault(0).is_ok(), "0 is ok");
  EXPECT(status_of_fault(1).code() == StatusCode::out_of_bounds, "1 is an index out of bounds");
  EXPECT(status_of_fault(2).code() == StatusCode::divide_by_zero, "2 is a division by zero");
  EXPECT(status_of_fault(77).code() == StatusCode::kernel_failed, "others are kernel failures");
  EXPECT(status_of_fault(77).message().find("77") != std::string_view::npos, "with their number");
}
