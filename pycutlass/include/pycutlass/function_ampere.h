// Epilogue functions in kernels of CUTLASS's 2.x API: one visitor (cutlass/epilogue/threadblock/fusion) that reads and
// writes all tensors, D among them.
#pragma once

#include "pycutlass/function_reduction.h"

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

  using Tile = typename Threads::CtaShapeMNL;
  static constexpr int kTileM = cute::size<0>(Tile{}), kTileN = cute::size<1>(Tile{});
  static constexpr int kWarps = Threads::kThreads / 32, kLanes = Threads::Detail::kAccessWidth;
  static constexpr bool kReduces = Function::Reductions::kSize > 0;
  static constexpr int kAxes = ReducedAxes<typename Function::Reductions>::kAxes;
  using Space = ReductionSpace<Function, kTileM, kTileN>;
  /// Columns of D in a tile, and of a thread's group: half of the product's where these are combined in pairs.
  static constexpr int kColumnsD = Function::kIsGated ? kTileN / 2 : kTileN;
  static constexpr int kVectorD = Function::kIsGated ? kVector / 2 : kVector;
  using Storage = ReductionStorage<Function, kWarps, kColumnsD, 1>;
  /// A warp has whole rows of the tile: of one, or of several that lie side by side in its lanes.
  static_assert(!kReduces || (kLanes * kGroups * kVector == kTileN && 32 % kLanes == 0));

  struct NoStorage {};
  using SharedStorage = cutlass::platform::conditional_t<kReduces, Storage, NoStorage>;
  struct Arguments {
    typename Function::Arguments given;
    Port<Element const> source;
    Port<Element> target;
    Partials<Number> partials;
    GroupPartials<Number> group;
  };
  using Params = Arguments;
  using Source =
      cutlass::platform::conditional_t<Function::kReadsSource, List<Matrix<&Arguments::source, C::kAlignment>>, List<>>;
  using Target = List<Matrix<&Arguments::target, C::kAlignment>>;

  template <typename Size>
  static Params to_underlying_arguments(Size const&, Arguments const& arguments, void*) {
    return arguments;
  }

  Params const* params;
  SharedStorage* shared;

  CUTLASS_HOST_DEVICE FunctionVisitor(Params const& params_, SharedStorage& shared_)
      : params(&params_), shared(&shared_) {}

  /// Where a thread's elements of one step are: as PredicatedTileIterator goes through the thread map
  /// (cutlass/epilogue/threadblock/predicated_tile_iterator.h).
  struct Where {
    int first_row, first_column, rows, columns, step;
    int64_t batch;

    CUTLASS_HOST_DEVICE int row(int r) const {
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
    CUTLASS_HOST_DEVICE int column(int g) const { return first_column + g * Threads::Delta::kColumn; }
  };

  struct Callbacks {
    Params const& params;
    Arguments chosen;  // of which there are the ports alone, of one matrix
    SharedStorage& shared;
    Where where;
    int thread, tile_m, tile_n, matrix;
    Number scalars[Function::kScalars + 1];
    Readers<typename Function::Inputs, typename Function::Arguments, kRows, kGroups, kVector> readers;
    Readers<Source, Arguments, kRows, kGroups, kVector> source;
    Readers<typename Function::HalfInputs, typename Function::Arguments, kRows, kGroups, kVectorD> half_readers;
    Reducers<typename Function::Reductions, Number, kRows, kGroups, kVectorD> reducers;
    int last;  // in which lines of tiles this one was counted last, for the first thread

    /// Asked for where they are needed, so that they take no registers meanwhile.
    CUTLASS_DEVICE Partials<Number> partials() const {
      return params.group.places ? Space::of(where.rows, where.columns, params.group, matrix) : params.partials;
    }
    /// Where the elements of D are, and of all that is like it.
    CUTLASS_DEVICE auto where_D() const {
      if constexpr (Function::kIsGated) {
        return HalfColumns<Where>(where);
      } else {
        return where;
      }
    }
    CUTLASS_DEVICE void begin_epilogue() {
      if constexpr (kReduces) {
        if (thread == 0) last = count_tile<kAxes>(partials(), where.batch, tile_m, tile_n);
      }
      Function::read_scalars(params.given, scalars);
      readers.load_columns(chosen.given, where);
      half_readers.load_columns(chosen.given, where_D());
      reducers.begin_columns();
      reducers.begin_whole();
    }
    CUTLASS_DEVICE void begin_step(int step) {
      reducers.begin_rows();
      where.step = step;
      readers.load_rows(chosen.given, where);
      source.load_rows(chosen, where);
      half_readers.load_rows(chosen.given, where_D());
    }
    CUTLASS_DEVICE void begin_row(int) {}
    template <typename Accumulator, int kCount>
    CUTLASS_DEVICE void visit(int, int r, int g, int, cutlass::Array<Accumulator, kCount> const& accumulators) {
      static_assert(kCount == kVector);
      Accumulator const* const sums = reinterpret_cast<Accumulator const*>(&accumulators);
      if constexpr (Function::kIsGated) {
        visit_pairs(r, g, sums);
      } else {
        visit_all(r, g, sums);
      }
    }
    template <typename Accumulator>
    CUTLASS_DEVICE void visit_pairs(int r, int g, Accumulator const* sums) {
      constexpr int kWhole = Function::WholeOutputs::kSize;
      Number out[1 + Function::Outputs::kSize + Function::Reductions::kSize][kVectorD];
      Number whole[kWhole > 0 ? kWhole : 1][kVector];
      compute_pairs<Function, kVector>(scalars, sums, readers, half_readers, r, g, out, whole);
      Writers<Target>::store(chosen, where_D(), r, g, out);
      Writers<typename Function::Outputs>::store(chosen.given, where_D(), r, g, out + 1);
      Writers<typename Function::WholeOutputs>::store(chosen.given, where, r, g, whole);
      reduce(r, g, out + 1 + Function::Outputs::kSize);
    }
    template <typename Accumulator>
    CUTLASS_DEVICE void visit_all(int r, int g, Accumulator const* sums) {
      Number out[1 + Function::Outputs::kSize + Function::Reductions::kSize][kVector];
      auto const of_source = [&](int v) {
        Number value;
        source.values(r, g, v, &value);
        return value;
      };
      compute_group<Function, kVector>(scalars, sums, of_source, readers, r, g, out);
      Writers<Target>::store(chosen, where, r, g, out);
      Writers<typename Function::Outputs>::store(chosen.given, where, r, g, out + 1);
      reduce(r, g, out + 1 + Function::Outputs::kSize);
    }
    CUTLASS_DEVICE void reduce(int r, int g, Number const (*given)[kVectorD]) {
      if constexpr (kReduces) {
        if (where.row(r) < where.rows && where.column(g) < where.columns) {
          reducers.template take<kVectorD>(r, g, given);
        }
      }
    }
    CUTLASS_DEVICE void end_row(int) {}
    CUTLASS_DEVICE void end_step(int) {
      if constexpr (kReduces) reducers.template leave_rows<kLanes>(partials(), 0, where, tile_n, thread % 32);
    }
    CUTLASS_DEVICE void end_epilogue() {
      if constexpr (kReduces) {
        Partials<Number> const partials = this->partials();
        int const warp = thread / 32, lane = thread % 32;
        __syncthreads();  // an earlier tile has read what is shared
        reducers.template share_columns<kLanes>(shared.columns, kWarps * kColumnsD, warp * kColumnsD, lane,
                                                [&](int g) { return where_D().column(g) - tile_n * kColumnsD; });
        reducers.share_whole(shared.wholes, kWarps, warp, lane);
        __syncthreads();
        for (int column = thread; column < kColumnsD; column += Threads::kThreads) {
          reducers.leave_columns(partials, 0, shared.columns, kWarps * kColumnsD, kWarps, kColumnsD, tile_n * kColumnsD,
                                 where_D().columns, tile_m, where.batch, column);
        }
        if (thread == 0) {
          reducers.leave_whole(partials, 0, shared.wholes, kWarps, where.batch, tile_m * partials.tiles_n + tile_n);
        }
        if (thread == 0) shared.done = last;
        __syncthreads();
        reducers.finish(partials, 0, chosen.given, where_D(), tile_m, tile_n, shared.done, thread, Threads::kThreads);
      }
    }
  };

  template <typename Size>
  CUTLASS_DEVICE Callbacks get_callbacks(cutlass::gemm::GemmCoord tile, int thread, Size const& size) {
    auto const first = Threads::initial_offset(thread);
    Where const where{tile.m() * kTileM + first.row(),
                      tile.n() * kTileN + first.column(),
                      int(cute::get<0>(size)),
                      int(cute::get<1>(size)),
                      0,
                      params->group.places ? 0 : tile.k()};
    Arguments chosen;
    AllPorts<Function>::choose(chosen.given, params->given, tile.k());
    EachPort<List<Source, Target>>::choose(chosen, *params, tile.k());
    return {*params, chosen, *shared, where, thread, tile.m(), tile.n(), tile.k(), {}, {}, {}, {}, {}, 0};
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
      if (target.form == PYCUTLASS_ADDRESSES) {
        AllPorts<Function>::list(tree.given, tree.target.kAddresses);
        tree.source.batch = tree.target.batch = tree.target.kAddresses;
      }
    }

    /// The same for the problems of a group, of which each has strides of its own.
    static void fill(TreeArguments& tree, pycutlass_grouped_call const& call) {
      tree.given = *static_cast<Arguments const*>(call.common.epilogue);
      AllPorts<Function>::list(tree.given, tree.target.kTables);
      point(tree.source, call.tables, PYCUTLASS_C);
      point(tree.target, call.tables, PYCUTLASS_D);
    }

   private:
    template <typename Element>
    static void point(Port<Element>& port, pycutlass_group_tables const& tables, pycutlass_role role) {
      port = {static_cast<Element*>(const_cast<void*>(static_cast<void const*>(tables.pointers[role]))),
              static_cast<int64_t>(reinterpret_cast<intptr_t>(tables.lds[role])), Port<Element>::kTables};
    }
  };
#endif
};

}  // namespace pycutlass
