// load_object: machine code from bytes, without LLVM.

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/unordered_map.h>

#include "bind/bindings.h"
#include "exec/object_image.h"

namespace nb = nanobind;

namespace grainline {
namespace {

std::unique_ptr<ObjectImage> load_object(const nb::bytes& object) {
  std::unique_ptr<ObjectImage> image;
  const auto* data = reinterpret_cast<const std::byte*>(object.c_str());
  throw_unless_ok(ObjectImage::load({data, object.size()}, &image));
  return image;
}

uint64_t address_of(const ObjectImage& image, const std::string& symbol) {
  const uint64_t address = image.address(symbol);
  if (address == 0) throw nb::key_error(symbol.c_str());
  return address;
}

}  // namespace

void bind_object_image(nb::module_& module) {
  nb::class_<ObjectImage>(module, "ObjectImage",
                          "Loaded machine code; addresses are valid as long as it lives.")
      .def("address", address_of, nb::arg("symbol"))
      .def_prop_ro("symbols", &ObjectImage::symbols);
  module.def("load_object", load_object, nb::arg("object"),
             "Loads a relocatable x86-64 object of ours; ValueError when it holds anything else.");
}

}  // namespace grainline
