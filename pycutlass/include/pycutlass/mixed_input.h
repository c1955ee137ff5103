// Ampere-style mainloops of operands of two types, where CUTLASS's do not compile.
#pragma once

#include <cutlass/arch/mma.h>
#include <cutlass/gemm/threadblock/default_mma_core_sm80.h>

namespace cutlass {
namespace gemm {
namespace threadblock {

/// A and B by columns. CUTLASS divides the loads of B by the size of A's elements; those of its mainloop with A by rows
/// are right, as are those of A here.
template <typename Shape_, typename WarpShape_, typename InstructionShape_, typename ElementA_, typename ElementB_,
          typename ElementC_, typename LayoutC_, int Stages, arch::CacheOperation::Kind CacheOpA,
          arch::CacheOperation::Kind CacheOpB>
struct DefaultMmaCore<Shape_, WarpShape_, InstructionShape_, ElementA_, layout::ColumnMajor, ElementB_,
                      layout::ColumnMajor, ElementC_, LayoutC_, arch::OpClassTensorOp, Stages,
                      arch::OpMultiplyAddMixedInputUpcast, false, CacheOpA, CacheOpB>
    : DefaultMmaCore<Shape_, WarpShape_, InstructionShape_, ElementA_, layout::ColumnMajor, ElementA_,
                     layout::ColumnMajor, ElementC_, LayoutC_, arch::OpClassTensorOp, Stages, arch::OpMultiplyAdd,
                     false, CacheOpA, CacheOpB> {
  using OfA = DefaultMmaCore<Shape_, WarpShape_, InstructionShape_, ElementA_, layout::ColumnMajor, ElementA_,
                             layout::ColumnMajor, ElementC_, LayoutC_, arch::OpClassTensorOp, Stages,
                             arch::OpMultiplyAdd, false, CacheOpA, CacheOpB>;
  using OfB = DefaultMmaCore<Shape_, WarpShape_, InstructionShape_, ElementA_, layout::RowMajor, ElementB_,
                             layout::ColumnMajor, ElementC_, LayoutC_, arch::OpClassTensorOp, Stages,
                             arch::OpMultiplyAddMixedInputUpcast, false, CacheOpA, CacheOpB>;

  using ElementB = ElementB_;
  using Operator = arch::OpMultiplyAddMixedInputUpcast;
  using SmemLayoutB = typename OfB::SmemLayoutB;
  using IteratorThreadMapB = typename OfB::IteratorThreadMapB;
  using SmemIteratorB = typename OfB::SmemIteratorB;

  using MmaTensorOp =
      typename warp::DefaultMmaTensorOp<WarpShape_, InstructionShape_, ElementA_, typename OfA::SmemLayoutA, ElementB_,
                                        SmemLayoutB, ElementC_, LayoutC_, Operator, OfA::WarpCount::kK>::Type;
  using MmaPolicy = threadblock::MmaPolicy<MmaTensorOp, MatrixShape<0, 0>, MatrixShape<0, 0>, OfA::WarpCount::kK>;
};

}  // namespace threadblock
}  // namespace gemm
}  // namespace cutlass
