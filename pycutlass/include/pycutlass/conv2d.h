// Ampere-style Conv2d in three directions: the implicit-GEMM kernels of CUTLASS's 2.x API behind the call record.
//
// What A, B and C are follows from the direction: forward is (activation, filter, output), data gradient (output
// gradient, filter, activation gradient), weight gradient (output gradient, activation, filter gradient).
#pragma once

#include "pycutlass/epilogue.h"
#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cutlass/conv/conv2d_problem_size.h>
#include <cutlass/conv/kernel/default_conv2d_dgrad.h>
#include <cutlass/conv/kernel/default_conv2d_fprop.h>
#include <cutlass/conv/kernel/default_conv2d_wgrad.h>
#include <cutlass/conv/threadblock/threadblock_swizzle.h>
#include <cutlass/device_kernel.h>
#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/epilogue/thread/linear_combination_clamp.h>
#include <cutlass/epilogue/thread/linear_combination_generic.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

#include "pycutlass/loads.h"
#include "pycutlass/tensor.h"

namespace pycutlass {

/// `DefaultKernel` is one of cutlass::conv::kernel::DefaultConv2dFprop, DefaultConv2dDgrad and DefaultConv2dWgrad.
template <template <typename, typename, typename, typename, typename, typename, typename, typename, typename, typename,
                    typename, typename, typename, typename, int, typename, cutlass::conv::IteratorAlgorithm,
                    cutlass::conv::StrideSupport, int, int> class DefaultKernel,
          typename A, typename B, typename C, typename ElementAccumulator, typename OpClass, typename ArchTag,
          typename ThreadblockShape, typename WarpShape, typename InstructionShape, typename EpilogueOutputOp,
          typename ThreadblockSwizzle, int Stages, typename MathOperator,
          cutlass::conv::IteratorAlgorithm kIteratorAlgorithm, cutlass::conv::StrideSupport kStrideSupport>
struct Conv2d {
  using Kernel = typename DefaultKernel<typename A::Element, typename A::Layout, typename B::Element,
                                        typename B::Layout, typename C::Element, typename C::Layout, ElementAccumulator,
                                        OpClass, ArchTag, ThreadblockShape, WarpShape, InstructionShape,
                                        EpilogueOutputOp, ThreadblockSwizzle, Stages, MathOperator, kIteratorAlgorithm,
                                        kStrideSupport, A::kAlignment, B::kAlignment>::Kernel;

  static_assert(LoadsWholeTiles<typename Kernel::Mma, OpClass>::value,
                "the threads do not share the tile of an operand evenly: use another warp_count or threadblock_shape");

  using Params = typename Kernel::Params;
  using Call = pycutlass_conv2d_call;
  static unsigned const kThreads = Kernel::kThreadCount;
  static unsigned const kMinBlocks = 1;
  static unsigned const kSharedBytes = sizeof(typename Kernel::SharedStorage);
  static unsigned const kClusterM = 1;
  static unsigned const kClusterN = 1;

#if PYCUTLASS_DEVICE_SIDE

  CUTLASS_DEVICE static void run(Params const& params, char* shared) {
    Kernel kernel;
    kernel(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
  }

#else

  using Operands = Elements<typename A::Element, typename B::Element, typename C::Element, typename C::Element>;
  using Epilogue = ThreadEpilogue<EpilogueOutputOp>;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    return plan_with<Kernel, Params>(call, Epilogue::params(call.common), storage, result);
  }

  /// The same for a kernel that is this one but for its epilogue, whose functor is made of `functor`.
  template <typename Kernel, typename Params>
  static cutlass::Status plan_with(Call const& call, typename Kernel::EpilogueOutputOp::Params const& functor,
                                   void* storage, pycutlass_plan_result& result) {
    using namespace cutlass::conv;
    static Operator const kOperator = Kernel::kConvolutionalOperator;
    pycutlass_call const& common = call.common;
    Conv2dProblemSize const size = problem_size(call);
    SplitKMode const split_k_mode = static_cast<SplitKMode>(call.split_k_mode);

    cutlass::Status status = Kernel::Mma::IteratorA::can_implement(size);
    if (status == cutlass::Status::kSuccess) status = Kernel::Mma::IteratorB::can_implement(size);
    if (status != cutlass::Status::kSuccess) return status;

    cutlass::Tensor4DCoord const output = implicit_gemm_tensor_c_extent(kOperator, size);
    typename Kernel::Arguments arguments(
        size,
        reference<typename Kernel::TensorRefA>(operand(common, PYCUTLASS_A),
                                               implicit_gemm_tensor_a_extent(kOperator, size)),
        reference<typename Kernel::TensorRefB>(operand(common, PYCUTLASS_B),
                                               implicit_gemm_tensor_b_extent(kOperator, size)),
        reference<typename Kernel::TensorRefC>(operand(common, PYCUTLASS_C), output),
        reference<typename Kernel::TensorRefC>(operand(common, PYCUTLASS_D), output), functor, split_k_mode);
    Params* params = new (storage) Params(arguments, static_cast<int*>(common.workspace));

    cutlass::gemm::GemmCoord const tiles = params->grid_tiled_shape;
    dim3 const grid = ThreadblockSwizzle::get_grid_shape(tiles);
    // Serial split-K has a semaphore for each tile, which is zero again when the last slice is done. Parallel split-K
    // writes its partials through D, which Python points at memory of its own.
    bool const takes_turns = split_k_mode == SplitKMode::kSerial && tiles.k() > 1;
    uint64_t const semaphores = takes_turns ? sizeof(int) * uint64_t(tiles.m()) * uint64_t(tiles.n()) : 0;
    result = {{grid.x, grid.y, grid.z}, semaphores, 0, 0, 0};
    return cutlass::Status::kSuccess;
  }

  static cutlass::conv::Conv2dProblemSize problem_size(Call const& call) {
    return {call.n,
            call.h,
            call.w,
            call.c,
            call.k,
            call.r,
            call.s,
            call.p,
            call.q,
            call.pad_h,
            call.pad_w,
            call.stride_h,
            call.stride_w,
            call.dilation_h,
            call.dilation_w,
            static_cast<cutlass::conv::Mode>(call.mode),
            call.split_k_slices,
            call.groups};
  }

 private:
  /// An operand as CUTLASS refers to it. Its first stride is the step between pixels; 0 makes one vector stand for all.
  template <typename TensorRef>
  static TensorRef reference(pycutlass_operand const& operand, cutlass::Tensor4DCoord const& extent) {
    using Layout = typename TensorRef::Layout;
    auto* data = static_cast<typename TensorRef::Element*>(operand.data);
    if constexpr (cutlass::platform::is_same<Layout, cutlass::layout::TensorNHWC>::value) {
      auto const pixel = static_cast<typename Layout::Stride::Index>(operand.stride[0]);
      auto const row = pixel * extent.w();
      return {data, Layout(typename Layout::Stride({pixel, row, row * extent.h()}))};
    } else {
      return {data, Layout::packed(extent)};
    }
  }

#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
