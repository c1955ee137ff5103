// GEMMs and reductions on the launch fast path.
#include <utility>

#include "bindings.h"
#include "launch.h"

namespace pycutlass {
namespace {

class GemmCall : private Recorded<pycutlass_gemm_call>, public Call {
 public:
  explicit GemmCall(std::shared_ptr<DeviceKernel> kernel)
      : Call(std::move(kernel), &Recorded::record.common, sizeof(pycutlass_gemm_call)) {}

  void set_problem(int mode, int m, int n, int k, int batch_count) {
    record.mode = mode;
    record.m = m;
    record.n = n;
    record.k = k;
    record.batch_count = batch_count;
  }

  void set_schedule(int max_swizzle, int raster_order) {
    record.max_swizzle = max_swizzle;
    record.raster_order = raster_order;
  }
};

class ReductionCall : private Recorded<pycutlass_reduction_call>, public Call {
 public:
  explicit ReductionCall(std::shared_ptr<DeviceKernel> kernel)
      : Call(std::move(kernel), &Recorded::record.common, sizeof(pycutlass_reduction_call)) {}

  void set_problem(int rows, int columns, int partitions) {
    record.rows = rows;
    record.columns = columns;
    record.partitions = partitions;
  }
};

}  // namespace
}  // namespace pycutlass

void bind_gemm_call(pybind11::module_& m) {
  namespace py = pybind11;
  using namespace pycutlass;
  py::class_<GemmCall, Call>(m, "GemmCall", "A GEMM ready to be launched any number of times.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"), py::keep_alive<1, 2>())
      .def("set_problem", &GemmCall::set_problem, py::arg("mode"), py::arg("m"), py::arg("n"), py::arg("k"),
           py::arg("batch_count"))
      .def("set_schedule", &GemmCall::set_schedule, py::arg("max_swizzle"), py::arg("raster_order"));

  py::class_<ReductionCall, Call>(m, "ReductionCall", "A reduction of split-K partials, ready to be launched.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"), py::keep_alive<1, 2>())
      .def("set_problem", &ReductionCall::set_problem, py::arg("rows"), py::arg("columns"), py::arg("partitions"));
}
