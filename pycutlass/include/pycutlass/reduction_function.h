// Reduction of split-K partials with an epilogue function: partial sums are added up in their order, and the function
// takes the results. CUTLASS's own kernel (pycutlass/reduction.h) has functors alone, which do not know where they are.
#pragma once

#include "pycutlass/function_reduction.h"
#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cutlass/matrix_shape.h>

namespace pycutlass {

/// A thread has `kCount` adjacent elements of one row, a threadblock a tile of `Shape`, or several one below the other
/// where the function has reductions; `kAtOnce` partial sums are loaded before they are added up.
template <typename Shape, typename Function, typename Sum, typename Element, int kCount, int kAtOnce>
struct ReduceFunction {
  static constexpr bool kReduces = Function::Reductions::kSize > 0;
  /// How many tiles a threadblock has, so that the results of its columns are few beside D.
  static constexpr int kSteps = kReduces ? 8 : 1;
  static_assert(!kReduces || Shape::kColumn == 32 * kCount, "a warp has a row of the tile");
  using Number = typename Function::Number;
  using Space = ReductionSpace<Function, Shape::kRow * kSteps, Shape::kColumn>;
  using AllReducers = Reducers<typename Function::Reductions, Number, 1, 1, kCount>;
  static constexpr int kAxes = ReducedAxes<typename Function::Reductions>::kAxes;

  struct Params {
    typename Function::Arguments given;
    Port<Element const> source;
    Port<Element> target;
    Sum const* sums;
    int64_t stride, plane;  // elements between the rows of a partial sum, and between the partial sums
    int rows, columns, partitions;
    Partials<Number> partials;
  };

  /// Where the elements of a thread are.
  struct Where {
    int first_row, first_column, rows, columns;
    int64_t batch;

    CUTLASS_HOST_DEVICE int row(int) const { return first_row; }
    CUTLASS_HOST_DEVICE int column(int) const { return first_column; }
  };

  struct Kernel {
    using Params = typename ReduceFunction::Params;
    struct NoStorage {};
    using SharedStorage =
        cutlass::platform::conditional_t<kReduces, ReductionStorage<Function, Shape::kRow, Shape::kColumn, 1>,
                                         NoStorage>;
    static int const kThreadCount = Shape::kColumn / kCount * Shape::kRow;

    CUTLASS_DEVICE static void invoke(Params const& params, SharedStorage& shared) {
      Where where{int(blockIdx.x) * Shape::kRow * kSteps + int(threadIdx.y),
                  int(blockIdx.y) * Shape::kColumn + int(threadIdx.x) * kCount, params.rows, params.columns, 0};
      if (!kReduces && (where.first_row >= params.rows || where.first_column >= params.columns)) return;

      TileCount count{};  // of the first thread
      if constexpr (kReduces) {
        if (threadIdx.x == 0 && threadIdx.y == 0)
          count.template ask<kAxes>(params.partials, 0, int(blockIdx.x), int(blockIdx.y));
      }
      Number scalars[Function::kScalars + 1];
      Function::read_scalars(params.given, scalars);
      AllReaders readers;
      readers.load_columns(params.given, where);
      AllReducers reducers;
      reducers.begin_columns();
      reducers.begin_whole();
      CUTLASS_PRAGMA_NO_UNROLL
      for (int step = 0; step < kSteps; ++step, where.first_row += Shape::kRow) {
        reducers.begin_rows();
        if (where.first_row < params.rows && where.first_column < params.columns) {
          visit(params, where, scalars, readers, reducers);
        }
        reducers.template join_rows<32>(threadIdx.x);
        reducers.template leave_rows<32>(params.partials, 0, where, blockIdx.y, threadIdx.x);
      }
      if constexpr (kReduces) finish(params, shared, where, reducers, count);
    }

   private:
    using AllReaders = Readers<typename Function::Inputs, typename Function::Arguments, 1, 1, kCount>;

    /// Computes the elements of a thread in a tile.
    CUTLASS_DEVICE static void visit(Params const& params, Where const& where, Number const* scalars,
                                     AllReaders& readers, AllReducers& reducers) {
      Readers<Source, Params, 1, 1, kCount> source;
      readers.load_rows(params.given, where);
      readers.load_elements(params.given, where);
      source.load_elements(params, where);
      Sum total[kCount];
      add_up(params, where, total);
      auto const of_source = [&](int v) {
        Number value;
        source.values(0, 0, v, &value);
        return value;
      };
      Number out[1 + Function::Outputs::kSize + Function::Reductions::kSize][kCount];
      compute_group<Function, kCount>(scalars, total, of_source, readers, 0, 0, out);
      Writers<Target>::store(params, where, 0, 0, out);
      Writers<typename Function::Outputs>::store(params.given, where, 0, 0, out + 1);
      if constexpr (kReduces) reducers.template take<kCount>(0, 0, out + 1 + Function::Outputs::kSize);
    }

