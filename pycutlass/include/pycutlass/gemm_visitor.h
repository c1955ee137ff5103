// Ampere-style GEMM with an epilogue that is a tree of CUTLASS's visitors (cutlass/epilogue/threadblock/fusion), behind
// the call record. The tree reads C and writes D itself, and whatever else it has.
#pragma once

#include "pycutlass/gemm_universal.h"

#include <cute/tensor.hpp>
#include <cutlass/barrier.h>
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

/// What another threadblock has written in this launch.
template <typename Word>
CUTLASS_DEVICE Word written_by_others(Word const* address) {
#if PYCUTLASS_DEVICE_SIDE
  return __ldcg(address);  // from the L2 cache, which all threadblocks share
#else
  return *address;
#endif
}

/// CUTLASS's kernel with a visitor, for one GEMM, for batches, for matrices that tables of addresses list, and for
/// slices of K, which it does not take itself.
///
/// Slices of a tile take turns: each adds its sums to those that the one before it has left in the workspace, and the
/// last one visits what they come to. So sums are whole, of the accumulator's type and always the same.
template <typename Base, typename Swizzle>
struct VisitedGemm : Base {
  using Mma = typename Base::Mma;
  using SharedStorage = typename Base::SharedStorage;
  using Mode = cutlass::gemm::GemmUniversalMode;
  using Sums = typename Mma::FragmentC;
  using Sum = typename Sums::Element;
  /// What is stored of sums at a time.
  using Word = cutlass::platform::conditional_t<sizeof(Sum) == 8, unsigned long long, unsigned>;
  static constexpr int kSumsOfWord = sizeof(Word) / sizeof(Sum), kWords = Sums::kElements / kSumsOfWord;
  static_assert(Sums::kElements % kSumsOfWord == 0);
  /// Arrays of halves have no references to them.
  union Stored {
    Word word;
    Sum sums[kSumsOfWord];
  };

  struct Params : Base::Params {
    using Base::Params::Params;

    int slices = 1;
    int* turns = nullptr;  // for each tile, how many slices have left their sums
    Word* sums = nullptr;  // of each tile, a word of each thread beside that of the next

    /// Divides K as CUTLASS does (cutlass/gemm/kernel/params_universal_base.h): fewer slices than asked may have work.
    CUTLASS_HOST_DEVICE void divide(int count) {
      int const bits_a = cutlass::sizeof_bits<typename Base::ElementA>::value;
      int const bits_b = cutlass::sizeof_bits<typename Base::ElementB>::value;
      int const step = 128 / (bits_a < bits_b ? bits_a : bits_b), k = this->problem_size.k();
      this->gemm_k_size = ((k + count - 1) / count + step - 1) / step * step;
      slices = (k + this->gemm_k_size - 1) / this->gemm_k_size;
      this->grid_tiled_shape.k() = slices;
    }
    CUTLASS_HOST_DEVICE int64_t tiles() const {
      return int64_t(this->grid_tiled_shape.m()) * this->grid_tiled_shape.n();
    }
  };

  /// Where operand A or B of a tile is.
  template <typename Element>
  CUTLASS_DEVICE static Element* matrix(void* given, int64_t batch_stride, Mode mode, int batch) {
    if (mode == Mode::kArray) return static_cast<Element* const*>(given)[batch];
    return static_cast<Element*>(given) + batch * batch_stride;
  }

