#include "bind/executor_object.h"

#include "bind/failure.h"
#include "bind/subscriber.h"
#include "memory/output_pool.h"

namespace grainline {
namespace {

PyObject* none_to_null(PyObject* object) { return object == Py_None ? nullptr : object; }

std::vector<Ref> refs_of(PyObject* list) {
  std::vector<Ref> refs;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i)
    refs.push_back(Ref::borrow(none_to_null(PyList_GET_ITEM(list, i))));
  return refs;
}

Ref interned(const std::string& text) { return Ref(PyUnicode_InternFromString(text.c_str())); }

void release_output(PyObject* capsule) {
  OutputPool::process().release(static_cast<std::byte*>(PyCapsule_GetPointer(capsule, nullptr)));
}

const std::atomic<int32_t>* cancel_word(PyObject* cancel) {
  static_assert(sizeof(std::atomic<int32_t>) == sizeof(int32_t));
  if (cancel == nullptr || cancel == Py_None) return nullptr;
  auto* array = reinterpret_cast<PyArrayObject*>(cancel);
  if (!PyArray_Check(cancel) || PyArray_TYPE(array) != NPY_INT32 || PyArray_SIZE(array) < 1 ||
      !PyArray_ISCARRAY_RO(array)) {
    PyErr_SetString(PyExc_TypeError, "cancel must be an int32 array of one element");
    return nullptr;
  }
  return static_cast<const std::atomic<int32_t>*>(PyArray_DATA(array));
}

// a: the status code
bool injected_failure(RunState& state, const Node& node) {
  return state.fail(static_cast<StatusCode>(node.a), "injected");
}

}  // namespace

// Gives the state back with nothing of the run left in it.
class ExecutorObject::Lease {
 public:
  explicit Lease(Executor& executor) : executor_(executor), state_(executor.lease()) {}
  ~Lease() {
    state_->drop_outputs();
    state_->host = {};
    state_->observer = nullptr;
    executor_.give_back(state_);
  }
  RunState& state() { return *state_; }

 private:
  Executor& executor_;
  RunState* state_;
};

ExecutorObject::ExecutorObject(std::shared_ptr<const Program> program, PyObject* input_dtypes,
                               PyObject* output_dtypes, PyObject* slot_dtypes, PyObject* calls,
                               const ExecutorOptions& options, Device& device)
    : executor_(program, options, device), output_numbers_(PyDict_New()) {
  table_.calls = refs_of(calls);
  table_.slot_dtypes = refs_of(slot_dtypes);
  weights_.resize(program->slots.size());
  for (size_t i = 0; i < program->inputs.size(); ++i) {
    const InputRow& row = program->inputs[i];
    Input input{interned(program->string(row.name)),
                Ref::borrow(none_to_null(PyList_GetItem(input_dtypes, static_cast<Py_ssize_t>(i)))),
                Ref(), -1, row.is_object != 0};
    if (input.dtype)
      input.type_number = reinterpret_cast<PyArray_Descr*>(input.dtype.get())->type_num;
    inputs_.push_back(std::move(input));
  }
  for (size_t i = 0; i < program->outputs.size(); ++i) {
    const OutputRow& row = program->outputs[i];
    const auto slot = static_cast<size_t>(row.slot);
    outputs_.push_back(
        {interned(program->string(row.name)),
         Ref::borrow(none_to_null(PyList_GetItem(output_dtypes, static_cast<Py_ssize_t>(i)))), slot,
         static_cast<SlotKind>(program->slots[slot].kind)});
    const Ref number(PyLong_FromSize_t(i));
    PyDict_SetItem(output_numbers_.get(), outputs_.back().name.get(), number.get());
  }
}

void ExecutorObject::set_weight(size_t slot, PyObject* array) {
  weights_[slot] = Ref::borrow(array);
  executor_.set_weight(slot, static_cast<std::byte*>(PyArray_DATA(weights_[slot].array())));
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (executor_.program().inputs[i].default_slot == static_cast<int64_t>(slot))
      inputs_[i].default_array = Ref::borrow(array);
}

// ---- feeds ------------------------------------------------------------------------------------

