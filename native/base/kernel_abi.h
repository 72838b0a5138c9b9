// The one signature that generated tile kernels and the core agree on. Plain C, so that a kernel
// may come from anywhere.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace grainline {

// args: 64-bit words, pointers and i64 extents, in the kernel's declared order.
// [begin, end): a range of blocks. scratch: private to the calling home for the time of the call.
// Returns 0, or a positive KernelFault. Must not throw and must not block.
using TileKernel = int32_t (*)(const uint64_t* args, int64_t begin, int64_t end, void* scratch);

enum class KernelFault : int32_t {
  index_out_of_bounds = 1,
  divide_by_zero = 2,
  interrupted = -1,  // no kernel says so: the pool, when it was told to leave the rest
};

// 0 -> ok; known faults -> their own code; anything else -> kernel_failed with the number.
Status status_of_fault(int32_t fault);

}  // namespace grainline