  /// Adds the sums of the slices before this one; returns whether it is the last, which has the whole sums then.
  CUTLASS_DEVICE static bool add_up(Params const& params, cutlass::gemm::GemmCoord const& tile, Sums& sums,
                                    int thread) {
    using Turns = cutlass::Barrier;
    int const number = tile.m() * params.grid_tiled_shape.n() + tile.n(), slice = tile.k();
    Word* const place = params.sums + (int64_t(number) * kWords * Base::kThreadCount + thread);
    if (slice > 0) {
      Turns::wait_eq(params.turns, thread, number, slice);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWords; ++i) {
        Stored before;
        before.word = written_by_others(place + i * Base::kThreadCount);
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kSumsOfWord; ++j) {
          int const number_of = i * kSumsOfWord + j;
          sums[number_of] = before.sums[j] + Sum(sums[number_of]);
        }
      }
    }
    if (slice + 1 == params.slices) {
      if (thread == 0) params.turns[number] = 0;  // for the next launch
      return true;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kWords; ++i) {
      Stored left;
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kSumsOfWord; ++j) left.sums[j] = sums[i * kSumsOfWord + j];
      place[i * Base::kThreadCount] = left.word;
    }
    Turns::arrive_inc(params.turns, thread, number);
    return false;
  }

  CUTLASS_DEVICE static void invoke(Params const& params, SharedStorage& shared) {
    cutlass::gemm::GemmCoord tile = Swizzle().get_tile_offset(params.swizzle_log_tile);
    if (tile.m() >= params.grid_tiled_shape.m() || tile.n() >= params.grid_tiled_shape.n()) return;
    int const thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
    int const m = params.problem_size.m(), n = params.problem_size.n();
    bool const is_divided = params.slices > 1;
    int const batch = is_divided ? 0 : tile.k(), first = is_divided ? tile.k() * params.gemm_k_size : 0;
    int const k = is_divided ? cutlass::platform::min(params.problem_size.k(), first + params.gemm_k_size)
                             : params.problem_size.k();
    typename Mma::IteratorA A(params.params_A,
                              matrix<typename Base::ElementA>(params.ptr_A, params.batch_stride_A, params.mode, batch),
                              {m, k}, thread, {tile.m() * Mma::Shape::kM, first});
    typename Mma::IteratorB B(params.params_B,
                              matrix<typename Base::ElementB>(params.ptr_B, params.batch_stride_B, params.mode, batch),
                              {k, n}, thread, {first, tile.n() * Mma::Shape::kN});
    Sums sums;
    sums.clear();
    Mma mma(shared.main_loop, thread, warp, lane);
    mma((k - first + Mma::Shape::kK - 1) / Mma::Shape::kK, sums, A, B, sums);
    // Asked for again, the tile takes no registers meanwhile.
    tile = Swizzle().get_tile_offset(params.swizzle_log_tile);
    if (params.slices > 1) {
      if (!add_up(params, tile, sums, thread)) return;
      tile.k() = 0;
    }
    typename Base::Epilogue epilogue(params.output_op, shared.epilogue, thread, warp, lane);
    epilogue(sums, tile, params.problem_shape, thread);
  }
};

/// What CUTLASS has for a swizzle: kernels that schedule by stream-K are taken as they are.
template <typename Base, typename Swizzle>
using Visited = cutlass::platform::conditional_t<IsStreamK<Swizzle>::value, Base, VisitedGemm<Base, Swizzle>>;

/// The thread map of an epilogue whose steps threadblocks take one by one, in any order, as those of stream-K do that
/// add up the sums of others.
template <typename Map>
struct AnyStep : Map {
  static constexpr bool kIsAnyStep = true;
};

/// The thread map along which a visitor goes through a tile. CUTLASS has such maps for tensor cores alone; that of CUDA
/// cores is the one of `Plain::Kernel`, which has a functor in place of the visitor.
template <typename OpClass, typename ThreadblockShape, typename WarpShape, typename C, typename Plain>
struct VisitedThreads {
  using Type = cutlass::epilogue::threadblock::OutputTileThreadLayout<ThreadblockShape, WarpShape, typename C::Element,
                                                                      C::kAlignment, 1>;
};
template <typename ThreadblockShape, typename WarpShape, typename C, typename Plain>
struct VisitedThreads<cutlass::arch::OpClassSimt, ThreadblockShape, WarpShape, C, Plain> {
  struct Type : Plain::Kernel::Epilogue::OutputTileIterator::ThreadMap {
    using CtaShapeMNL = cute::Shape<cute::Int<ThreadblockShape::kM>, cute::Int<ThreadblockShape::kN>, cute::_1>;
  };
};

/// `Fusion` has Tree<Threads, C>::Type, which visits, and on the host Launch<Arguments of the tree>.
template <typename A, typename B, typename C, typename ElementAccumulator, typename OpClass, typename ArchTag,
          typename ThreadblockShape, typename WarpShape, typename InstructionShape, typename Fusion,
          typename ThreadblockSwizzle, int Stages, typename MathOperator>