bool ExecutorObject::bind_feeds(RunState& state, PyObject* feeds, std::vector<Ref>* held) {
  Py_ssize_t found = 0;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    PyObject* value = PyDict_GetItemWithError(feeds, inputs_[i].name.get());
    if (value != nullptr) {
      ++found;
      if (!bind_feed(state, i, value, held)) return false;
    } else if (PyErr_Occurred() || !inputs_[i].default_array) {
      return PyErr_Occurred() ? false : refuse_names(feeds);
    } else if (!bind_default(state, i)) {
      return false;
    }
  }
  return found == PyDict_GET_SIZE(feeds) || refuse_names(feeds);
}

bool ExecutorObject::bind_feed(RunState& state, size_t index, PyObject* value,
                               std::vector<Ref>* held) {
  const Input& input = inputs_[index];
  const bool is_ready =
      PyArray_CheckExact(value) &&
      PyArray_TYPE(reinterpret_cast<PyArrayObject*>(value)) == input.type_number &&
      PyArray_ISCARRAY_RO(reinterpret_cast<PyArrayObject*>(value));
  // Held for the run: another thread may take the array out of the dict meanwhile.
  held->emplace_back(is_ready && !input.is_object ? Py_NewRef(value)
                                                  : converted(input, index, value));
  PyObject* object = held->back().get();
  if (object == nullptr) return false;
  auto* array = PyArray_Check(object) ? reinterpret_cast<PyArrayObject*>(object) : nullptr;
  const Status status =
      state.bind_input(index, array ? static_cast<std::byte*>(PyArray_DATA(array)) : nullptr,
                       object, array ? PyArray_NDIM(array) : -1,
                       array ? reinterpret_cast<const int64_t*>(PyArray_DIMS(array)) : nullptr);
  if (!status.is_ok()) raise_failure(status, "", nullptr);
  return status.is_ok();
}

bool ExecutorObject::bind_default(RunState& state, size_t index) {
  PyArrayObject* array = inputs_[index].default_array.array();
  const Status status = state.bind_input(index, static_cast<std::byte*>(PyArray_DATA(array)),
                                         inputs_[index].default_array.get(), PyArray_NDIM(array),
                                         reinterpret_cast<const int64_t*>(PyArray_DIMS(array)));
  if (!status.is_ok()) raise_failure(status, "", nullptr);
  return status.is_ok();
}

PyObject* ExecutorObject::converted(const Input& input, size_t index, PyObject* value) {
  const Ref convert(import_function("grainline.runtime.feeds", "convert"));
  if (!convert) return nullptr;
  PyObject* dtype = input.dtype ? input.dtype.get() : Py_None;
  const auto rank = static_cast<int>(executor_.program().inputs[index].rank);
  return PyObject_CallFunction(convert.get(), "OOiO", input.name.get(), dtype, rank, value);
}

// Always false, with the error that tells which names are wrong.
bool ExecutorObject::refuse_names(PyObject* feeds) {
  const Ref refuse(import_function("grainline.runtime.feeds", "refuse_names"));
  const Ref known(PyList_New(0));
  const Ref optional(PyList_New(0));
  if (!refuse || !known || !optional) return false;
  for (const Input& input : inputs_)
    PyList_Append(input.default_array ? optional.get() : known.get(), input.name.get());
  const Ref never(PyObject_CallFunction(refuse.get(), "OOO", feeds, known.get(), optional.get()));
  return false;
}

// ---- running ----------------------------------------------------------------------------------

PyObject* ExecutorObject::run(PyObject* feeds, PyObject* names, PyObject* cancel) {
  Lease lease(executor_);
  return run_in(lease.state(), feeds, names, cancel);
}

PyObject* ExecutorObject::run_in(RunState& state, PyObject* feeds, PyObject* names,
                                 PyObject* cancel) {
  Ref dict;
  if (!PyDict_Check(feeds)) {
    dict = Ref(PyObject_CallOneArg(reinterpret_cast<PyObject*>(&PyDict_Type), feeds));
    if (!dict) return nullptr;
    feeds = dict.get();
  }
  std::vector<Ref> held;
  held.reserve(inputs_.size());
  if (!bind_feeds(state, feeds, &held) || !execute(state, cancel)) return nullptr;
  return results(state, names);
}

