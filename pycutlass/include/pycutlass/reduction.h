// Reduction of split-K partials: cutlass::reduction::kernel::ReduceSplitK behind the call record.
#pragma once

#include "pycutlass/epilogue.h"
#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/epilogue/thread/linear_combination_clamp.h>
#include <cutlass/epilogue/thread/linear_combination_generic.h>
#include <cutlass/reduction/kernel/reduce_split_k.h>
#include <cutlass/reduction/thread/reduction_operators.h>

namespace pycutlass {

/// D = epilogue(sum over partitions of A, C). A is the workspace, one packed plane a partition; its batch stride is the
/// size of a plane.
template <typename Shape, typename EpilogueOutputOp, typename ElementAccumulator, typename ElementWorkspace,
          int PartitionsPerStage>
struct ReduceSplitK {
  using Kernel = cutlass::reduction::kernel::ReduceSplitK<
      Shape, EpilogueOutputOp,
      cutlass::reduction::thread::ReduceAdd<ElementAccumulator, ElementWorkspace, EpilogueOutputOp::kCount>,
      PartitionsPerStage>;

  using Params = typename Kernel::Params;
  using Call = pycutlass_reduction_call;
  static unsigned const kColumns = Shape::kColumn / EpilogueOutputOp::kCount;
  static unsigned const kThreads = kColumns * Shape::kRow;
  static unsigned const kMinBlocks = 1;
  static unsigned const kSharedBytes = 0;
  static unsigned const kClusterM = 1;
  static unsigned const kClusterN = 1;

#if PYCUTLASS_DEVICE_SIDE

  CUTLASS_DEVICE static void run(Params const& params, char* shared) {
    Kernel kernel;
    kernel(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
  }

#else

  using Operands =
      Elements<typename Kernel::ElementWorkspace, void, typename Kernel::ElementOutput, typename Kernel::ElementOutput>;
  using Epilogue = ThreadEpilogue<EpilogueOutputOp>;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    pycutlass_call const& common = call.common;
    pycutlass_operand const& sums = operand(common, PYCUTLASS_A);
    pycutlass_operand const &source = operand(common, PYCUTLASS_C), &target = operand(common, PYCUTLASS_D);
    using Workspace = typename Kernel::ElementWorkspace;
    using Output = typename Kernel::ElementOutput;
    using Layout = cutlass::layout::RowMajor;
    cutlass::MatrixCoord problem(call.rows, call.columns);
    Params* params =
        new (storage) Params(problem, call.partitions, static_cast<size_t>(sums.stride[1]),
                             {static_cast<Workspace*>(sums.data), Layout(sums.stride[0])},
                             {static_cast<Output*>(target.data), Layout(target.stride[0])},
                             {static_cast<Output*>(source.data), Layout(source.stride[0])}, Epilogue::params(common));
    (void)params;
    dim3 grid = Kernel::grid_shape(problem);
    result = {{grid.x, grid.y, 1}, 0, 0, 0, 0};
    return cutlass::Status::kSuccess;
  }

#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
