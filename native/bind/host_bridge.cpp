#include "bind/host_bridge.h"

#include <algorithm>
#include <string>

#include "bind/failure.h"

namespace grainline {
namespace {

unsigned long main_thread = 0;

// Whoever runs has given the GIL up; a call takes it back for its time.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// While Python code of a host operation runs, every call it makes looks at the cancel word: a
// profile function is the one hook that reaches code which knows nothing of us. Only for runs that
// can be cancelled, and only when nobody else profiles this thread.
class CancelWatch {
 public:
  explicit CancelWatch(const RunState& state) : terminate_(state.terminate) {
    is_set_ = state.is_cancellable && PyThreadState_Get()->c_profilefunc == nullptr;
    if (!is_set_) return;
    Ref word(PyCapsule_New(const_cast<std::atomic<int32_t>*>(terminate_), nullptr, nullptr));
    if (word) PyEval_SetProfile(look, word.get());
  }
  ~CancelWatch() {
    if (!is_set_) return;
    const bool has_error = PyErr_Occurred() != nullptr;
    Ref error = has_error ? take_error() : Ref();
    PyEval_SetProfile(nullptr, nullptr);
    if (has_error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  }
  CancelWatch(const CancelWatch&) = delete;
  CancelWatch& operator=(const CancelWatch&) = delete;

 private:
  static int look(PyObject* word, PyFrameObject*, int event, PyObject*) {
    const auto* terminate =
        static_cast<const std::atomic<int32_t>*>(PyCapsule_GetPointer(word, nullptr));
    // Relaxed: the flag carries no data.
    if (event != PyTrace_CALL || terminate->load(std::memory_order_relaxed) == 0) return 0;
    raise_failure(Status(StatusCode::cancelled, "the run was cancelled"), "", nullptr);
    return -1;
  }

  const std::atomic<int32_t>* terminate_;
  bool is_set_ = false;
};

PyObject* call_python(const HostContext& context, const RunState& state, const HostCallRow& row,
                      PyObject* arguments) {
  const CancelWatch watch(state);
  return PyObject_Call(context.table->calls[static_cast<size_t>(row.host_op)].get(), arguments,
                       nullptr);
}

bool keep_error(HostContext& context, RunState& state) {
  const Ref error = take_error();
  // Of the workers of one run the first one counts, as for the status; the GIL orders them.
  if (!context.error) context.error = Ref::borrow(error.get());
  // Whatever a cancelled operation made of the exception, the run was cancelled.
  if (state.is_cancellable && state.terminate->load(std::memory_order_relaxed) != 0) {
    state.fail(StatusCode::cancelled, "the run was cancelled");
    return false;
  }
  const Ref text(PyObject_Str(error.get()));
  const char* message = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  PyErr_Clear();
  const std::string kind = Py_TYPE(error.get())->tp_name;
  state.fail(StatusCode::host_failed,
             message != nullptr && *message ? kind + ": " + message : kind);
  return false;
}

// Borrowed objects are passed as they are, memory as a view.
PyObject* argument(const HostContext& context, const RunState& state, int64_t slot) {
  if (slot < 0) return Py_NewRef(Py_None);
  const auto index = static_cast<size_t>(slot);
  if (state.slots[index].object != nullptr)
    return Py_NewRef(static_cast<PyObject*>(state.slots[index].object));
  return view_of_slot(state, index, context.table->slot_dtypes[index].get());
}

Ref arguments(const HostContext& context, const RunState& state, const HostCallRow& row) {
  const Program& p = state.program();
  Ref tuple(PyTuple_New(row.argument_end - row.argument_begin));
  for (int64_t i = row.argument_begin; tuple && i < row.argument_end; ++i) {
    PyObject* one = argument(context, state, p.slot_lists[static_cast<size_t>(i)]);
    if (one == nullptr) return Ref();
    PyTuple_SET_ITEM(tuple.get(), i - row.argument_begin, one);
  }
  return tuple;
}

void store(RunState& state, size_t slot, PyObject* object) {
  SlotState& target = state.slots[slot];
  target.object = Py_NewRef(object);
  target.data =
      PyArray_Check(object)
          ? static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(object)))
          : nullptr;
}

bool call(void* context_pointer, RunState& state, const HostCallRow& row) {
  auto& context = *static_cast<HostContext*>(context_pointer);
  const Gil gil;
  const Ref tuple = arguments(context, state, row);
  if (!tuple) return keep_error(context, state);
  const Ref results(call_python(context, state, row, tuple.get()));
  if (!results) return keep_error(context, state);
  const int64_t count = row.result_end - row.result_begin;
  if (!PyTuple_Check(results.get()) || PyTuple_GET_SIZE(results.get()) != count) {
    state.fail(StatusCode::host_failed,
               "a host operation must return a tuple of " + std::to_string(count) + " results");
    return false;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = state.program().slot_lists[static_cast<size_t>(row.result_begin + i)];
    store(state, static_cast<size_t>(slot), PyTuple_GET_ITEM(results.get(), i));
  }
  return true;
}

// The fields of an array that only we hold a result of do not change: no GIL needed.
int shape_of(const void* object, const int64_t** dims) {
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  auto* array = static_cast<PyArrayObject*>(const_cast<void*>(object));
  if (array == nullptr || !PyArray_Check(reinterpret_cast<PyObject*>(array))) return -1;
  *dims = reinterpret_cast<const int64_t*>(PyArray_DIMS(array));
  return PyArray_NDIM(array);
}

void release(void* object) {
  const Gil gil;
  Py_DECREF(static_cast<PyObject*>(object));
}

bool is_interrupted(void* context_pointer) {
  const Gil gil;
  if (PyErr_CheckSignals() == 0) return false;
  static_cast<HostContext*>(context_pointer)->error = take_error();
  return true;
}

}  // namespace

PyObject* view_of_slot(const RunState& state, size_t slot, PyObject* dtype) {
  const SlotRow& row = state.program().slots[slot];
  if (dtype == nullptr || row.rank < 0 || row.first_dim_value < 0 || row.rank > NPY_MAXDIMS) {
    PyErr_Format(PyExc_SystemError, "slot %zu has no tensor to show", slot);
    return nullptr;
  }
  npy_intp dims[NPY_MAXDIMS];
  for (int64_t axis = 0; axis < row.rank; ++axis)
    dims[axis] =
        state.value(state.program().dim_values[static_cast<size_t>(row.first_dim_value + axis)]);
  static std::byte nothing[64];
  void* data = state.slots[slot].data != nullptr ? state.slots[slot].data : nothing;
  Py_INCREF(dtype);
  return PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(dtype),
                              static_cast<int>(row.rank), dims, nullptr, data,
                              NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED, nullptr);
}

Host host_of(HostContext* context) {
  const bool is_main = PyThread_get_thread_ident() == main_thread;
  return {context, call, shape_of, release, is_main ? is_interrupted : nullptr};
}

void remember_main_thread() {
  const Ref get(import_function("threading", "main_thread"));
  const Ref thread(get ? PyObject_CallNoArgs(get.get()) : nullptr);
  const Ref ident(thread ? PyObject_GetAttrString(thread.get(), "ident") : nullptr);
  if (ident) main_thread = PyLong_AsUnsignedLong(ident.get());
  PyErr_Clear();
}

}  // namespace grainline
