// How a Run calls Python: host operations, their results, and signals.
#pragma once

#include <vector>

#include "bind/numpy.h"
#include "exec/run_state.h"

namespace grainline {

// What every call needs to know; lives as long as the model.
struct HostTable {
  std::vector<Ref> calls;        // by host op
  std::vector<Ref> slot_dtypes;  // by slot, numpy.dtype or nullptr
};

// Of one Run. `error` is the first Python exception that a call raised.
struct HostContext {
  const HostTable* table;
  Ref error;
};

// The Host that a Run in the calling thread uses. Signals are looked at in the main thread only.
Host host_of(HostContext* context);

// A NumPy view, read-only, of the memory of a slot; shape from the values. New reference.
PyObject* view_of_slot(const RunState& state, size_t slot, PyObject* dtype);

// Which thread Python calls the main one. Call once, with the GIL.
void remember_main_thread();

}  // namespace grainline