bool ExecutorObject::execute(RunState& state, PyObject* cancel) {
  state.terminate = cancel_word(cancel);
  if (PyErr_Occurred()) return false;
  HostContext context{&table_, Ref()};
  state.host = host_of(&context);
  PyThreadState* thread = PyEval_SaveThread();
  const Status status = executor_.run(state);
  PyEval_RestoreThread(thread);
  if (status.is_ok()) return true;
  const Program& p = executor_.program();
  const std::string_view node =
      state.failed_node < 0
          ? std::string_view()
          : p.string(p.node_rows[static_cast<size_t>(state.failed_node)].compute_node);
  raise_failure(status, node, context.error.get());
  return false;
}

// ---- results ----------------------------------------------------------------------------------

PyObject* ExecutorObject::results(RunState& state, PyObject* names) {
  Ref all(PyList_New(static_cast<Py_ssize_t>(outputs_.size())));
  for (size_t i = 0; all && i < outputs_.size(); ++i) {
    PyObject* one = result(state, outputs_[i]);
    if (one == nullptr) return nullptr;
    PyList_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i), one);
  }
  if (names == Py_None || !all) return all.release();
  std::vector<size_t> wanted;
  if (!find_outputs(names, &wanted)) return nullptr;
  Ref some(PyList_New(static_cast<Py_ssize_t>(wanted.size())));
  for (size_t i = 0; some && i < wanted.size(); ++i)
    PyList_SET_ITEM(some.get(), static_cast<Py_ssize_t>(i),
                    Py_NewRef(PyList_GET_ITEM(all.get(), static_cast<Py_ssize_t>(wanted[i]))));
  return some.release();
}

PyObject* ExecutorObject::result(RunState& state, const Output& output) {
  const SlotState& slot = state.slots[output.slot];
  if (output.kind == SlotKind::output) return owned_array(state, output);
  if (output.kind == SlotKind::object) return Py_NewRef(static_cast<PyObject*>(slot.object));
  // A fed or constant value comes back as a copy: results never share memory with feeds.
  const Ref shown(slot.object != nullptr ? Py_NewRef(static_cast<PyObject*>(slot.object))
                                         : Py_XNewRef(weights_[output.slot].get()));
  if (!shown || !PyArray_Check(shown.get())) return Py_XNewRef(shown.get());
  return PyArray_NewCopy(shown.array(), NPY_CORDER);
}

// An array that owns the memory of the slot.
PyObject* ExecutorObject::owned_array(RunState& state, const Output& output) {
  SlotState& slot = state.slots[output.slot];
  Ref array(view_of_slot(state, output.slot, output.dtype.get()));
  if (!array) return nullptr;
  PyObject* capsule = PyCapsule_New(slot.data, nullptr, release_output);
  if (capsule == nullptr) return nullptr;
  slot.data = nullptr;
  if (PyArray_SetBaseObject(array.array(), capsule) < 0) return nullptr;
  PyArray_ENABLEFLAGS(array.array(), NPY_ARRAY_WRITEABLE);
  return array.release();
}

bool ExecutorObject::find_outputs(PyObject* names, std::vector<size_t>* wanted) {
  const Ref list(PySequence_Fast(names, "output names must be a sequence of strings"));
  if (!list) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
    PyObject* name = PySequence_Fast_GET_ITEM(list.get(), i);
    PyObject* number = PyDict_GetItemWithError(output_numbers_.get(), name);
    if (number == nullptr) {
      if (PyErr_Occurred()) return false;
      const Ref refuse(import_function("grainline.runtime.feeds", "refuse_output"));
      if (refuse)
        const Ref never(PyObject_CallFunction(refuse.get(), "OO", name, output_numbers_.get()));
      return false;
    }
    wanted->push_back(PyLong_AsSize_t(number));
  }
  return true;
}

// ---- profiles ---------------------------------------------------------------------------------

