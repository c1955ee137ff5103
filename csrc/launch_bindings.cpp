// What Python sees of a launch.
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <optional>

#include "bindings.h"
#include "bound_call.h"
#include "fast_methods.h"
#include "gate.h"
#include "given_tensor.h"
#include "known_calls.h"
#include "known_products.h"
#include "launch.h"
#include "recording.h"

namespace pycutlass {
namespace {

void bind_call(py::module_& m) {
  py::class_<Call>(m, "Call", "A kernel ready to be launched any number of times.")
      .def("set_operand", &Call::set_operand, py::arg("role"), py::arg("pointer"), py::arg("strides"), py::arg("bytes"),
           py::arg("alignment"), py::arg("element"), py::arg("form"))
      .def("set_epilogue", &Call::set_epilogue, py::arg("arguments"))
      .def("set_epilogue_tensor", &Call::set_epilogue_tensor, py::arg("name"), py::arg("offset"), py::arg("strides"),
           py::arg("bytes"), py::arg("alignment"), py::arg("written"))
      .def("remember", &Call::remember, py::arg("name"), py::arg("tensor"), py::arg("shown_name"))
      .def_property_readonly("operands", &Call::operands)
      .def_property_readonly("record_bytes", [](Call const& self) { return py::bytes(self.record_bytes()); })
      .def(
          "adopt",
          [](Call& self, Call& other) {
            self.check_unused();
            self.adopt(other);
          },
          py::arg("other"), "Take over what was prepared in another call of the same kernel.")
      .def("watch", &Call::watch, py::arg("tensor"), py::arg("name"), py::arg("written"))
      .def("follow_scalar", &Call::follow_scalar, py::arg("name"), py::arg("tensor"), py::arg("find"))
      .def("set_workspace", &Call::set_workspace, py::arg("pointer"))
      .def("set_launch_with_pdl", &Call::set_launch_with_pdl, py::arg("allowed"))
      .def("set_sm_count", &Call::set_sm_count, py::arg("most"))
      .def("set_launch_priority", &Call::set_launch_priority, py::arg("priority"))
      .def("set_in_place", &Call::set_in_place, py::arg("allowed"))
      .def("follow_library", py::overload_cast<py::object const&>(&Call::follow_library), py::arg("tensor_type"))
      .def("follow_callable", &Call::follow_callable, py::arg("callable"))
      .def("check_unmoved", &Call::check_unmoved)
      .def("plan", [](Call& call) { return Call::status_of(call.plan()); })
      .def(
          "update",
          [](Call& self, py::args const& tensors) {
            return self.update(PySequence_Fast_ITEMS(tensors.ptr()), tensors.size());
          },
          "Take tensors of the remembered forms, in the order of `operands`; None stays. False changes nothing.")
      .def("run", &Call::run, py::arg("stream") = py::none())
      .def_property_readonly(
          "bound_update",
          [](py::object self) -> py::typing::Callable<bool(py::ellipsis)> { return bound_update(std::move(self)); })
      .def_property_readonly(
          "bound_run",
          [](py::object self) -> py::typing::Callable<void(py::ellipsis)> { return bound_run(std::move(self)); })
      .def_property_readonly("workspace_bytes", &Call::workspace_bytes)
      .def_property_readonly("device_bytes", &Call::workspace_bytes, "Memory that launches need beside the operands.")
      .def_property_readonly("launches_with_pdl", &Call::launches_with_pdl)
      .def_property_readonly("launch_priority", &Call::launch_priority)
      .def_property_readonly("function", &Call::function)
      .def_property_readonly("params_address", &Call::params_address)
      .def_property_readonly("last_stream", &Call::last_stream)
      .def_property_readonly("current_stream", &Call::current_stream)
      .def_property_readonly("launched", &Call::launched)
      .def_property_readonly("was_named", &Call::was_named)
      .def_property_readonly("explicit_end",
                             [](Call const& self) {
                               auto end = self.explicit_end();
                               return end ? std::optional(end) : std::nullopt;
                             })
      .def("take_storages",
           [](Call& self) {
             py::object storages = self.take_storages();
             return storages.is_none() ? std::nullopt : std::optional(py::list(storages));
           })
      .def(
          "operand",
          [](Call const& self, int role) {
            pycutlass_operand const& operand = self.operand(role);
            return py::make_tuple(reinterpret_cast<uintptr_t>(operand.data), operand.stride[0], operand.stride[1]);
          },
          py::arg("role"), "Address and the first two strides of an operand.")
      .def("check_unused", &Call::check_unused, "Raise ArgumentError while anybody looks at the tensors of this call.")
      .def_property_readonly("shared_bytes", [](Call const& self) { return self.config().sharedMemBytes; })
      .def_property_readonly(
          "block", [](Call const& self) { return py::make_tuple(self.config().blockDimX, self.config().blockDimY, 1); })
      .def_property_readonly("grid", [](Call const& self) {
        CUlaunchConfig const& config = self.config();
        return py::make_tuple(config.gridDimX, config.gridDimY, config.gridDimZ);
      });
}

}  // namespace
}  // namespace pycutlass

void bind_launch(py::module_& m) {
  using namespace pycutlass;
  bind_driver(m);
  bind_stream(m);
  bind_gate(m);
  bind_kernel(m);
  bind_tensor_signature(m);
  bind_tensor_guard(m);
  bind_torch_kind(m);
  bind_given_tensor(m);
  bind_call(m);
  bind_launch_pool(m);
  bind_known_products(m);
  bind_known_calls(m);
  bind_recording(m);
  bind_fast_methods(m);
  m.attr("ABI_VERSION") = PYCUTLASS_ABI_VERSION;

  bind_gemm_call(m);
  bind_conv2d_call(m);
  bind_grouped_call(m);
  bind_prepared_gemm(m);
  bind_prepared_conv2d(m);
  bind_prepared_grouped(m);
  bind_prepared_reduction(m);
}
