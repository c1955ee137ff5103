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

/// What CUTLASS's epilogue takes C for, on the way of sums to the visitor, which alone knows what is written. Floats of
/// 8 bits go as int8 does, whatever their alignment: CUTLASS has a way of their own for a few tiles.
template <typename C>
struct StoredLike {
  using Type = C;
};
template <typename Layout, int kAlignment>
struct StoredLike<Tensor<cutlass::float_e4m3_t, Layout, kAlignment>> {
  using Type = Tensor<int8_t, Layout, kAlignment>;
};
template <typename Layout, int kAlignment>
struct StoredLike<Tensor<cutlass::float_e5m2_t, Layout, kAlignment>> {
  using Type = Tensor<int8_t, Layout, kAlignment>;
};

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

/// CUTLASS's kernel with a visitor, for one GEMM, for batches and for matrices that tables of addresses list, which it
/// does not take itself.
template <typename Base, typename Swizzle>
struct VisitedGemm : Base {
  using Mma = typename Base::Mma;
  using Params = typename Base::Params;
  using SharedStorage = typename Base::SharedStorage;
  using Mode = cutlass::gemm::GemmUniversalMode;

  /// Where operand A or B of a tile is.
  template <typename Element>
  CUTLASS_DEVICE static Element* matrix(void* given, int64_t batch_stride, Mode mode, int batch) {
    if (mode == Mode::kArray) return static_cast<Element* const*>(given)[batch];
    return static_cast<Element*>(given) + batch * batch_stride;
  }

  CUTLASS_DEVICE static void invoke(Params const& params, SharedStorage& shared) {
    cutlass::gemm::GemmCoord const tile = Swizzle().get_tile_offset(params.swizzle_log_tile);
    if (tile.m() >= params.grid_tiled_shape.m() || tile.n() >= params.grid_tiled_shape.n()) return;
    int const thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
    int const m = params.problem_size.m(), n = params.problem_size.n(), k = params.problem_size.k();
    typename Mma::IteratorA A(
        params.params_A, matrix<typename Base::ElementA>(params.ptr_A, params.batch_stride_A, params.mode, tile.k()),
        {m, k}, thread, {tile.m() * Mma::Shape::kM, 0});
    typename Mma::IteratorB B(
        params.params_B, matrix<typename Base::ElementB>(params.ptr_B, params.batch_stride_B, params.mode, tile.k()),
        {k, n}, thread, {0, tile.n() * Mma::Shape::kN});
    typename Mma::FragmentC sums;
    sums.clear();
    Mma mma(shared.main_loop, thread, warp, lane);
    mma((k + Mma::Shape::kK - 1) / Mma::Shape::kK, sums, A, B, sums);
    typename Base::Epilogue epilogue(params.output_op, shared.epilogue, thread, warp, lane);
    // Asked for again, the tile takes no registers meanwhile.
    epilogue(sums, Swizzle().get_tile_offset(params.swizzle_log_tile), params.problem_shape, thread);
  }
};

/// What CUTLASS has for a swizzle: kernels that schedule by stream-K are taken as they are.
template <typename Base, typename Swizzle>
using Visited = cutlass::platform::conditional_t<IsStreamK<Swizzle>::value, Base, VisitedGemm<Base, Swizzle>>;

/// `Fusion` has Tree<Threads, C>::Type, which visits, and on the host Launch<Arguments of the tree>.
template <typename A, typename B, typename C, typename ElementAccumulator, typename OpClass, typename ArchTag,
          typename ThreadblockShape, typename WarpShape, typename InstructionShape, typename Fusion,
          typename ThreadblockSwizzle, int Stages, typename MathOperator>
struct GemmVisitor {
  static_assert(cutlass::platform::is_same<typename C::Layout, cutlass::layout::RowMajor>::value);
  static bool const kTransposed = false;
  static bool const kIsVisited = true;
  static bool const kStreamK = IsStreamK<ThreadblockSwizzle>::value;

