// The registry of host kernels: what each node of a Program may run.
#pragma once

#include <span>
#include <string_view>

#include "exec/program.h"

namespace grainline {

// What a kernel does to the order of a program with control flow, see topological.h.
enum class Control : uint8_t {
  none,
  branch,  // a switch; a: slot, b: branches, c: 1 if the slot is a bool (true: branch 0)
  pivot,   // the begin of a branch; a: its number
  join,
};

// section: the critical-section key, "memory", "launch" or "" (none). Kernels of one section are
// never run at the same time. holds_address: a Free that gives the block back and leaves the
// address readable. may_park: it allocates device memory, so it may have to wait for launches (see
// relations.h); called again later, it goes on where it could not.
struct KernelType {
  std::string_view name;
  std::string_view section;
  KernelFn fn;
  bool holds_address = false;
  bool may_park = false;
  Control control = Control::none;
};

// By kernel number; the numbers are those of execgraph/pack.py.
std::span<const KernelType> kernel_types();

}  // namespace grainline
