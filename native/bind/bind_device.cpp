// Devices, streams, events and allocators, one class each. Lifetimes: a stream keeps its device, an
// allocator its stream and device, a block its allocator. Sizes in bytes, times in nanoseconds.

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind/bindings.h"
#include "device/cpu_device.h"
#include "device/discrete_device.h"
#include "memory/caching_allocator.h"

namespace nb = nanobind;

namespace grainline {
namespace {

std::span<std::byte> bytes_of(nb::handle array, size_t most_bytes, bool is_written) {
  auto* row = reinterpret_cast<PyArrayObject*>(array.ptr());
  if (!PyArray_Check(array.ptr()) || !PyArray_IS_C_CONTIGUOUS(row))
    throw nb::type_error("a copy needs a C-contiguous array");
  if (is_written && !PyArray_ISWRITEABLE(row)) throw nb::type_error("the array is read-only");
  const auto size_bytes = static_cast<size_t>(PyArray_NBYTES(row));
  if (size_bytes > most_bytes) throw nb::value_error("the array is larger than the memory block");
  return {static_cast<std::byte*>(PyArray_DATA(row)), size_bytes};
}

std::byte* data_of(const MemoryBlock& block) {
  if (block.data == nullptr) throw nb::value_error("the memory block was freed");
  return block.data;
}

void copy_in(Stream& stream, const MemoryBlock& block, nb::handle array, bool is_buffered) {
  std::byte* data = data_of(block);
  const std::span<std::byte> host = bytes_of(array, block.capacity_bytes, false);
  const CopyKind kind = is_buffered ? CopyKind::host_to_device_buffered : CopyKind::host_to_device;
  throw_unless_ok(stream.copy(data, host.data(), host.size(), kind));
}

void copy_out(Stream& stream, nb::handle array, const MemoryBlock& block) {
  const std::byte* data = data_of(block);
  const std::span<std::byte> host = bytes_of(array, block.capacity_bytes, true);
  throw_unless_ok(stream.copy(host.data(), data, host.size(), CopyKind::device_to_host));
}

void synchronize(StreamOrder& stream, int64_t timeout_ns) {
  Status status;
  {
    const nb::gil_scoped_release released;
    status = stream.synchronize(timeout_ns);
  }
  throw_unless_ok(status);
}

MemoryBlock* allocate(CachingAllocator& allocator, size_t size_bytes) {
  MemoryBlock* block = nullptr;
  throw_unless_ok(allocator.allocate(size_bytes, &block));
  return block;
}

// A block in use, which must be one of the allocator's: its pool would take any.
MemoryBlock* own_block(const CachingAllocator& allocator, MemoryBlock& block) {
  if (!allocator.owns(&block))
    throw nb::value_error("the memory block belongs to another allocator");
  data_of(block);
  return &block;
}

nb::dict allocator_statistics(const CachingAllocator& allocator) {
  const AllocatorStatistics s = allocator.statistics();
  nb::dict row;
  row["held_bytes"] = s.held_bytes;
  row["occupied_bytes"] = s.occupied_bytes;
  row["idle_bytes"] = s.idle_bytes;
  row["live_bytes"] = s.live_bytes;
  row["live_blocks"] = s.live_blocks;
  row["peak_held_bytes"] = s.peak_held_bytes;
  row["peak_occupied_bytes"] = s.peak_occupied_bytes;
  row["peak_live_bytes"] = s.peak_live_bytes;
  row["allocations"] = s.allocations;
  row["growths"] = s.growths;
  row["recycles"] = s.recycles;
  row["waits"] = s.waits;
  return row;
}

nb::dict arena_statistics(const DiscreteDevice& device) {
  const Arena::Statistics s = device.arena().statistics();
  nb::dict row;
  row["capacity_bytes"] = s.capacity_bytes;
  row["live_bytes"] = s.live_bytes;
  row["peak_bytes"] = s.peak_bytes;
  row["largest_free_bytes"] = s.largest_free_bytes;
  return row;
}

void bind_devices(nb::module_& module) {
  using nb::arg;
  nb::class_<Device>(module, "Device")
      .def_prop_ro("name", &Device::name)
      .def_prop_ro("is_unified", &Device::is_unified)
      .def("create_stream", &Device::create_stream, nb::keep_alive<0, 1>());
  nb::class_<CpuDevice, Device>(module, "CpuDevice")
      .def(nb::init<>())
      .def("create_asynchronous_stream", &CpuDevice::create_asynchronous_stream,
           nb::keep_alive<0, 1>());
  nb::class_<DiscreteDevice, Device>(module, "DiscreteDevice")
      .def(
          "__init__",
          [](DiscreteDevice* self, size_t capacity, size_t fragment, bool is_checked) {
            new (self)
                DiscreteDevice({.arena = {.capacity_bytes = capacity, .fragment_bytes = fragment},
                                .is_checked = is_checked});
          },
          arg("capacity_bytes"), arg("fragment_bytes"), arg("is_checked"))
      .def("set_delay", [](DiscreteDevice& self, int64_t ns) { self.disturbance().set_delay(ns); })
      .def("hold", [](DiscreteDevice& self) { self.disturbance().hold(); })
      .def("resume", [](DiscreteDevice& self) { self.disturbance().resume(); })
      .def(
          "inject",
          [](DiscreteDevice& self, bool at_completion, int64_t successes, bool is_end_of_sequence) {
            self.disturbance().inject(
                at_completion ? Moment::completion : Moment::submission, successes,
                is_end_of_sequence ? StatusCode::end_of_sequence : StatusCode::kernel_failed);
          },
          arg("at_completion"), arg("successes"), arg("is_end_of_sequence"))
      .def("statistics", arena_statistics);
}

void bind_streams(nb::module_& module) {
  using nb::arg;
  nb::class_<Event>(module, "Event")
      .def(nb::init<>())
      .def(
          "synchronize",
          [](Event& self, int64_t timeout_ns) {
            Status status;
            {
              const nb::gil_scoped_release released;
              status = self.synchronize(timeout_ns);
            }
            throw_unless_ok(status);
          },
          arg("timeout_ns"));
  nb::class_<Stream>(module, "Stream")
      .def_prop_ro("is_inline", &Stream::is_inline)
      .def("copy_in", copy_in, arg("block"), arg("array"), arg("is_buffered"))
      .def("copy_out", copy_out, arg("array"), arg("block"))
      .def("fill",
           [](Stream& self, const MemoryBlock& block, uint8_t value) {
             throw_unless_ok(
                 self.fill(data_of(block), static_cast<std::byte>(value), block.capacity_bytes));
           })
      .def(
          "record", [](Stream& self, Event& event) { throw_unless_ok(self.record(event)); },
          nb::keep_alive<1, 2>())
      .def(
          "wait", [](Stream& self, Event& event) { throw_unless_ok(self.wait(event)); },
          nb::keep_alive<1, 2>())
      .def(
          "synchronize", [](Stream& self, int64_t timeout_ns) { synchronize(self, timeout_ns); },
          arg("timeout_ns"));
}

void bind_allocators(nb::module_& module) {
  using nb::arg;
  nb::class_<MemoryBlock>(module, "MemoryBlock")
      .def_prop_ro("address",
                   [](const MemoryBlock& self) { return reinterpret_cast<uintptr_t>(self.data); })
      .def_ro("size_bytes", &MemoryBlock::size_bytes)
      .def_ro("capacity_bytes", &MemoryBlock::capacity_bytes)
      .def_ro("uses", &MemoryBlock::uses);
  nb::class_<CachingAllocator>(module, "Allocator")
      .def(
          "__init__",
          [](CachingAllocator* self, Device& device, Stream& stream, size_t limit_bytes,
             int64_t timeout_ns) {
            new (self) CachingAllocator(device.memory(), stream,
                                        {.limit_bytes = limit_bytes == 0 ? SIZE_MAX : limit_bytes,
                                         .synchronize_timeout_ns = timeout_ns});
          },
          arg("device"), arg("stream"), arg("limit_bytes"), arg("timeout_ns"),
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("allocate", allocate, arg("size_bytes"), nb::rv_policy::reference_internal)
      .def("share",
           [](CachingAllocator& self, MemoryBlock& block) { self.share(own_block(self, block)); })
      .def("free",
           [](CachingAllocator& self, MemoryBlock& block) { self.free(own_block(self, block)); })
      .def("trim", [](CachingAllocator& self) { return self.trim(); })
      .def("finalize", [](CachingAllocator& self) { throw_unless_ok(self.finalize()); })
      .def("statistics", allocator_statistics);
}

}  // namespace

void bind_device(nb::module_& module) {
  bind_devices(module);
  bind_streams(module);
  bind_allocators(module);
}

}  // namespace grainline
