// A convolution ready to be launched any number of times.
#pragma once

#include <memory>
#include <utility>

#include "cutlass/conv/conv2d_problem_size.h"
#include "launch.h"

namespace pycutlass {

class Conv2dCall : private Recorded<pycutlass_conv2d_call>, public Call {
 public:
  explicit Conv2dCall(std::shared_ptr<DeviceKernel> kernel)
      : Call(std::move(kernel), &Recorded::record.common, sizeof(pycutlass_conv2d_call)) {}

  void set_problem(cutlass::conv::Conv2dProblemSize const& p, cutlass::conv::SplitKMode split_k_mode,
                   int split_k_slices) {
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

}  // namespace pycutlass
