// Epilogue functions in kernels of CUTLASS's 2.x API: one visitor (cutlass/epilogue/threadblock/fusion) that reads and
// writes all tensors, D among them.
#pragma once

#include "pycutlass/function_reduction.h"
#include "pycutlass/prefetched_inputs.h"
#include "pycutlass/top_k.h"

#include <cute/tensor.hpp>
#include <cutlass/gemm_coord.h>

namespace pycutlass {

/// Whether steps of an epilogue may be begun alone (gemm_visitor.h).
template <typename Threads, typename = void>
struct IsAnyStep : cutlass::platform::false_type {};
template <typename Threads>
struct IsAnyStep<Threads, cute::void_t<decltype(Threads::kIsAnyStep)>> : cutlass::platform::true_type {};

/// Visits the elements of a tile. `Threads` is the thread map of the epilogue.
template <typename Function, typename Threads, typename C>
struct FunctionVisitor {
  using Number = typename Function::Number;
  using Element = typename C::Element;

  static constexpr int kVector = Threads::kElementsPerAccess;
  static constexpr int kRows = Threads::Iterations::kCluster * Threads::Iterations::kGroup * Threads::Iterations::kRow;
  static constexpr int kGroups = Threads::Iterations::kColumn;
  static constexpr int kSteps = Threads::Count::kTile;

  using Tile = typename Threads::CtaShapeMNL;
  static constexpr int kTileM = cute::size<0>(Tile{}), kTileN = cute::size<1>(Tile{});
  static constexpr int kWarps = Threads::kThreads / 32, kLanes = Threads::Detail::kAccessWidth;
  static constexpr bool kReduces = Function::Reductions::kSize > 0;
  static constexpr int kAxes = ReducedAxes<typename Function::Reductions>::kAxes;
  using Counted = Reducers<typename Function::Reductions, Number, 1, 1, 1>;
  /// Whether results are of several rows, so that those outside of D must be left out.
  static constexpr bool kReducesAcross = Counted::kColumnLines > 0 || Counted::kWholes > 0;
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
  /// What a thread reads for one step.
  struct StepReaders {
    Readers<typename Function::Inputs, typename Function::Arguments, kRows, kGroups, kVector> all;
    Readers<Source, Arguments, kRows, kGroups, kVector> source;
    Readers<typename Function::HalfInputs, typename Function::Arguments, kRows, kGroups, kVectorD> halves;
    static constexpr int kRowBytes =
        decltype(all)::kRowBytes + decltype(source)::kRowBytes + decltype(halves)::kRowBytes;
  };
  /// Steps ahead of the present one whose rows are read, so that what the memory takes passes unnoticed; as many as 16
  /// registers hold.
  static constexpr int kMostAhead = StepReaders::kRowBytes > 16 ? 64 / StepReaders::kRowBytes : 4;
  static constexpr bool kReadsAhead = StepReaders::kRowBytes > 0 && !IsAnyStep<Threads>::value;
  static constexpr int kAhead = !kReadsAhead ? 0 : kMostAhead < 1 ? 1 : kMostAhead;

  template <typename Size>
  static Params to_underlying_arguments(Size const&, Arguments const& arguments, void*) {
    return arguments;
  }