// What the tiling of a launch chose, or None. New reference.
PyObject* ExecutorObject::launch_facts(const RunState& state, size_t number) const {
  const Program& p = executor_.program();
  if (p.string(p.node_rows[number].kernel_name) != "Launch") Py_RETURN_NONE;
  const auto launch = static_cast<size_t>(p.nodes[number].a);
  const Dispatch& d = state.dispatches[launch];
  return Py_BuildValue("iLLin", static_cast<int>(state.variants[launch]),
                       static_cast<long long>(d.blocks), static_cast<long long>(d.grain), d.homes,
                       static_cast<Py_ssize_t>(d.scratch_stride));
}

PyObject* ExecutorObject::run_profiled(PyObject* feeds, PyObject* names, PyObject* cancel) {
  Lease lease(executor_);
  RunState& state = lease.state();
  NodeTimes watch(executor_.program().nodes.size());
  CommandLog log;
  state.observer = &watch;
  state.log_commands(&log);
  Ref arrays(run_in(state, feeds, names, cancel));
  state.log_commands(nullptr);
  Ref times(PyList_New(0)), commands(PyList_New(0));
  if (!arrays || !times || !commands) return nullptr;
  for (size_t i = 0; i < watch.times().size(); ++i) {
    const NodeTime& time = watch.times()[i];
    const Ref row(Py_BuildValue("nLLiLN", static_cast<Py_ssize_t>(i),
                                static_cast<long long>(time.begin_ns),
                                static_cast<long long>(time.end_ns), time.worker,
                                static_cast<long long>(time.taken_bytes), launch_facts(state, i)));
    if (!row || PyList_Append(times.get(), row.get()) < 0) return nullptr;
  }
  for (const CommandTime& time : log.take()) {
    const Ref row(
        Py_BuildValue("LiiLLL", static_cast<long long>(time.cause), time.stream,
                      static_cast<int>(time.kind), static_cast<long long>(time.submitted_ns),
                      static_cast<long long>(time.begin_ns), static_cast<long long>(time.end_ns)));
    if (!row || PyList_Append(commands.get(), row.get()) < 0) return nullptr;
  }
  return Py_BuildValue("NNN", arrays.release(), times.release(), commands.release());
}

PyObject* ExecutorObject::run_logged(PyObject* feeds, PyObject* names, PyObject* cancel,
                                     size_t capacity) {
  Lease lease(executor_);
  EventLog log(capacity);
  lease.state().observer = &log;
  Ref arrays(run_in(lease.state(), feeds, names, cancel));
  Ref events(PyList_New(0));
  if (!arrays || !events) return nullptr;
  for (const EventLog::Entry& entry : log.entries()) {
    const Ref row(Py_BuildValue("LLii", static_cast<long long>(entry.time_ns),
                                static_cast<long long>(entry.node), static_cast<int>(entry.worker),
                                static_cast<int>(entry.kind)));
    if (!row || PyList_Append(events.get(), row.get()) < 0) return nullptr;
  }
  return Py_BuildValue("NN", arrays.release(), events.release());
}

PyObject* ExecutorObject::run_watched(PyObject* feeds, PyObject* names, PyObject* callable) {
  Lease lease(executor_);
  Subscriber subscriber(callable, lease.state(), table_);
  lease.state().observer = &subscriber;
  Ref arrays(run_in(lease.state(), feeds, names, Py_None));
  if (!arrays || !subscriber.error) return arrays.release();
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(subscriber.error.get())),
                  subscriber.error.get());
  return nullptr;
}

void ExecutorObject::override_node_for_test(size_t number, StatusCode code) {
  // Made by us and not const; nobody runs.
  auto& nodes = const_cast<Program&>(executor_.program()).nodes;
  if (overridden_) nodes[overridden_->first] = overridden_->second;
  overridden_.reset();
  if (code == StatusCode::ok) return;
  overridden_.emplace(number, nodes[number]);
  nodes[number] = {injected_failure, static_cast<int32_t>(code), 0, 0, 0};
}

PyObject* ExecutorObject::nodes() const {
  const Program& p = executor_.program();
  Ref list(PyList_New(0));
  for (const NodeRow& row : p.node_rows) {
    const Ref one(Py_BuildValue("Lss", static_cast<long long>(row.node_id),
                                p.string(row.kernel_name).c_str(),
                                p.string(row.compute_node).c_str()));
    if (!one || PyList_Append(list.get(), one.get()) < 0) return nullptr;
  }
  return list.release();
}

}  // namespace grainline
