// The one way from a Status to a Python exception.
#pragma once

#include <string_view>

#include "base/status.h"
#include "bind/numpy.h"

namespace grainline {

// Sets the Python error that grainline.runtime.failures makes of it. cause: borrowed or nullptr.
void raise_failure(const Status& status, std::string_view node, PyObject* cause);

// Takes the current Python error off the thread, normalised, with its traceback.
Ref take_error();

// A function of a Python module of ours, imported at its first use; nullptr: Python error set.
PyObject* import_function(const char* module, const char* name);

}  // namespace grainline
