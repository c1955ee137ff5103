// Ampere-style Conv2d with an epilogue that is a tree of visitors. CUTLASS has no such kernel: this is its kernel for
// implicit GEMMs (cutlass/conv/kernel/implicit_gemm_convolution.h) as it is, with an epilogue that hands the sums of a
// tile to a visitor. Of a forward convolution D is the plain matrix of N P Q rows and K columns, of a weight gradient K
// by R S C, of a data gradient with strides of 1 N H W by C.
#pragma once

#include "pycutlass/conv2d.h"
#include "pycutlass/gemm_visitor.h"

#include <cutlass/epilogue/threadblock/epilogue_with_visitor_callbacks.h>

namespace pycutlass {

/// What CUTLASS's kernel knows as the epilogue's functor. It is made of the kernel's parameters, and keeps where they
/// are.
template <typename Element, typename Accumulator, typename TreeParams, int kVector>
struct VisitorOutputOp {
  using ElementOutput = Element;
  using ElementAccumulator = Accumulator;
  using ElementCompute = Accumulator;
  static int const kCount = kVector;

  struct Params {
    TreeParams tree;
    int rows, columns;
  };

  Params const* params;

  CUTLASS_HOST_DEVICE explicit VisitorOutputOp(Params const& params_) : params(&params_) {}
  CUTLASS_HOST_DEVICE void set_k_partition(int, int) {}
};

/// The epilogue: `Default` is the one that CUTLASS's kernel would have, `Threads` its thread map.
template <typename Default, typename Threads, typename Tree, typename ThreadblockShape>
struct VisitorEpilogue {
  using Visitor = cutlass::epilogue::threadblock::EpilogueWithVisitorCallbacks<Default, Tree, 1>;
  using OutputTileIterator = typename Default::OutputTileIterator;
  using Element = typename OutputTileIterator::Element;
  using AccumulatorTile = typename Default::AccumulatorTile;
  using SharedStorage = typename Visitor::SharedStorage;
  using OutputOp = VisitorOutputOp<Element, typename Visitor::ElementAccumulator, typename Tree::Params,
                                   Default::kElementsPerAccess>;

  SharedStorage& shared;
  int thread, warp, lane;

  CUTLASS_DEVICE VisitorEpilogue(SharedStorage& shared_, int thread_, int warp_, int lane_)
      : shared(shared_), thread(thread_), warp(warp_), lane(lane_) {}

