// Grouped GEMM, Ampere-style: cutlass::gemm::kernel::GemmGrouped behind the call record. Many problems, each with sizes
// and operands of its own, are one launch of as many threadblocks as the GPU holds; each takes tile after tile.
//
// A group is described by the GEMM of its problems: mainloop and epilogue are that kernel's, a column-major C included.
#pragma once

#include "pycutlass/gemm_universal.h"

#include <cutlass/gemm/kernel/gemm_grouped.h>
#include <cutlass/gemm/kernel/gemm_grouped_problem_visitor.h>

namespace pycutlass {

/// A mainloop that may have nothing to do. With K = 0 CUTLASS's own would load tiles that no operand has.
template <typename Mma>
struct MayBeEmpty : Mma {
  using Mma::Mma;
  using FragmentC = typename Mma::FragmentC;

  CUTLASS_DEVICE void operator()(int k_iterations, FragmentC& accumulators, typename Mma::IteratorA A,
                                 typename Mma::IteratorB B, FragmentC const& source) {
    if (k_iterations > 0) Mma::operator()(k_iterations, accumulators, A, B, source);
  }
};

/// CUTLASS's kernel with a visitor as its epilogue, which is told the problem of a tile.
template <typename Base, bool kTransposed>
struct VisitedGroup : Base {
  using Mma = typename Base::Mma;
  using Epilogue = typename Base::Epilogue;

  CUTLASS_DEVICE void operator()(typename Base::Params const& params, typename Base::SharedStorage& shared) {
    using LayoutA = typename Mma::IteratorA::Layout;
    using LayoutB = typename Mma::IteratorB::Layout;
    int const thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(), lane = thread % 32;
    typename Base::ProblemVisitor tiles(params.problem_visitor, shared.problem_visitor, blockIdx.x);
    for (; tiles.next_tile(); tiles.advance(gridDim.x)) {
      cutlass::gemm::GemmCoord const size = tiles.problem_size();
      int const problem = tiles.problem_index(), columns = tiles.grid_shape(size).n();
      int const tile_m = int(tiles.threadblock_idx()) / columns, tile_n = int(tiles.threadblock_idx()) % columns;
      // The tables are those of the caller's A and B, as CUTLASS's own kernel takes them.
      auto* const a = static_cast<typename Mma::IteratorA::Element*>(
          kTransposed ? static_cast<void*>(params.ptr_B[problem]) : static_cast<void*>(params.ptr_A[problem]));
      auto* const b = static_cast<typename Mma::IteratorB::Element*>(
          kTransposed ? static_cast<void*>(params.ptr_A[problem]) : static_cast<void*>(params.ptr_B[problem]));
      typename Mma::IteratorA A(LayoutA(kTransposed ? params.ldb[problem] : params.lda[problem]), a,
                                {size.m(), size.k()}, thread, {tile_m * Mma::Shape::kM, 0});
      typename Mma::IteratorB B(LayoutB(kTransposed ? params.lda[problem] : params.ldb[problem]), b,
                                {size.k(), size.n()}, thread, {0, tile_n * Mma::Shape::kN});
      typename Mma::FragmentC sums;
      sums.clear();
      Mma mma(shared.kernel.main_loop, thread, warp, lane);
      __syncthreads();  // the epilogue of an earlier tile has read what it had there
      mma((size.k() + Mma::Shape::kK - 1) / Mma::Shape::kK, sums, A, B, sums);
      Epilogue epilogue(params.output_op, shared.kernel.epilogue, thread, warp, lane);
      epilogue(sums, {tile_m, tile_n, problem}, cute::make_shape(size.m(), size.n(), 1), thread);
    }
  }
};

/// `Problem` is the GemmUniversal, or GemmVisitor, that each problem of the group would be alone.
template <typename Problem, cutlass::gemm::kernel::GroupScheduleMode kSchedule>
struct GemmGrouped {
  using Base =
      cutlass::gemm::kernel::GemmGrouped<MayBeEmpty<typename Problem::Kernel::Mma>, typename Problem::Kernel::Epilogue,
                                         typename Problem::Swizzle, kSchedule, Problem::kTransposed>;
  using Kernel = cutlass::platform::conditional_t<Problem::kIsVisited, VisitedGroup<Base, Problem::kTransposed>, Base>;

  using Params = typename Kernel::Params;
  using Call = pycutlass_grouped_call;
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

  using Operands = typename Problem::Operands;
  using Epilogue = typename Problem::Epilogue;

