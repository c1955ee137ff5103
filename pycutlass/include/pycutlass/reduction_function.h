// Reduction of split-K partials with an epilogue function: partial sums are added up in their order, and the function
// takes the results. CUTLASS's own kernel (pycutlass/reduction.h) has functors alone, which do not know where they are.
#pragma once

#include "pycutlass/function.h"
#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cutlass/matrix_shape.h>

namespace pycutlass {

/// A thread has `kCount` adjacent elements of one row, a threadblock a tile of `Shape`; `kAtOnce` partial sums are
/// loaded before they are added up.
template <typename Shape, typename Function, typename Sum, typename Element, int kCount, int kAtOnce>
struct ReduceFunction {
  static_assert(Function::Reductions::kSize == 0, "reductions are of whole rows and columns");

  struct Params {
    typename Function::Arguments given;
    Port<Element const> source;
    Port<Element> target;
    Sum const* sums;
    int64_t stride, plane;  // elements between the rows of a partial sum, and between the partial sums
    int rows, columns, partitions;
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
    struct SharedStorage {};
    static int const kThreadCount = Shape::kColumn / kCount * Shape::kRow;

    CUTLASS_DEVICE static void invoke(Params const& params, SharedStorage&) {
      Where const where{int(blockIdx.x) * Shape::kRow + int(threadIdx.y),
                        int(blockIdx.y) * Shape::kColumn + int(threadIdx.x) * kCount, params.rows, params.columns, 0};
      if (where.first_row >= params.rows || where.first_column >= params.columns) return;

      typename Function::Number scalars[Function::kScalars + 1];
      Function::read_scalars(params.given, scalars);
      Readers<typename Function::Inputs, typename Function::Arguments, 1, 1, kCount> readers;
      Readers<Source, Params, 1, 1, kCount> source;
      readers.load_columns(params.given, where);
      readers.load_rows(params.given, where);
      source.load_rows(params, where);

      Sum total[kCount];
      add_up(params, where, total);
      auto const of_source = [&](int v) {
        typename Function::Number value;
        source.values(0, 0, v, &value);
        return value;
      };
      typename Function::Number out[1 + Function::Outputs::kSize][kCount];
      compute_group<Function, kCount>(scalars, total, of_source, readers, 0, 0, out);
      Writers<Target>::store(params, where, 0, 0, out);
      Writers<typename Function::Outputs>::store(params.given, where, 0, 0, out + 1);
    }

   private:
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
  static unsigned const kSharedBytes = 0;
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
                         call.partitions};
    auto const tiles = [](int extent, int tile) { return unsigned((extent + tile - 1) / tile); };
    result = {{tiles(call.rows, Shape::kRow), tiles(call.columns, Shape::kColumn), 1}, 0, 0, 0, 0};
    return cutlass::Status::kSuccess;
  }

#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