  CUTLASS_DEVICE void operator()(OutputOp const& functor, OutputTileIterator target, AccumulatorTile const& sums,
                                 OutputTileIterator const&) {
    auto const first = Threads::initial_offset(thread);
    cutlass::gemm::GemmCoord const tile((target.thread_start_row() - first.row()) / ThreadblockShape::kM,
                                        (target.thread_start_column() - first.column()) / ThreadblockShape::kN, 0);
    auto const size = cute::make_shape(functor.params->rows, functor.params->columns, 1);
    Visitor visitor(functor.params->tree, shared, thread, warp, lane);
    visitor(sums, tile, size, thread);
  }
};

/// Has a tree ask for what it will read of a tile of a matrix of `m` x `n`; CUTLASS's own do not.
template <typename Tree>
CUTLASS_DEVICE auto prefetch_for(typename Tree::Params const& params, cutlass::gemm::GemmCoord const& tile, int m,
                                 int n, int thread, int) -> decltype(Tree::prefetch(params, tile, m, n, thread)) {
  Tree::prefetch(params, tile, m, n, thread);
}
template <typename Tree>
CUTLASS_DEVICE void prefetch_for(typename Tree::Params const&, cutlass::gemm::GemmCoord const&, int, int, int, long) {}

/// CUTLASS's kernel, which has its tree ask for what it will read before the mainloop: layers of few pixels have one
/// wave of tiles, whose epilogues would all wait for the memory at once. GEMMs, measured on an H200, gained nothing.
template <typename Base, typename Tree>
struct VisitedConvolution : Base {
  CUTLASS_DEVICE void operator()(typename Base::Params const& params, typename Base::SharedStorage& shared) {
    auto const tile = typename Base::ThreadblockSwizzle().get_tile_offset(params.swizzle_log_tile);
    if (tile.m() < params.grid_tiled_shape.m() && tile.n() < params.grid_tiled_shape.n()) {
      auto const& functor = params.output_op;
      prefetch_for<Tree>(functor.tree, {tile.m(), tile.n(), 0}, functor.rows, functor.columns, threadIdx.x, 0);
    }
    Base::operator()(params, shared);
  }
};

/// The parameters are those of Conv2d, but for the epilogue: `Fusion` is as GemmVisitor has it.
template <template <typename, typename, typename, typename, typename, typename, typename, typename, typename, typename,
                    typename, typename, typename, typename, int, typename, cutlass::conv::IteratorAlgorithm,
                    cutlass::conv::StrideSupport, int, int> class DefaultKernel,
          typename A, typename B, typename C, typename ElementAccumulator, typename OpClass, typename ArchTag,
          typename ThreadblockShape, typename WarpShape, typename InstructionShape, typename Fusion,
          typename ThreadblockSwizzle, int Stages, typename MathOperator,
          cutlass::conv::IteratorAlgorithm kIteratorAlgorithm, cutlass::conv::StrideSupport kStrideSupport>
struct Conv2dVisitor {
  /// CUTLASS's kernel with a functor that stands in for the tree, which has mainloop and epilogue.
  using Stored = typename StoredLike<C>::Type;
  using Plain = Conv2d<DefaultKernel, A, B, Stored, ElementAccumulator, OpClass, ArchTag, ThreadblockShape, WarpShape,
                       InstructionShape,
                       cutlass::epilogue::thread::LinearCombination<typename Stored::Element, C::kAlignment,
                                                                    ElementAccumulator, ElementAccumulator>,
                       ThreadblockSwizzle, Stages, MathOperator, kIteratorAlgorithm, kStrideSupport>;
  using Default = typename Plain::Kernel;
  static_assert(Default::kConvolutionalOperator != cutlass::conv::Operator::kDgrad ||
                    kStrideSupport == cutlass::conv::StrideSupport::kUnity,
                "the rows of a strided data gradient are in another order");

  using Threads = typename VisitedThreads<OpClass, ThreadblockShape, WarpShape, C, Plain>::Type;
  /// The output as a matrix of pixels by channels.
  using Matrix = Tensor<typename C::Element, cutlass::layout::RowMajor, C::kAlignment>;
  using DefaultThreads = typename Default::Epilogue::OutputTileIterator::ThreadMap;
  static_assert(cutlass::platform::is_base_of<DefaultThreads, Threads>::value,
                "the visitor goes through a tile otherwise than the epilogue that hands it the sums");
  using Tree = typename Fusion::template Tree<Threads, Matrix>::Type;
  using Kernel = VisitedConvolution<
      cutlass::conv::kernel::ImplicitGemmConvolution<
          typename Default::Mma, VisitorEpilogue<typename Default::Epilogue, Threads, Tree, ThreadblockShape>,
          ThreadblockSwizzle, Default::kConvolutionalOperator>,
      Tree>;

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
  using Epilogue = typename Fusion::template Launch<typename Tree::Arguments>;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    if (call.split_k_slices != 1 || call.groups != 1) return cutlass::Status::kErrorNotSupported;
    auto const product =
        cutlass::conv::implicit_gemm_problem_size(Kernel::kConvolutionalOperator, Plain::problem_size(call));
    typename Tree::Arguments tree{};
    pycutlass_call common = call.common;
    if (Kernel::kConvolutionalOperator == cutlass::conv::Operator::kWgrad) {  // a row of each K, which has no gaps
      common.operands[PYCUTLASS_C].stride[0] = common.operands[PYCUTLASS_D].stride[0] = product.n();
    }
    Epilogue::fill(tree, common);
    uint64_t const workspace = place_workspace<Tree>(tree, product.m(), product.n(), 1, call.common.workspace, 0);
    typename Kernel::EpilogueOutputOp::Params const functor{Tree::to_underlying_arguments(product, tree, nullptr),
                                                            product.m(), product.n()};
    cutlass::Status const status = Plain::template plan_with<Kernel, Params>(call, functor, storage, result);
    result.workspace_bytes = workspace;
    return status;
  }

#endif
};

}  // namespace pycutlass