    /// Joins what the threads have of a threadblock's tiles, and what all have of a line of them where this was the
    /// last.
    CUTLASS_DEVICE static void finish(Params const& params, SharedStorage& shared, Where const& where,
                                      AllReducers& reducers, TileCount const& count) {
      constexpr int kWarps = Shape::kRow, kTileN = Shape::kColumn;
      Partials<Number> const& partials = params.partials;
      int const tile_m = blockIdx.x, tile_n = blockIdx.y, warp = threadIdx.y, lane = threadIdx.x;
      int const thread = warp * 32 + lane;
      reducers.template share_columns<32>(shared.columns, kWarps * kTileN, warp * kTileN, lane,
                                          [&](int) { return lane * kCount; });
      reducers.share_whole(shared.wholes, kWarps, warp, lane);
      __syncthreads();
      for (int column = thread; column < kTileN; column += kThreadCount) {
        reducers.leave_columns(partials, 0, shared.columns, kWarps * kTileN, kWarps, kTileN, tile_n * kTileN, tile_m, 0,
                               column);
      }
      if (thread == 0) reducers.leave_whole(partials, 0, shared.wholes, kWarps, 0, tile_m * partials.tiles_n + tile_n);
      if (thread == 0) shared.done[0] = count.template last<kAxes>(partials);
      __syncthreads();
      reducers.finish_all(partials, params.given, where, tile_m, tile_n, shared.done[0], thread, kThreadCount);
    }

    using Source =
        cutlass::platform::conditional_t<Function::kReadsSource, List<Matrix<&Params::source, kCount>>, List<>>;
    using Target = List<Matrix<&Params::target, kCount>>;

    CUTLASS_DEVICE static void add_up(Params const& params, Where const& where, Sum* total) {
      struct alignas(16) Group {
        cutlass::Array<Sum, kCount> elements;
      };
      Sum const* from = params.sums + where.first_row * params.stride + where.first_column;
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kCount; ++v) total[v] = Sum(0);
      CUTLASS_PRAGMA_NO_UNROLL
      for (int first = 0; first < params.partitions; first += kAtOnce) {
        Group groups[kAtOnce];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kAtOnce; ++i, from += params.plane) {
          if (first + i < params.partitions) Line<kCount, Sum, kCount>::load(from, groups[i].elements);
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          CUTLASS_PRAGMA_UNROLL
          for (int v = 0; v < kCount; ++v) {
            if (first + i < params.partitions) total[v] = total[v] + Sum(groups[i].elements[v]);
          }
        }
      }
    }
  };

  using Call = pycutlass_reduction_call;
  static unsigned const kColumns = Shape::kColumn / kCount;
  static unsigned const kThreads = Kernel::kThreadCount;
  static unsigned const kMinBlocks = 1;
  static unsigned const kSharedBytes = kReduces ? sizeof(typename Kernel::SharedStorage) : 0;
  static unsigned const kClusterM = 1;
  static unsigned const kClusterN = 1;

#if PYCUTLASS_DEVICE_SIDE

  CUTLASS_DEVICE static void run(Params const& params, char* shared) {
    Kernel::invoke(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
  }

#else

  using Operands = Elements<Sum, void, Element, Element>;

  struct Epilogue {
    using Arguments = typename Function::Arguments;

    static void describe(EpilogueFields<Arguments>& fields) { Arguments::describe(fields); }
  };

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    pycutlass_call const& common = call.common;
    pycutlass_operand const& sums = operand(common, PYCUTLASS_A);
    pycutlass_operand const &source = operand(common, PYCUTLASS_C), &target = operand(common, PYCUTLASS_D);
    new (storage) Params{*static_cast<typename Epilogue::Arguments const*>(common.epilogue),
                         {static_cast<Element const*>(source.data), source.stride[0], 0},
                         {static_cast<Element*>(target.data), target.stride[0], 0},
                         static_cast<Sum const*>(sums.data),
                         sums.stride[0],
                         sums.stride[1],
                         call.rows,
                         call.columns,
                         call.partitions,
                         Space::of(call.rows, call.columns, 1, common.workspace)};
    auto const tiles = [](int extent, int tile) { return unsigned((extent + tile - 1) / tile); };
    result = {{tiles(call.rows, Shape::kRow * kSteps), tiles(call.columns, Shape::kColumn), 1},
              Space::bytes(call.rows, call.columns, 1),
              0,
              0,
              0};
    return cutlass::Status::kSuccess;
  }

#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
