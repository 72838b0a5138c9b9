#include "base/kernel_abi.h"

namespace grainline {

Status status_of_fault(int32_t fault) {
  if (fault == 0) return Status();
  switch (static_cast<KernelFault>(fault)) {
    case KernelFault::index_out_of_bounds:
      return Status(StatusCode::out_of_bounds, "the kernel met an index outside its tensor");
    case KernelFault::divide_by_zero:
      return Status(StatusCode::divide_by_zero, "the kernel met an integer division by zero");
    case KernelFault::interrupted:
      return Status(StatusCode::cancelled, "the run was cancelled");
  }
  return Status(StatusCode::kernel_failed, "the kernel returned " + std::to_string(fault));
}

}  // namespace grainline
