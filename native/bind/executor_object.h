// The Python object around an Executor: binds feeds, runs without the GIL, wraps results.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/host_bridge.h"
#include "exec/executor.h"

namespace grainline {

class ExecutorObject {
 public:
  // input_dtypes and output_dtypes: numpy.dtype per input and output (None: any object);
  // slot_dtypes the same per slot; calls: a callable per host op. device outlives the object.
  ExecutorObject(std::shared_ptr<const Program> program, PyObject* input_dtypes,
                 PyObject* output_dtypes, PyObject* slot_dtypes, PyObject* calls,
                 const ExecutorOptions& options, Device& device);

  // Keeps `array` and uses its memory for the slot. Before the first run.
  void set_weight(size_t slot, PyObject* array);

  // All results are new references; nullptr: a Python error is set. names: None or a list of output
  // names. cancel: None or an int32 array of one element; the run ends when it is not zero.
  PyObject* run(PyObject* feeds, PyObject* names, PyObject* cancel);
  // (list of results, list of (node number, begin ns, end ns, worker, bytes taken, facts of a
  // launch or None), list of (node number, stream, kind, submitted ns, begin ns, end ns) of what
  // asynchronous streams did)
  PyObject* run_profiled(PyObject* feeds, PyObject* names, PyObject* cancel);
  // (list of results, list of (time ns, node number, worker, event kind)), the newest `capacity`.
  PyObject* run_logged(PyObject* feeds, PyObject* names, PyObject* cancel, size_t capacity);
  // As run, and `callable` is told what happens, see Subscriber.
  PyObject* run_watched(PyObject* feeds, PyObject* names, PyObject* callable);
  // One (node id, kernel, compute node) per node number.
  PyObject* nodes() const;

  // From now on this node fails with the code; ok: it does again what it did. Not during a run.
  void override_node_for_test(size_t number, StatusCode code);

  Executor& executor() { return executor_; }

 private:
  struct Input {
    Ref name;   // interned
    Ref dtype;  // null: any object
    Ref default_array;
    int type_number = -1;
    bool is_object = false;
  };
  struct Output {
    Ref name;
    Ref dtype;
    size_t slot = 0;
    SlotKind kind = SlotKind::output;
  };
  class Lease;

  PyObject* run_in(RunState& state, PyObject* feeds, PyObject* names, PyObject* cancel);
  bool bind_feeds(RunState& state, PyObject* feeds, std::vector<Ref>* held);
  bool bind_feed(RunState& state, size_t index, PyObject* value, std::vector<Ref>* held);
  bool bind_default(RunState& state, size_t index);
  PyObject* converted(const Input& input, size_t index, PyObject* value);
  bool refuse_names(PyObject* feeds);
  bool execute(RunState& state, PyObject* cancel);
  PyObject* result(RunState& state, const Output& output);
  PyObject* owned_array(RunState& state, const Output& output);
  PyObject* results(RunState& state, PyObject* names);
  PyObject* launch_facts(const RunState& state, size_t number) const;
  bool find_outputs(PyObject* names, std::vector<size_t>* wanted);

  Executor executor_;
  std::optional<std::pair<size_t, Node>> overridden_;  // the node as it was
  HostTable table_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<Ref> weights_;
  Ref output_numbers_;  // dict: name -> number
};

}  // namespace grainline