struct GemmVisitor {
  /// A column-major C is computed as the transposed problem, as in gemm_universal.h; `Fusion` is that of it.
  static bool const kTransposed = cutlass::platform::is_same<typename C::Layout, cutlass::layout::ColumnMajor>::value;
  static bool const kIsVisited = true;
  using Map = cutlass::gemm::kernel::detail::MapArguments<
      typename A::Element, typename A::Layout, cutlass::ComplexTransform::kNone, A::kAlignment, typename B::Element,
      typename B::Layout, cutlass::ComplexTransform::kNone, B::kAlignment, typename C::Layout, kTransposed>;
  static bool const kStreamK = IsStreamK<ThreadblockSwizzle>::value;

  template <typename Visitor>
  using Default = cutlass::gemm::kernel::DefaultGemmWithVisitor<
      typename Map::ElementA, typename Map::LayoutA, Map::kTransformA, Map::kAlignmentA, typename Map::ElementB,
      typename Map::LayoutB, Map::kTransformB, Map::kAlignmentB, typename StoredLike<C>::Type::Element,
      typename Map::LayoutC, C::kAlignment, ElementAccumulator, typename Fusion::ElementCompute, OpClass, ArchTag,
      ThreadblockShape, WarpShape, InstructionShape, Visitor, ThreadblockSwizzle, Stages, MathOperator, 1>;

  struct Plain {
    using Kernel = typename Default<void>::GemmBase;
  };
  using InOrder = typename VisitedThreads<OpClass, ThreadblockShape, WarpShape, C, Plain>::Type;
  using Threads = cutlass::platform::conditional_t<kStreamK, AnyStep<InOrder>, InOrder>;
  using Tree = typename Fusion::template Tree<Threads, C>::Type;
  using Base = typename Default<Tree>::GemmKernel;
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
    if (mode != Mode::kGemm && mode != Mode::kBatched && (!listed || kStreamK)) {
      return cutlass::Status::kErrorNotSupported;
    }
    // The tree sees whole sums. Stream-K divides K by itself, others by what VisitedGemm has for slices.
    int const slices = mode == Mode::kGemm && !kStreamK ? call.batch_count : 1;
    int const m = kTransposed ? call.n : call.m, n = kTransposed ? call.m : call.n;
    pycutlass_operand const& a = operand(common, kTransposed ? PYCUTLASS_B : PYCUTLASS_A);
    pycutlass_operand const& b = operand(common, kTransposed ? PYCUTLASS_A : PYCUTLASS_B);
    pycutlass_operand const& d = operand(common, PYCUTLASS_D);
    for (pycutlass_operand const* each : {&a, &b, &d}) {
      if ((each->form == PYCUTLASS_ADDRESSES) != listed) return cutlass::Status::kErrorInvalidProblem;
    }
    typename Tree::Arguments tree{};
    Epilogue::fill(tree, common);
    int const matrices = mode == Mode::kGemm ? 1 : call.batch_count;
    uint64_t const trees = place_workspace<Tree>(tree, m, n, matrices, common.workspace, 0);
    // CUTLASS's own counts the matrices of tables as it counts those of a batch, and knows nothing of slices.
    typename Kernel::Arguments arguments(listed ? Mode::kBatched : mode, {m, n, call.k}, call.batch_count / slices,
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
      if (slices > 1) params->divide(slices);
      dim3 const grid = params->get_grid_dims();
      result = {{grid.x, grid.y, grid.z}, trees, 0, 0, 0};
      if (slices > 1) {
        auto const place = [&](uint64_t bytes) {
          uint64_t const behind = (result.workspace_bytes + 127) / 128 * 128;
          result.workspace_bytes = behind + bytes;
          return static_cast<void*>(static_cast<char*>(common.workspace) + behind);
        };
        params->turns = static_cast<int*>(place(params->tiles() * sizeof(int)));
        uint64_t const words = Kernel::kWords * uint64_t(Kernel::kThreadCount);
        params->sums =
            static_cast<typename Kernel::Word*>(place(params->tiles() * words * sizeof(typename Kernel::Word)));
      }
    }
    return cutlass::Status::kSuccess;
  }

#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
