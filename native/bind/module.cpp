#define GRAINLINE_IMPORTS_NUMPY
#include "bind/numpy.h"

#include "bind/bindings.h"
#include "bind/host_bridge.h"

namespace {

// As _BINDING_VERSION of src/grainline/__init__.py: they grow together with every change of what
// this module offers, so that a build left over from other sources is told apart at its import.
constexpr int kBindingVersion = 5;

int import_numpy() {
  import_array1(-1);
  return 0;
}

}  // namespace

NB_MODULE(_native, module) {
  if (import_numpy() < 0) throw nanobind::python_error();
  module.attr("BINDING_VERSION") = kBindingVersion;
  grainline::remember_main_thread();
  grainline::bind_executor(module);
  grainline::bind_pool(module);
  grainline::bind_device(module);
  grainline::bind_timing(module);
  grainline::bind_cost(module);
  grainline::bind_object_image(module);
}
