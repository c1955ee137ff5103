// Forward convolution in groups of channels, behind the call record of Conv2d.
#pragma once

#include "pycutlass/conv2d.h"

#include <cutlass/conv/kernel/default_conv2d_group_fprop.h>

namespace pycutlass {

template <cutlass::conv::GroupMode kGroupMode>
struct GroupFprop {
  /// cutlass::conv::kernel::DefaultConv2dGroupFprop with the parameters of DefaultConv2dFprop.
  template <typename ElementA, typename LayoutA, typename ElementB, typename LayoutB, typename ElementC,
            typename LayoutC, typename ElementAccumulator, typename OpClass, typename ArchTag,
            typename ThreadblockShape, typename WarpShape, typename InstructionShape, typename EpilogueOutputOp,
            typename ThreadblockSwizzle, int Stages, typename MathOperator,
            cutlass::conv::IteratorAlgorithm kIteratorAlgorithm, cutlass::conv::StrideSupport kStrideSupport,
            int kAlignmentA, int kAlignmentB>
  using Default = cutlass::conv::kernel::DefaultConv2dGroupFprop<
      ElementA, LayoutA, ElementB, LayoutB, ElementC, LayoutC, ElementAccumulator, OpClass, ArchTag, ThreadblockShape,
      WarpShape, InstructionShape, EpilogueOutputOp, ThreadblockSwizzle, Stages, MathOperator, kGroupMode,
      kIteratorAlgorithm, kStrideSupport, kAlignmentA, kAlignmentB>;
};

}  // namespace pycutlass
