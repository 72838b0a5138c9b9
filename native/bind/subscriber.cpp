#include "bind/subscriber.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bind/failure.h"

namespace nb = nanobind;

namespace grainline {
namespace {

// nullptr: no event of a node.
const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::node_started:
      return "node_started";
    case EventKind::node_ended:
      return "node_ended";
    case EventKind::node_failed:
      return "node_failed";
    case EventKind::node_parked:
      return "node_parked";
    case EventKind::node_resumed:
      return "node_resumed";
    default:
      return nullptr;
  }
}

}  // namespace

struct Subscriber::Source {
  RunState* state;  // null: not now
  const HostTable* table;

  // New reference; nullptr: a Python error is set.
  PyObject* copy(size_t slot, const std::vector<npy_intp>& dims) const {
    if (state == nullptr || slot >= state->slots.size()) return Py_NewRef(Py_None);
    const SlotState& cell = state->slots[slot];
    if (auto* object = static_cast<PyObject*>(cell.object); object != nullptr)
      return PyArray_Check(object)
                 ? PyArray_NewCopy(reinterpret_cast<PyArrayObject*>(object), NPY_CORDER)
                 : Py_NewRef(object);
    auto* dtype = reinterpret_cast<PyArray_Descr*>(table->slot_dtypes[slot].get());
    if (cell.data == nullptr || dtype == nullptr || dims.size() > NPY_MAXDIMS)
      return Py_NewRef(Py_None);
    state->await_device();
    Py_INCREF(dtype);
    const Ref view(PyArray_NewFromDescr(&PyArray_Type, dtype, static_cast<int>(dims.size()),
                                        dims.data(), nullptr, cell.data, NPY_ARRAY_CARRAY_RO,
                                        nullptr));
    if (!view) return nullptr;
    const auto size_bytes = static_cast<size_t>(PyArray_NBYTES(view.array()));
    if (cell.block != nullptr && size_bytes > cell.block->capacity_bytes) return Py_NewRef(Py_None);
    return PyArray_NewCopy(view.array(), NPY_CORDER);
  }
};

Subscriber::Subscriber(PyObject* callable, RunState& state, const HostTable& table)
    : callable_(Ref::borrow(callable)), source_(std::make_shared<Source>(Source{&state, &table})) {
  const nb::object read =
      nb::cpp_function([source = source_](size_t slot, const std::vector<npy_intp>& dims) {
        PyObject* copy = source->copy(slot, dims);
        if (copy == nullptr) throw nb::python_error();
        return nb::steal(copy);
      });
  read_ = Ref::borrow(read.ptr());
}

Subscriber::~Subscriber() { source_->state = nullptr; }

void Subscriber::on_event(const RunEvent& event) {
  const char* kind = name_of(event.kind);
  if (kind == nullptr) return;
  const PyGILState_STATE gil = PyGILState_Ensure();
  if (!error) {
    const Ref done(PyObject_CallFunction(callable_.get(), "sinO", kind, event.worker,
                                         static_cast<Py_ssize_t>(event.node), read_.get()));
    if (!done) error = take_error();
  }
  PyGILState_Release(gil);
}

}  // namespace grainline