  /// Writes the schedule as well, where there is one and `call.schedule` says where.
  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    int64_t const resident = int64_t(call.common.sm_count) * call.common.sm_occupancy;
    int64_t const tiles = call.sizes ? count_tiles(call) : call.most_tiles ? call.most_tiles : resident;
    // Threadblocks step through the tiles by the size of the grid, in 32 bits.
    if (tiles < 0 || tiles > kMostTiles - resident) return cutlass::Status::kErrorInvalidProblem;
    if (kNeedsSizes && !call.sizes) return cutlass::Status::kErrorNotSupported;

    int const blocks = static_cast<int>(tiles < resident ? (tiles > 0 ? tiles : 1) : resident);
    result = {{static_cast<unsigned>(blocks), 1, 1}, schedule(call, blocks), 0, 0, 0};
    new (storage) Params(arguments(call, blocks, result), call.common.workspace, static_cast<int>(tiles));
    return cutlass::Status::kSuccess;
  }

 private:
  using Visitor = typename Kernel::ProblemVisitor;
  using Size = cutlass::gemm::GemmCoord;
  static_assert(sizeof(Size) == 3 * sizeof(int32_t), "a problem size is M, N, K and nothing else");
  static int64_t const kMostTiles = 0x7fffffff;

  template <typename Each, typename = void>
  struct Reduces : cutlass::platform::false_type {};
  template <typename Each>
  struct Reduces<Each, decltype(void(Each::Tree::kReduces))>
      : cutlass::platform::integral_constant<bool, Each::Tree::kReduces> {};
  /// Whether there is a schedule, or partial results of problems, to be placed.
  static bool const kNeedsSizes = Visitor::kRequiresPrecomputation || Reduces<Problem>::value;

  /// Tiles of all problems; -1 where CUTLASS cannot count them in 32 bits.
  static int64_t count_tiles(Call const& call) {
    int64_t total = 0;
    for (int i = 0; i < call.problem_count; ++i) {
      Size const problem = size(call, i);
      if (problem.m() > kMostTiles - Kernel::Mma::Shape::kM || problem.n() > kMostTiles - Kernel::Mma::Shape::kN)
        return -1;
      Size const grid = Visitor::grid_shape(problem);
      total += int64_t(grid.m()) * grid.n();
      if (total > kMostTiles) return -1;
    }
    return total;
  }

  /// The size of problem `i` as the kernel sees it.
  static Size size(Call const& call, int i) {
    Size size(call.sizes[3 * i], call.sizes[3 * i + 1], call.sizes[3 * i + 2]);
    Visitor::possibly_transpose_problem(size);
    return size;
  }

  static typename Kernel::Arguments arguments(Call const& call, int blocks, pycutlass_plan_result& result) {
    pycutlass_group_tables const& tables = call.tables;
    return {table<Size>(tables.sizes),
            call.problem_count,
            blocks,
            epilogue(call, result),
            table<typename Kernel::ElementA*>(tables.pointers[PYCUTLASS_A]),
            table<typename Kernel::ElementB*>(tables.pointers[PYCUTLASS_B]),
            table<typename Kernel::ElementC*>(tables.pointers[PYCUTLASS_C]),
            table<typename Kernel::ElementC*>(tables.pointers[PYCUTLASS_D]),
            table<typename Kernel::LayoutA::Stride::LongIndex>(tables.lds[PYCUTLASS_A]),
            table<typename Kernel::LayoutB::Stride::LongIndex>(tables.lds[PYCUTLASS_B]),
            table<typename Kernel::LayoutC::Stride::LongIndex>(tables.lds[PYCUTLASS_C]),
            table<typename Kernel::LayoutC::Stride::LongIndex>(tables.lds[PYCUTLASS_D])};
  }

  static typename Kernel::EpilogueOutputOp::Params epilogue(Call const& call, pycutlass_plan_result& result) {
    if constexpr (Problem::kIsVisited) {
      typename Kernel::EpilogueOutputOp::Params tree{};
      Epilogue::fill(tree, call);
      if (call.sizes) tree.group = Problem::Tree::Space::of(call, result, Problem::kTransposed);
      return tree;
    } else {
      return Epilogue::params(call.common);
    }
  }

  /// A table under the type that CUTLASS's arguments want; nothing writes to it.
  template <typename Entry>
  static Entry* table(void const* entries) {
    return static_cast<Entry*>(const_cast<void*>(entries));
  }

  /// Writes which problem each tile of each threadblock belongs to, and returns the bytes that it takes.
  static uint64_t schedule(Call const& call, int blocks) {
    if (!Visitor::kRequiresPrecomputation) return 0;
    Size const* sizes = reinterpret_cast<Size const*>(call.sizes);
    if (call.schedule) Visitor::host_precompute(sizes, call.problem_count, blocks, call.schedule);
    return Visitor::get_workspace_size(sizes, call.problem_count, blocks);
  }

#endif
};

}  // namespace pycutlass
