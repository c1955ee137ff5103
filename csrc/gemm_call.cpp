// GEMMs and reductions on the launch fast path.
#include "gemm_call.h"

#include "bindings.h"

void bind_gemm_call(pybind11::module_& m) {
  namespace py = pybind11;
  using namespace pycutlass;
  py::class_<GemmCall, Call>(m, "GemmCall", "A GEMM ready to be launched any number of times.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"), py::keep_alive<1, 2>())
      .def("set_problem", &GemmCall::set_problem, py::arg("mode"), py::arg("m"), py::arg("n"), py::arg("k"),
           py::arg("batch_count"))
      .def_property_readonly("extents", &GemmCall::extents, "M, N and K.")
      .def("set_schedule", &GemmCall::set_schedule, py::arg("max_swizzle"), py::arg("raster_order"));

  py::class_<ReductionCall, Call>(m, "ReductionCall", "A reduction of split-K partials, ready to be launched.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"), py::keep_alive<1, 2>())
      .def("set_problem", &ReductionCall::set_problem, py::arg("rows"), py::arg("columns"), py::arg("partitions"));
}