  using Threads = cutlass::epilogue::threadblock::OutputTileThreadLayout<ThreadblockShape, WarpShape,
                                                                         typename C::Element, C::kAlignment, 1>;
  using Tree = typename Fusion::template Tree<Threads, C>::Type;
  using Base = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
      typename A::Element, typename A::Layout, cutlass::ComplexTransform::kNone, A::kAlignment, typename B::Element,
      typename B::Layout, cutlass::ComplexTransform::kNone, B::kAlignment, typename StoredLike<C>::Type::Element,
      typename C::Layout, C::kAlignment, ElementAccumulator, typename Fusion::ElementCompute, OpClass, ArchTag,
      ThreadblockShape, WarpShape, InstructionShape, Tree, ThreadblockSwizzle, Stages, MathOperator, 1>::GemmKernel;
  using Swizzle = ThreadblockSwizzle;
  using Kernel = Visited<Base, Swizzle>;

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
    Kernel::invoke(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
  }

#else

  using Operands = Elements<typename A::Element, typename B::Element, typename C::Element, typename C::Element>;
  using Epilogue = typename Fusion::template Launch<typename Tree::Arguments>;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    using Mode = cutlass::gemm::GemmUniversalMode;
    pycutlass_call const& common = call.common;
    auto const mode = static_cast<Mode>(call.mode);
    bool const listed = mode == Mode::kArray;
    // Stream-K divides K before the tree sees a sum.
    bool const is_whole = mode == Mode::kGemm && (kStreamK || call.batch_count == 1);
    if (!is_whole && mode != Mode::kBatched && (!listed || kStreamK)) return cutlass::Status::kErrorNotSupported;
    pycutlass_operand const &a = operand(common, PYCUTLASS_A), &b = operand(common, PYCUTLASS_B);
    pycutlass_operand const& d = operand(common, PYCUTLASS_D);
    for (pycutlass_operand const* each : {&a, &b, &d}) {
      if ((each->form == PYCUTLASS_ADDRESSES) != listed) return cutlass::Status::kErrorInvalidProblem;
    }
    typename Tree::Arguments tree{};
    Epilogue::fill(tree, common);
    int const matrices = mode == Mode::kGemm ? 1 : call.batch_count;
    uint64_t const trees = place_workspace<Tree>(tree, call.m, call.n, matrices, common.workspace, 0);
    // CUTLASS's own counts the matrices of tables as it counts those of a batch.
    typename Kernel::Arguments arguments(listed ? Mode::kBatched : mode, {call.m, call.n, call.k}, call.batch_count,
                                         tree, a.data, b.data, d.data, d.data, a.stride[1], b.stride[1], d.stride[1],
                                         d.stride[1], a.stride[0], b.stride[0], d.stride[0], d.stride[0]);
    cutlass::Status const status = Kernel::can_implement(arguments);
    if (status != cutlass::Status::kSuccess) return status;
    Params* const params = new (storage) Params(arguments, common.sm_count, common.sm_occupancy);
    params->mode = mode;
    if constexpr (kStreamK) {
      // What a tree has of a workspace is of whole tiles, which nobody sees where threadblocks of their own add up the
      // sums of a tile, piece by piece.
      if (trees) params->block_mapping.reduction_blocks = 0;
      uint64_t const behind = (trees + 127) / 128 * 128;
      dim3 const grid = params->get_grid_dims();
      result = {{grid.x, grid.y, grid.z}, behind + params->get_workspace_size(), 0, 0, 0};
      // Asks for its barriers to be zeroed, which host.h notes: it has to happen before every launch.
      if (common.workspace) params->init_workspace(static_cast<char*>(common.workspace) + behind);
      note_clear(common.workspace, result);
    } else {
      dim3 const grid = params->get_grid_dims();
      result = {{grid.x, grid.y, grid.z}, trees, 0, 0, 0};
    }
    return cutlass::Status::kSuccess;
  }

#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
