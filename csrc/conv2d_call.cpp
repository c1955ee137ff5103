// Conv2d on the launch fast path.
#include "conv2d_call.h"

#include "bindings.h"

void bind_conv2d_call(py::module_& m) {
  using namespace pycutlass;
  py::class_<Conv2dCall, Call>(m, "Conv2dCall", "A convolution ready to be launched any number of times.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"), py::keep_alive<1, 2>())
      .def("set_problem", &Conv2dCall::set_problem, py::arg("problem_size"), py::arg("split_k_mode"),
           py::arg("split_k_slices"));
}
