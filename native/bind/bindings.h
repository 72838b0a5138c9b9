// One function per file of bindings.
#pragma once

#include "bind/numpy.h"

#include <nanobind/nanobind.h>

#include "base/status.h"

namespace grainline {

void bind_executor(nanobind::module_& module);
void bind_pool(nanobind::module_& module);
void bind_device(nanobind::module_& module);
void bind_timing(nanobind::module_& module);
void bind_cost(nanobind::module_& module);
void bind_object_image(nanobind::module_& module);

// Throws the Python exception of a Status that is not ok.
void throw_unless_ok(const Status& status);

}  // namespace grainline
