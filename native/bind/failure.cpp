#include "bind/failure.h"

namespace grainline {

PyObject* import_function(const char* module, const char* name) {
  const Ref imported(PyImport_ImportModule(module));
  return imported ? PyObject_GetAttrString(imported.get(), name) : nullptr;
}

Ref take_error() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref(value);
}

void raise_failure(const Status& status, std::string_view node, PyObject* cause) {
  const Ref make(import_function("grainline.runtime.failures", "failure"));
  if (!make) return;
  const std::string_view code = name_of(status.code());
  const std::string_view message = status.message();
  const Ref error(PyObject_CallFunction(
      make.get(), "s#s#s#O", code.data(), static_cast<Py_ssize_t>(code.size()), message.data(),
      static_cast<Py_ssize_t>(message.size()), node.data(), static_cast<Py_ssize_t>(node.size()),
      cause ? cause : Py_None));
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
}

}  // namespace grainline