  /// Asks for what the threads of a tile will read, each for a part of it: to be called before their mainloop.
  CUTLASS_DEVICE static void prefetch(Params const& params, cutlass::gemm::GemmCoord const& tile, int rows, int columns,
                                      int thread) {
    using Inputs = typename Function::Inputs;
    using HalfInputs = typename Function::HalfInputs;
    Arguments chosen;
    EachPort<List<Inputs, HalfInputs>>::choose(chosen.given, params.given, tile.k());
    EachPort<Source>::choose(chosen, params, tile.k());
    TileOfThread const whole{tile.m() * kTileM, tile.n() * kTileN, rows, columns, thread};
    TileOfThread const half{whole.first_row, tile.n() * kColumnsD, rows, columns / 2, thread};
    PrefetchedInputs<Inputs, kTileM, kTileN, Threads::kThreads>::ask(chosen.given, whole);
    PrefetchedInputs<Source, kTileM, kTileN, Threads::kThreads>::ask(chosen, whole);
    PrefetchedInputs<HalfInputs, kTileM, kColumnsD, Threads::kThreads>::ask(chosen.given, half);
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

  /// The rows of a thread in all steps, for reductions.
  struct RowsOfTile {
    Where const& where;
    int rows = where.rows;
    int64_t batch = where.batch;

    CUTLASS_DEVICE int row(int r) const {
      Where of_step = where;
      of_step.step = r / kRows;
      return of_step.row(r % kRows);
    }
  };

  struct Callbacks {
    Params const& params;
    Arguments chosen;  // of which there are the ports alone, of one matrix
    SharedStorage& shared;
    Where where;
    int thread, tile_m, tile_n, matrix;
    Number scalars[Function::kScalars + 1];
    StepReaders readers[kAhead + 1];
    Reducers<typename Function::Reductions, Number, kSteps * kRows, kGroups, kVectorD> reducers;
    Selectors<typename Function::Reductions, Number, kRows> selectors;
    TileCount count;  // of the first thread

    /// Asked for where they are needed, so that they take no registers meanwhile.
    CUTLASS_DEVICE Partials<Number> partials() const {
      return params.group.places ? Space::of(where.rows, where.columns, params.group, matrix) : params.partials;
    }
    /// Where the elements of D are, and of all that is like it.
    CUTLASS_DEVICE static auto of_D(Where const& where) {
      if constexpr (Function::kIsGated) {
        return HalfColumns<Where>(where);
      } else {
        return where;
      }
    }
    CUTLASS_DEVICE auto where_D() const { return of_D(where); }
    CUTLASS_DEVICE void load(int step) {
      if (step >= kSteps) return;
      StepReaders& each = readers[step % (kAhead + 1)];
      Where place = where;
      place.step = step;
      each.all.load_rows(chosen.given, place);
      each.all.load_elements(chosen.given, place);
      each.source.load_elements(chosen, place);
      each.halves.load_rows(chosen.given, of_D(place));
      each.halves.load_elements(chosen.given, of_D(place));
    }
    /// Where pairs have more results than D, rows are computed one after the other: registers do not hold all at once.
    static constexpr bool kBranches =
        Function::kIsGated &&
        Function::Outputs::kSize + Function::WholeOutputs::kSize + Function::Reductions::kSize > 0;
    CUTLASS_DEVICE void begin_epilogue() {
      if constexpr (kReduces) {
        if (thread == 0) count.template ask<kAxes>(partials(), where.batch, tile_m, tile_n);
      }
      Function::read_scalars(params.given, scalars);
      readers[0].all.load_columns(chosen.given, where);
      readers[0].halves.load_columns(chosen.given, where_D());
      CUTLASS_PRAGMA_UNROLL
      for (int i = 1; i <= kAhead; ++i) readers[i] = readers[0];
      reducers.begin_rows();
      reducers.begin_columns();
      reducers.begin_whole();
    }
    CUTLASS_DEVICE void begin_step(int step) {
      selectors.begin_rows();
      where.step = step;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (step == 0) load(i);
      }
      load(step + kAhead);
    }
    CUTLASS_DEVICE void begin_row(int) {}
    template <typename Accumulator, int kCount>
    CUTLASS_DEVICE void visit(int step, int r, int g, int, cutlass::Array<Accumulator, kCount> const& accumulators) {
      static_assert(kCount == kVector);
      Accumulator const* const sums = reinterpret_cast<Accumulator const*>(&accumulators);
      if constexpr (Function::kIsGated) {
        visit_pairs(step, r, g, sums);
      } else {
        visit_all(step, r, g, sums);
      }
    }
    template <typename Accumulator>
    CUTLASS_DEVICE void visit_pairs(int step, int r, int g, Accumulator const* sums) {
      StepReaders const& each = readers[step % (kAhead + 1)];
      constexpr int kWhole = Function::WholeOutputs::kSize;
      Number out[1 + Function::Outputs::kSize + Function::Reductions::kSize][kVectorD];
      Number whole[kWhole > 0 ? kWhole : 1][kVector];
      compute_pairs<Function, kVector>(scalars, sums, each.all, each.halves, r, g, out, whole);
      Writers<Target>::template store<kBranches>(chosen, where_D(), r, g, out);
      Writers<typename Function::Outputs>::template store<kBranches>(chosen.given, where_D(), r, g, out + 1);
      Writers<typename Function::WholeOutputs>::template store<kBranches>(chosen.given, where, r, g, whole);
      reduce(step, r, g, out + 1 + Function::Outputs::kSize);
    }
    template <typename Accumulator>
    CUTLASS_DEVICE void visit_all(int step, int r, int g, Accumulator const* sums) {
      StepReaders const& each = readers[step % (kAhead + 1)];
      Number out[1 + Function::Outputs::kSize + Function::Reductions::kSize][kVector];
      auto const of_source = [&](int v) {
        Number value;
        each.source.values(r, g, v, &value);
        return value;
      };
      compute_group<Function, kVector>(scalars, sums, of_source, each.all, r, g, out);
      Writers<Target>::store(chosen, where, r, g, out);
      Writers<typename Function::Outputs>::store(chosen.given, where, r, g, out + 1);
      reduce(step, r, g, out + 1 + Function::Outputs::kSize);
    }
    CUTLASS_DEVICE void reduce(int step, int r, int g, Number const (*given)[kVectorD]) {
      if constexpr (kReduces) {
        bool const is_taken = (!kReducesAcross || where.row(r) < where.rows) && where.column(g) < where.columns;
        if constexpr (kBranches) {
          if (is_taken) reducers.template take<kVectorD>(step * kRows + r, g, given);
        } else {
          // What is outside of D is taken, and forgotten: behind a branch, each row would wait for the one before.
          auto const before = reducers;
          reducers.template take<kVectorD>(step * kRows + r, g, given);
          if (!is_taken) reducers = before;
        }
        if (is_taken) selectors.template take<kVectorD>(r, given, [&](int v) { return where_D().column(g) + v; });
      }
    }
    CUTLASS_DEVICE void end_row(int) {}
    CUTLASS_DEVICE void end_step(int) { selectors.template store<kLanes>(chosen.given, where, thread % 32); }
    CUTLASS_DEVICE void end_epilogue() {
      if constexpr (kReduces) {
        Partials<Number> const partials = this->partials();
        int const warp = thread / 32, lane = thread % 32;
        reducers.template join_rows<kLanes>(lane);
        reducers.template leave_rows<kLanes>(partials, 0, RowsOfTile{where}, tile_n, lane);
        if constexpr (kReducesAcross) {
          reducers.template share_columns<kLanes>(shared.columns, kWarps * kColumnsD, warp * kColumnsD, lane,
                                                  [&](int g) { return where_D().column(g) - tile_n * kColumnsD; });
          reducers.share_whole(shared.wholes, kWarps, warp, lane);
          __syncthreads();
          for (int column = thread; column < kColumnsD; column += Threads::kThreads) {
            reducers.leave_columns(partials, 0, shared.columns, kWarps * kColumnsD, kWarps, kColumnsD,
                                   tile_n * kColumnsD, tile_m, where.batch, column);
          }
          if (thread == 0) {
            reducers.leave_whole(partials, 0, shared.wholes, kWarps, where.batch, tile_m * partials.tiles_n + tile_n);
          }
        }
        if (thread == 0) shared.done[0] = count.template last<kAxes>(partials);
        __syncthreads();
        reducers.finish_all(partials, chosen.given, where_D(), tile_m, tile_n, shared.done[0], thread,
                            Threads::kThreads);
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
    return {*params, chosen, *shared, where, thread, tile.m(), tile.n(), tile.k(), {}, {}, {}, {}, {}};
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
