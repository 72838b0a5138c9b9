// Tells a Python callable what happens in a run, while it happens.
#pragma once

#include <memory>

#include "bind/host_bridge.h"
#include "exec/observer.h"

namespace grainline {

// Of one Run. Calls `callable(kind, worker, node, read)` for every event, one at a time, on the
// thread of the worker. `read(slot, extents)` gives a copy of the tensor in a slot, or None where
// there is none or too little memory for the extents; it is for the time of the call. The first
// exception of the callable is kept, and then it is not called any more.
class Subscriber final : public Observer {
 public:
  Subscriber(PyObject* callable, RunState& state, const HostTable& table);
  ~Subscriber();
  void on_event(const RunEvent& event) override;

  // The exception, if there was one.
  Ref error;

 private:
  struct Source;  // of tensors; outlives us when somebody keeps `read`, and then gives None

  Ref callable_, read_;
  std::shared_ptr<Source> source_;
};

}  // namespace grainline
