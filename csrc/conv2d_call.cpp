// Conv2d on the launch fast path.
#include <utility>

#include "bindings.h"
#include "cutlass/conv/conv2d_problem_size.h"
#include "launch.h"

namespace pycutlass {
namespace {

using cutlass::conv::Conv2dProblemSize;
using cutlass::conv::SplitKMode;

class Conv2dCall : private Recorded<pycutlass_conv2d_call>, public Call {
 public:
  explicit Conv2dCall(std::shared_ptr<DeviceKernel> kernel)
      : Call(std::move(kernel), &Recorded::record.common, sizeof(pycutlass_conv2d_call)) {}

  void set_problem(Conv2dProblemSize const& p, SplitKMode split_k_mode, int split_k_slices) {
    pycutlass_call const common = record.common;
    record = {common,
              p.N,
              p.H,
              p.W,
              p.C,
              p.K,
              p.R,
              p.S,
              p.P,
              p.Q,
              p.pad_h,
              p.pad_w,
              p.stride_h,
              p.stride_w,
              p.dilation_h,
              p.dilation_w,
              static_cast<int>(p.mode),
              split_k_slices,
              p.groups,
              static_cast<int>(split_k_mode)};
  }
};

}  // namespace
}  // namespace pycutlass

void bind_conv2d_call(py::module_& m) {
  using namespace pycutlass;
  py::class_<Conv2dCall, Call>(m, "Conv2dCall", "A convolution ready to be launched any number of times.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"), py::keep_alive<1, 2>())
      .def("set_problem", &Conv2dCall::set_problem, py::arg("problem_size"), py::arg("split_k_mode"),
           py::arg("split_k_slices"));
}
