// Epilogue functions in kernels of CUTLASS's 2.x API: one visitor (cutlass/epilogue/threadblock/fusion) that reads and
// writes all tensors, D among them.
#pragma once

#include "pycutlass/function.h"

#include <cute/tensor.hpp>
#include <cutlass/gemm_coord.h>

namespace pycutlass {

/// Visits the elements of a tile. `Threads` is the thread map of the epilogue.
template <typename Function, typename Threads, typename C>
struct FunctionVisitor {
  using Number = typename Function::Number;
  using Element = typename C::Element;

  static constexpr int kVector = Threads::kElementsPerAccess;
  static constexpr int kRows = Threads::Iterations::kCluster * Threads::Iterations::kGroup * Threads::Iterations::kRow;
  static constexpr int kGroups = Threads::Iterations::kColumn;

  struct SharedStorage {};
  struct Arguments {
    typename Function::Arguments given;
    Port<Element const> source;
    Port<Element> target;
  };
  using Params = Arguments;
  using Source = List<Matrix<&Arguments::source, C::kAlignment>>;
  using Target = List<Matrix<&Arguments::target, C::kAlignment>>;

  template <typename Size>
  static Params to_underlying_arguments(Size const&, Arguments const& arguments, void*) {
    return arguments;
  }

  Params const* params;

  CUTLASS_HOST_DEVICE FunctionVisitor(Params const& params_, SharedStorage const&) : params(&params_) {}

  /// Where a thread's elements of one step are: as PredicatedTileIterator goes through the thread map
  /// (cutlass/epilogue/threadblock/predicated_tile_iterator.h).
  struct Where {
    int first_row, first_column, rows, columns, step;
    int64_t batch;

    CUTLASS_HOST_DEVICE int64_t row(int r) const {
      using Shape = typename Threads::Shape;
      using Count = typename Threads::Count;
      using Steps = typename Threads::Iterations;
      using Delta = typename Threads::Delta;
      int const lines =
          step * Shape::kRow + step / Count::kRow * (Shape::kGroup - 1) * Shape::kRow * Count::kRow +
          step / (Count::kRow * Count::kGroup) * Count::kGroup * Shape::kGroup * Count::kRow * Shape::kRow;
      return first_row + lines + r % Steps::kRow * Delta::kRow + r / Steps::kRow % Steps::kGroup * Delta::kGroup +
             r / (Steps::kRow * Steps::kGroup) * Delta::kCluster;
    }
    CUTLASS_HOST_DEVICE int64_t column(int g) const { return first_column + g * Threads::Delta::kColumn; }
  };

  struct Callbacks {
    Params const& params;
    Where where;
    Number scalars[Function::kScalars + 1];
    Readers<typename Function::Inputs, typename Function::Arguments, kRows, kGroups, kVector> readers;
    Readers<cutlass::platform::conditional_t<Function::kReadsSource, Source, List<>>, Arguments, kRows, kGroups,
            kVector>
        source;

    CUTLASS_DEVICE void begin_epilogue() {
      Function::read_scalars(params.given, scalars);
      readers.load_columns(params.given, where);
    }
    CUTLASS_DEVICE void begin_step(int step) {
      where.step = step;
      readers.load_rows(params.given, where);
      source.load_rows(params, where);
    }
    CUTLASS_DEVICE void begin_row(int) {}
    template <typename Accumulator, int kCount>
    CUTLASS_DEVICE void visit(int, int r, int g, int, cutlass::Array<Accumulator, kCount> const& accumulators) {
      static_assert(kCount == kVector);
      Number out[1 + Function::Outputs::kSize][kVector];
      Accumulator const* const sums = reinterpret_cast<Accumulator const*>(&accumulators);
      auto const of_source = [&](int v) {
        Number value;
        source.values(r, g, v, &value);
        return value;
      };
      compute_group<Function, kVector>(scalars, sums, of_source, readers, r, g, out);
      Writers<Target>::store(params, where, r, g, out);
      Writers<typename Function::Outputs>::store(params.given, where, r, g, out + 1);
    }
    CUTLASS_DEVICE void end_row(int) {}
    CUTLASS_DEVICE void end_step(int) {}
    CUTLASS_DEVICE void end_epilogue() {}
  };

  template <typename Size>
  CUTLASS_DEVICE Callbacks get_callbacks(cutlass::gemm::GemmCoord tile, int thread, Size const& size) {
    using Shape = typename Threads::CtaShapeMNL;
    auto const first = Threads::initial_offset(thread);
    Where const where{tile.m() * int(cute::size<0>(Shape{})) + first.row(),
                      tile.n() * int(cute::size<1>(Shape{})) + first.column(),
                      int(cute::get<0>(size)),
                      int(cute::get<1>(size)),
                      0,
                      tile.k()};
    return {*params, where, {}, {}, {}};
  }
};

/// What GemmVisitor takes.
template <typename Function>
struct FunctionAmpere {
  using ElementCompute = typename Function::Number;

  template <typename Threads, typename C>
  struct Tree {
    using Type = FunctionVisitor<Function, Threads, C>;
  };

#if !PYCUTLASS_DEVICE_SIDE
  template <typename TreeArguments>
  struct Launch {
    using Arguments = typename Function::Arguments;

    static void describe(EpilogueFields<Arguments>& fields) { Arguments::describe(fields); }

    static void fill(TreeArguments& tree, pycutlass_call const& call) {
      pycutlass_operand const &source = call.operands[PYCUTLASS_C], &target = call.operands[PYCUTLASS_D];
      tree.given = *static_cast<Arguments const*>(call.epilogue);
      tree.source = {static_cast<decltype(tree.source.data)>(source.data), source.stride[0], source.stride[1]};
      tree.target = {static_cast<decltype(tree.target.data)>(target.data), target.stride[0], target.stride[1]};
    }
  };
#endif
};

}  // namespace pycutlass
