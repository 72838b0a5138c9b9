// The registry of host kernels: what each node of a Program may run.
#pragma once

#include <span>
#include <string_view>

#include "exec/program.h"

namespace grainline {

// section: the critical-section key, "memory", "launch" or "" (none). Kernels of one section are
// never run at the same time.
struct KernelType {
  std::string_view name;
  std::string_view section;
  KernelFn fn;
};

// By kernel number; the numbers are those of execgraph/pack.py.
std::span<const KernelType> kernel_types();

}  // namespace grainline
