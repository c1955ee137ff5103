// A GEMM, or a reduction of its partial sums, ready to be launched any number of times.
#pragma once

#include <memory>
#include <tuple>
#include <utility>

#include "launch.h"

namespace pycutlass {

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

  std::tuple<int, int, int> extents() const { return {record.m, record.n, record.k}; }

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

}  // namespace pycutlass
