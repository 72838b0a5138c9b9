// Executor: a loaded program, as Python sees it.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bind/bindings.h"
#include "bind/executor_object.h"
#include "bind/failure.h"
#include "exec/kernels.h"

namespace nb = nanobind;

namespace grainline {
namespace {

std::shared_ptr<const Program> program_of(const nb::bytes& blob, std::vector<std::string> strings,
                                          const std::vector<uint64_t>& addresses) {
  std::vector<int64_t> numbers(blob.size() / sizeof(int64_t));
  std::memcpy(numbers.data(), blob.c_str(), numbers.size() * sizeof(int64_t));
  std::shared_ptr<const Program> program;
  throw_unless_ok(Program::create(numbers, std::move(strings), addresses, &program));
  return program;
}

nb::object checked(PyObject* result) {
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

nb::dict statistics_of(ExecutorObject& object) {
  const Executor::Statistics s = object.executor().statistics();
  nb::dict row;
  row["states"] = s.states;
  row["held_bytes"] = s.held_bytes;
  row["allocations"] = s.allocations;
  row["growths"] = s.growths;
  row["peak_bytes"] = s.peak_bytes;
  return row;
}

void construct(ExecutorObject* self, const nb::bytes& blob, std::vector<std::string> strings,
               const std::vector<uint64_t>& addresses, const nb::list& input_dtypes,
               const nb::list& output_dtypes, const nb::list& slot_dtypes, const nb::list& calls,
               int thread_limit, int kind, int workers,
               const nb::handle /* code: kept alive as long as the executor */, Device* device) {
  const std::shared_ptr<const Program> program = program_of(blob, std::move(strings), addresses);
  const ExecutorOptions options{static_cast<ExecutorKind>(kind), workers, thread_limit};
  ExecutorKind chosen;
  throw_unless_ok(choose_kind(*program, options, &chosen));
  new (self) ExecutorObject(program, input_dtypes.ptr(), output_dtypes.ptr(), slot_dtypes.ptr(),
                            calls.ptr(), options, device ? *device : CpuDevice::process());
}

PyArrayObject* contiguous(ExecutorObject& self, size_t slot, nb::handle array) {
  auto* row = reinterpret_cast<PyArrayObject*>(array.ptr());
  if (!PyArray_Check(array.ptr()) || !PyArray_IS_C_CONTIGUOUS(row))
    throw nb::type_error("a weight must be a C-contiguous array");
  if (slot >= self.executor().program().slots.size())
    throw nb::index_error("there is no such slot");
  return row;
}

void set_weight(ExecutorObject& self, size_t slot, nb::handle array) {
  contiguous(self, slot, array);
  self.set_weight(slot, array.ptr());
}

void copy_weight(ExecutorObject& self, size_t slot, nb::handle array) {
  PyArrayObject* row = contiguous(self, slot, array);
  throw_unless_ok(self.executor().copy_weight(slot,
                                              static_cast<const std::byte*>(PyArray_DATA(row)),
                                              static_cast<size_t>(PyArray_NBYTES(row))));
}

void override_node(ExecutorObject& self, size_t number, const std::string& code) {
  if (number >= self.executor().program().nodes.size())
    throw nb::index_error("there is no such node");
  const StatusCode chosen = code.empty()                ? StatusCode::ok
                            : code == "end_of_sequence" ? StatusCode::end_of_sequence
                                                        : StatusCode::kernel_failed;
  self.override_node_for_test(number, chosen);
}

}  // namespace

void throw_unless_ok(const Status& status) {
  if (status.is_ok()) return;
  raise_failure(status, "", nullptr);
  throw nb::python_error();
}

void bind_executor(nb::module_& module) {
  using nb::arg;
  nb::class_<ExecutorObject>(module, "Executor",
                             "A loaded program. Several threads may run it at once.")
      .def("__init__", construct, arg("blob"), arg("strings"), arg("addresses"),
           arg("input_dtypes"), arg("output_dtypes"), arg("slot_dtypes"), arg("host_calls"),
           arg("thread_limit") = 0, arg("kind") = 0, arg("workers") = 0,
           arg("code").none() = nb::none(), arg("device").none() = nb::none(),
           nb::keep_alive<1, 12>(), nb::keep_alive<1, 13>())
      .def("set_weight", set_weight, arg("slot"), arg("array"),
           "Uses the memory of a C-contiguous array for a weight slot and keeps the array.")
      .def("copy_weight", copy_weight, arg("slot"), arg("array"),
           "Puts a copy of a C-contiguous array on the device; the array must stay until\n"
           "finish_weights.")
      .def(
          "finish_weights",
          [](ExecutorObject& self) { throw_unless_ok(self.executor().finish_weights()); },
          "Waits until all weights are on the device.")
      .def(
          "run",
          [](ExecutorObject& self, nb::handle feeds, nb::handle names, nb::handle cancel) {
            return checked(self.run(feeds.ptr(), names.ptr(), cancel.ptr()));
          },
          arg("feeds"), arg("names").none() = nb::none(), arg("cancel").none() = nb::none(),
          "Runs once. feeds: dict of arrays; names: outputs wanted, None = all. Returns a list.\n"
          "cancel: an int32 array of one element; the run ends when it is not zero.")
      .def(
          "run_profiled",
          [](ExecutorObject& self, nb::handle feeds, nb::handle names, nb::handle cancel) {
            return checked(self.run_profiled(feeds.ptr(), names.ptr(), cancel.ptr()));
          },
          arg("feeds"), arg("names").none() = nb::none(), arg("cancel").none() = nb::none(),
          "As run; returns (results, [(node number, begin ns, end ns, worker, bytes, facts)],\n"
          "[(node number, stream, kind, submitted ns, begin ns, end ns)]).\n"
          "bytes: that the live memory blocks grew by meanwhile. facts: of a launch\n"
          "(variant number, blocks, blocks per task, homes, scratch bytes per home), else None.\n"
          "The last list has the commands of asynchronous streams, in the order of their ends.")
      .def(
          "run_logged",
          [](ExecutorObject& self, nb::handle feeds, nb::handle names, nb::handle cancel,
             size_t capacity) {
            if (capacity == 0) throw nb::value_error("a log has room for one event at least");
            return checked(self.run_logged(feeds.ptr(), names.ptr(), cancel.ptr(), capacity));
          },
          arg("feeds"), arg("names").none(), arg("cancel").none(), arg("capacity"),
          "As run; returns (results, [(time ns, node number, worker, event kind)]), oldest first.")
      .def(
          "active_runs", [](ExecutorObject& self) { return self.executor().active_runs(); },
          "How many runs are under way now.")
      .def(
          "run_watched",
          [](ExecutorObject& self, nb::handle feeds, nb::handle names, nb::handle callable) {
            return checked(self.run_watched(feeds.ptr(), names.ptr(), callable.ptr()));
          },
          arg("feeds"), arg("names").none(), arg("callable"),
          "As run; calls callable(event kind, worker, node number, read) for every event, "
          "read(slot, extents) "
          "gives a copy.")
      .def("override_node_for_test", override_node, arg("number"), arg("code"),
           "The node fails with this status code until the next call; '' ends it.")
      .def(
          "nodes", [](ExecutorObject& self) { return checked(self.nodes()); },
          "One (node id, kernel, compute node) per node number.")
      .def(
          "trim", [](ExecutorObject& self) { return self.executor().trim(); },
          "Gives idle memory of this model back to the system; returns the bytes.")
      .def("statistics", statistics_of);
  module.def(
      "kernel_types",
      [] {
        std::vector<std::pair<std::string, std::string>> types;
        for (const KernelType& type : kernel_types()) types.emplace_back(type.name, type.section);
        return types;
      },
      "(name, section) of every host kernel, by kernel number.");
}

}  // namespace grainline
