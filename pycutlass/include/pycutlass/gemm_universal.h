// Ampere-style GEMM: cutlass::gemm::kernel::GemmUniversal of CUTLASS's 2.x API, behind the call record.
//
// CUTLASS's epilogue writes row-major tiles. A column-major C is computed as the transposed problem, with A and B
// exchanged (cutlass/gemm/kernel/default_gemm_universal.h, MapArguments): that happens here and nowhere else, so
// Python speaks of A, B, M and N as the user wrote them.
#pragma once

#include "pycutlass/epilogue.h"
#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/gemm.h>
#include <cutlass/gemm/kernel/default_gemm_universal.h>
#include <cutlass/gemm/kernel/gemm_transpose_operands.h>
#include <cutlass/gemm/kernel/gemm_universal.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

#include "pycutlass/tensor.h"

namespace pycutlass {

template <typename A, typename B, typename C, typename ElementAccumulator, typename OpClass, typename ArchTag,
          typename ThreadblockShape, typename WarpShape, typename InstructionShape, typename EpilogueOutputOp,
          typename ThreadblockSwizzle, int Stages, typename MathOperator>
struct GemmUniversal {
  static bool const kTransposed =
      cutlass::platform::is_same<typename C::Layout, cutlass::layout::ColumnMajor>::value;

  using Map = cutlass::gemm::kernel::detail::MapArguments<
      typename A::Element, typename A::Layout, cutlass::ComplexTransform::kNone, A::kAlignment, typename B::Element,
      typename B::Layout, cutlass::ComplexTransform::kNone, B::kAlignment, typename C::Layout, kTransposed>;

  using Kernel = typename cutlass::gemm::kernel::DefaultGemmUniversal<
      typename Map::ElementA, typename Map::LayoutA, Map::kTransformA, Map::kAlignmentA, typename Map::ElementB,
      typename Map::LayoutB, Map::kTransformB, Map::kAlignmentB, typename C::Element, typename Map::LayoutC,
      ElementAccumulator, OpClass, ArchTag, ThreadblockShape, WarpShape, InstructionShape, EpilogueOutputOp,
      ThreadblockSwizzle, Stages, MathOperator>::GemmKernel;

  using Params = typename Kernel::Params;
  using Call = pycutlass_gemm_call;
  static unsigned const kThreads = Kernel::kThreadCount;
  static unsigned const kMinBlocks = 1;
  static unsigned const kSharedBytes = sizeof(typename Kernel::SharedStorage);
  static unsigned const kClusterM = 1;
  static unsigned const kClusterN = 1;

#if PYCUTLASS_DEVICE_SIDE

  CUTLASS_DEVICE static void run(Params const &params, char *shared) {
    Kernel::invoke(params, *reinterpret_cast<typename Kernel::SharedStorage *>(shared));
  }

#else

  static cutlass::Status plan(Call const &call, void *storage, pycutlass_plan_result &result) {
    typename Kernel::Arguments arguments(
        static_cast<cutlass::gemm::GemmUniversalMode>(call.mode), {call.m, call.n, call.k}, call.batch_count,
        EpilogueParams<EpilogueOutputOp>::make(call.scalars), call.A.data, call.B.data, call.C.data, call.D.data,
        call.A.batch_stride, call.B.batch_stride, call.C.batch_stride, call.D.batch_stride, call.A.ld, call.B.ld,
        call.C.ld, call.D.ld);
    if (kTransposed) arguments = arguments.transposed_problem();

    cutlass::Status status = Kernel::can_implement(arguments);
    if (status != cutlass::Status::kSuccess) return status;

    Params *params = new (storage) Params(arguments, call.sm_count, call.sm_occupancy);
    params->semaphore = static_cast<int *>(call.workspace);
    dim3 grid = params->get_grid_dims();
    result = {{grid.x, grid.y, grid.z}, params->get_workspace_size()};
    return cutlass::Status::kSuccess;
  }

#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
