// Ampere-style GEMM with an epilogue that is a tree of CUTLASS's visitors (cutlass/epilogue/threadblock/fusion), behind
// the call record. The tree reads C and writes D itself, and whatever else it has.
#pragma once

#include "pycutlass/gemm_universal.h"

#include <cute/tensor.hpp>
#include <cutlass/epilogue/threadblock/fusion/visitors.hpp>
#include <cutlass/gemm/kernel/default_gemm_universal_with_visitor.h>

namespace pycutlass {

/// A row-major matrix of the extents of D, or a batch of them.
using MatrixStride = cute::Stride<int64_t, cute::_1, int64_t>;

/// CUTLASS's node for a matrix that is read. Where there is none its elements are 0, and nothing is read.
template <typename Threads, typename Element>
struct LoadIfGiven : cutlass::epilogue::threadblock::VisitorAuxLoad<Threads, Element, MatrixStride> {
  using Base = cutlass::epilogue::threadblock::VisitorAuxLoad<Threads, Element, MatrixStride>;
  using Base::Base;

  template <typename Size>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, Size size) {
    bool const given = this->params_ptr->ptr_aux;
    return Base::get_callbacks(tile, thread, given ? size : Size(0, 0, 0));  // coordinates are compared with the size
  }
};

#if !PYCUTLASS_DEVICE_SIDE
/// Gives a tree its workspace, where it has one (function_ampere.h); returns how many bytes it needs.
template <typename Tree>
auto place_workspace(typename Tree::Arguments& tree, int m, int n, int batch, void* workspace, int)
    -> decltype(Tree::Space::bytes(m, n, batch)) {
  tree.partials = Tree::Space::of(m, n, batch, workspace);
  return Tree::Space::bytes(m, n, batch);
}
template <typename Tree>
uint64_t place_workspace(typename Tree::Arguments&, int, int, int, void*, long) {
  return 0;
}
#endif

/// `Fusion` has Tree<Threads, C>::Type, which visits, and on the host Launch<Arguments of the tree>.
template <typename A, typename B, typename C, typename ElementAccumulator, typename OpClass, typename ArchTag,
          typename ThreadblockShape, typename WarpShape, typename InstructionShape, typename Fusion,
          typename ThreadblockSwizzle, int Stages, typename MathOperator>
struct GemmVisitor {
  static_assert(cutlass::platform::is_same<typename C::Layout, cutlass::layout::RowMajor>::value);
  static_assert(!IsStreamK<ThreadblockSwizzle>::value);

  using Threads = cutlass::epilogue::threadblock::OutputTileThreadLayout<ThreadblockShape, WarpShape,
                                                                         typename C::Element, C::kAlignment, 1>;
  using Tree = typename Fusion::template Tree<Threads, C>::Type;
  using Kernel = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
      typename A::Element, typename A::Layout, cutlass::ComplexTransform::kNone, A::kAlignment, typename B::Element,
      typename B::Layout, cutlass::ComplexTransform::kNone, B::kAlignment, typename C::Element, typename C::Layout,
      C::kAlignment, ElementAccumulator, typename Fusion::ElementCompute, OpClass, ArchTag, ThreadblockShape, WarpShape,
      InstructionShape, Tree, ThreadblockSwizzle, Stages, MathOperator, 1>::GemmKernel;

  static_assert(LoadsWholeTiles<typename Kernel::Mma, OpClass>::value,
                "the threads do not share the tile of an operand evenly: use another warp_count or threadblock_shape");

  using Params = typename Kernel::Params;
  using Call = pycutlass_gemm_call;
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
  using Epilogue = typename Fusion::template Launch<typename Tree::Arguments>;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    pycutlass_call const& common = call.common;
    auto mode = static_cast<cutlass::gemm::GemmUniversalMode>(call.mode);
    using Mode = cutlass::gemm::GemmUniversalMode;
    if (mode != Mode::kBatched && (mode != Mode::kGemm || call.batch_count != 1)) {
      return cutlass::Status::kErrorNotSupported;
    }
    pycutlass_operand const &a = operand(common, PYCUTLASS_A), &b = operand(common, PYCUTLASS_B);
    pycutlass_operand const& d = operand(common, PYCUTLASS_D);
    typename Tree::Arguments tree{};
    Epilogue::fill(tree, common);
    uint64_t const workspace = place_workspace<Tree>(tree, call.m, call.n, call.batch_count, common.workspace, 0);
    typename Kernel::Arguments arguments(mode, {call.m, call.n, call.k}, call.batch_count, tree, a.data, b.data, d.data,
                                         d.data, a.stride[1], b.stride[1], d.stride[1], d.stride[1], a.stride[0],
                                         b.stride[0], d.stride[0], d.stride[0]);
    cutlass::Status const status = Kernel::can_implement(arguments);
    if (status != cutlass::Status::kSuccess) return status;
    Params* params = new (storage) Params(arguments, common.sm_count, common.sm_occupancy);
    dim3 const grid = params->get_grid_dims();
    result = {{grid.x, grid.y, grid.z}, workspace, 0, 0, 0};
    return cutlass::Status::kSuccess;
  }

#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
