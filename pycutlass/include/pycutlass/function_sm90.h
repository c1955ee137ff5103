// Epilogue functions in Hopper-native kernels: callbacks for the `store` of epilogue_sm90.h. C, or one tensor that
// takes its place, comes by TMA; all other tensors are read and written by the threads that have the sums, two columns
// at a time where these are both inside of D or both outside. Without TMA (epilogue_direct_sm90.h) C and D are, too.
#pragma once

#include "pycutlass/function_reduction.h"
#include "pycutlass/gemm_sm90.h"
#include "pycutlass/readers_sm90.h"
#include "pycutlass/top_k.h"

#include <cute/tensor.hpp>
#include <cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp>

namespace pycutlass {

/// What CUTLASS's collective knows as fusion callbacks, of a tile that `kWarps` warps store. Of a group, and of an
/// array of problems, tables list the ports of all problems. `D` describes the result, which threads write themselves
/// where it has half as many columns.
template <typename Function, typename TileShape, int kWarps, bool kIsGroup, typename D, bool kIsArray = false>
struct FunctionCallbacks : cutlass::epilogue::fusion::Sm90VisitorImpl<> {
  using Number = typename Function::Number;
  /// Of a group with reductions: where all problems have their partial results as well.
  struct GroupArguments : Function::Arguments {
    GroupPartials<Number> group;
  };
  static constexpr bool kIsListed = kIsGroup || kIsArray;
  static constexpr bool kReducesGroup = kIsGroup && Function::Reductions::kSize > 0;
  static constexpr bool kIsGated = Function::kIsGated;
  using WithoutTarget = cute::conditional_t<kReducesGroup, GroupArguments, typename Function::Arguments>;
  /// Of D with half as many columns.
  struct GatedArguments : WithoutTarget {
    Port<typename D::Element> target;
  };
  using Arguments = cute::conditional_t<kIsGated, GatedArguments, WithoutTarget>;

  static constexpr int kTileM = cute::size<0>(TileShape{}), kTileN = cute::size<1>(TileShape{});
  static constexpr int kStoredColumns = cute::gcd(32, kTileN);
  static constexpr bool kReduces = Function::Reductions::kSize > 0;
  static constexpr bool kReadsSource = Function::kReadsSource;
  static constexpr int kAxes = ReducedAxes<typename Function::Reductions>::kAxes;
  using Counted = Reducers<typename Function::Reductions, Number, 1, 1, 1>;
  /// Whether a tile is computed as a whole before it is stored: its partial results are on their way by then, and the
  /// answer which lines of tiles it ends arrives meanwhile.
  static constexpr bool kComputesFirst =
      kReduces && Counted::kHasPartials && !kReadsSource && !kIsGated && cute::is_same_v<Number, float>;
  /// Whether `synchronized` has anything to do; and whether results are of several rows, so that those outside of D
  /// must be left out.
  static constexpr bool kReducesColumns = Counted::kColumnLines > 0;
  static constexpr bool kReducesAcross = kReducesColumns || Counted::kWholes > 0;
  using Space = ReductionSpace<Function, kTileM, kTileN>;
  /// Columns of D in a stored subtile, and those that a thread has side by side: half of the product's where these are
  /// combined in pairs.
  static constexpr int kColumnsD = kIsGated ? kStoredColumns / 2 : kStoredColumns, kVectorD = kIsGated ? 1 : 2;
  static constexpr int kTileColumnsD = kIsGated ? kTileN / 2 : kTileN;
  /// Neighbouring columns of the product that are moved at a time: where they come in pairs.
  static constexpr bool kByRows = cutlass::platform::is_same<typename D::Layout, cutlass::layout::RowMajor>::value;
  static constexpr int kVector = kIsGated || (kByRows && D::kAlignment % 2 == 0) ? 2 : 1;
  using Storage = ReductionStorage<Function, kWarps, kColumnsD, 1>;

  struct NoStorage {};
  using SharedStorage = cute::conditional_t<kReduces, Storage, NoStorage>;
  struct Params {
    Arguments given;
    Partials<Number> partials;
  };

  template <typename Size>
  static constexpr Params to_underlying_arguments(Size const& sizes, Arguments const& arguments, void* workspace) {
    if constexpr (kReduces && !kIsGroup) {
      auto const size = sizes_of(sizes);
      return {arguments, Space::of(cute::get<0>(size), cute::get<1>(size), cute::get<3>(size), workspace)};
    } else {
      return {arguments, {}};
    }
  }
  template <typename Size>
  static bool can_implement(Size const&, Arguments const&) {
    return true;
  }
  template <typename Size>
  static size_t get_workspace_size(Size const& sizes, Arguments const&) {
    if constexpr (kReduces && !kIsGroup) {
      auto const size = sizes_of(sizes);
      return Space::bytes(cute::get<0>(size), cute::get<1>(size), cute::get<3>(size));
    } else {
      return 0;
    }
  }
  template <typename Size, typename Stream, typename Adapter>
  static cutlass::Status initialize_workspace(Size const&, Arguments const&, void*, Stream, Adapter) {
    return cutlass::Status::kSuccess;
  }

  Params const* params;
  SharedStorage* shared;
  int turn = -1;  // of two tiles, one after the other; -1 before the first

  CUTLASS_HOST_DEVICE FunctionCallbacks(Params const& params_, SharedStorage& shared_)
      : params(&params_), shared(&shared_) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return Function::kReadsSource; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return Function::kReadsSource; }
  template <typename Given>
  CUTLASS_DEVICE auto get_producer_load_callbacks(Given const&) {
    return cutlass::epilogue::fusion::EmptyProducerLoadCallbacks{};
  }

  /// Where the elements of a thread are in a subtile: those of two rows, in pairs of each 8 columns (epilogue_sm90.h),
  /// of which both are a group, or each.
  struct Where {
    int first_row, first_column;
    int rows, columns;
    int64_t batch;

    CUTLASS_DEVICE int row(int r) const { return first_row + 8 * r; }
    CUTLASS_DEVICE int column(int g) const { return element(kVector * g); }
    CUTLASS_DEVICE int element(int c) const { return first_column + c / 2 * 8 + c % 2; }
  };

  /// The rows of a thread in all subtiles of a tile, for reductions.
  template <int kRows>
  struct RowsOfTile {
    int first_row;
    int rows;
    int64_t batch;

    CUTLASS_DEVICE int row(int r) const { return first_row + r / 2 * kRows + r % 2 * 8; }
  };

  /// Callbacks of one tile, whose subtiles have `kRows` x `kColumns` elements, `kDown` of them one below the other.
  template <int kRows, int kColumns, int kDown, int kSubtiles, typename Source>
  struct TileCallbacks {
    static constexpr int kGroups = kColumns / 8;
    static constexpr int kLine = kVectorD * kGroups, kReductions = Function::Reductions::kSize;
    static_assert(kColumns == kStoredColumns);
    /// Of a group: the ports of one problem, and its D where threads write that.
    using Given = cute::conditional_t<kIsGated, Arguments, typename Function::Arguments>;
    using AllReaders = TileReaders<Function, kGroups, kVector, kDown, kSubtiles / kDown>;

    Params const& params;
    cute::conditional_t<kIsListed, Given, Given const&> given;
    SharedStorage& shared;
    Source const& source;
    Where tile;
    int thread, tile_m, tile_n, problem, turn;
    bool is_first;  // tile of these threads
    Number scalars[Function::kScalars + 1];
    AllReaders readers;
    Reducers<typename Function::Reductions, Number, 2 * kDown, kGroups, kVectorD> reducers;
    Selectors<typename Function::Reductions, Number, 2 * kDown> selectors;
    TileCount count;  // of the first thread

    CUTLASS_DEVICE Partials<Number> partials() const {
      if constexpr (kReducesGroup) {
        return Space::of(tile.rows, tile.columns, params.given.group, problem);
      } else {
        return params.partials;
      }
    }
    CUTLASS_DEVICE Where where(int subtile) const {
      Where place = tile;
      place.first_row += subtile % kDown * kRows;
      place.first_column += subtile / kDown * kColumns;
      return place;
    }
    /// Where the elements of D are, and of all that is like it.
    CUTLASS_DEVICE static auto of_D(Where const& place) {
      if constexpr (kIsGated) {
        return HalfColumns<Where>(place);
      } else {
        return place;
      }
    }
    CUTLASS_DEVICE void load_elements(int subtile) {
      if (subtile < kSubtiles) readers.load_elements(given, where(subtile), subtile, thread % 4);
    }
    CUTLASS_DEVICE void begin() {
      // What this thread itself reads is of kernels before this one. To wait empties the L1 cache, each time.
      if (is_first) cutlass::arch::wait_on_dependent_grids();
      Function::read_scalars(params.given, scalars);
      reducers.begin_rows();
      selectors.begin_rows();
      reducers.begin_whole();
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < AllReaders::kHeld; ++j) readers.load_columns(given, where(j * kDown), j);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kDown; ++i) readers.load_rows(given, where(i), i);
      CUTLASS_PRAGMA_UNROLL
      for (int subtile = 0; subtile < kSubtilesAhead; ++subtile) load_elements(subtile);
    }
    CUTLASS_DEVICE void begin_loop(int i, int j) {
      load_elements(j * kDown + i + kSubtilesAhead);
      if (i == 0 && j > 0) {
        int const next = j - 1 + AllReaders::kHeld;
        if (next < kSubtiles / kDown) readers.load_columns(given, where(next * kDown), next);
      }
      if (i == 0) reducers.begin_columns();
    }
    CUTLASS_DEVICE void previsit(int, int, int, bool) {}

    template <typename Accumulator, int kFragment>
    CUTLASS_DEVICE auto visit(cutlass::Array<Accumulator, kFragment> const& sums, int, int i, int j) {
      static_assert(kFragment == 4 * kGroups);
      if constexpr (kIsGated) {
        visit_pairs(sums, i, j);
      } else {
        return visit_all(sums, i, j);
      }
    }
    /// Writes D and all else that a subtile comes to, of the two columns that this thread has side by side.
    template <typename Accumulator, int kFragment>
    CUTLASS_DEVICE void visit_pairs(cutlass::Array<Accumulator, kFragment> const& sums, int i, int j) {
      constexpr int kMade = 1 + Function::Outputs::kSize + kReductions, kWhole = Function::WholeOutputs::kSize;
      Where const place = where(j * kDown + i);
      auto const each = readers.loaded(i, j);
      auto const halves = readers.loaded_halves(i, j, thread % 4);
      Number made[kMade][2][kGroups];  // of each row
      CUTLASS_PRAGMA_UNROLL
      for (int pair = 0; pair < kFragment / 2; ++pair) {
        int const r = pair % 2, g = pair / 2;
        Number out[kMade][1], whole[kWhole > 0 ? kWhole : 1][2];
        Accumulator const of_pair[2] = {sums[2 * pair], sums[2 * pair + 1]};
        compute_pairs<Function, 2>(scalars, of_pair, each, halves, r, g, out, whole);
        Writers<typename Function::WholeOutputs>::template store<true>(given, place, r, g, whole);
        CUTLASS_PRAGMA_UNROLL
        for (int o = 0; o < kMade; ++o) made[o][r][g] = out[o][0];
      }
      // A matrix that is read may be D, whose elements other threads of the warp write.
      if constexpr (Function::HalfInputs::kSize > 0) __syncwarp();
      HalfWriter<kGroups, D::kAlignment, (kMade > 1 || kWhole > 0)>::store(given.target, place, thread % 4, made[0]);
      HalfWriters<kGroups, typename Function::Outputs>::store(given, place, thread % 4, made + 1);
      if constexpr (kReduces) {
        Number lines[2][kReductions][kLine];
        CUTLASS_PRAGMA_UNROLL
        for (int r = 0; r < 2; ++r) {
          CUTLASS_PRAGMA_UNROLL
          for (int o = 0; o < kReductions; ++o) {
            CUTLASS_PRAGMA_UNROLL
            for (int g = 0; g < kGroups; ++g) lines[r][o][g] = made[1 + Function::Outputs::kSize + o][r][g];
          }
        }
        reduce(lines, place, i);
      }
    }
    template <typename Accumulator, int kFragment>
    CUTLASS_DEVICE auto visit_all(cutlass::Array<Accumulator, kFragment> const& sums, int i, int j) {
      Where const place = where(j * kDown + i);
      auto const each = readers.loaded(i, j);
      cutlass::Array<Number, kFragment> result;
      Number lines[2][kReduces ? kReductions : 1][kLine];  // of each row, what is reduced
      CUTLASS_PRAGMA_UNROLL
      for (int pair = 0; pair < kFragment / 2; ++pair) {
        int const r = pair % 2;
        CUTLASS_PRAGMA_UNROLL
        for (int first = 0; first < 2; first += kVector) {
          int const g = (pair / 2 * 2 + first) / kVector;
          Number out[1 + Function::Outputs::kSize + Function::Reductions::kSize][kVector];
          Accumulator of_group[kVector];
          CUTLASS_PRAGMA_UNROLL
          for (int v = 0; v < kVector; ++v) of_group[v] = sums[2 * pair + first + v];
          auto const of_source = [&](int v) { return source(2 * pair + first + v); };
          compute_group<Function, kVector>(scalars, of_group, of_source, each, r, g, out);
          Writers<typename Function::Outputs>::store(given, place, r, g, out + 1);
          CUTLASS_PRAGMA_UNROLL
          for (int v = 0; v < kVector; ++v) {
            result[2 * pair + first + v] = out[0][v];
            if constexpr (kReduces) {
              CUTLASS_PRAGMA_UNROLL
              for (int o = 0; o < kReductions; ++o) {
                lines[r][o][kVector * g + v] = out[1 + Function::Outputs::kSize + o][v];
              }
            }
          }
        }
      }
      if constexpr (kReduces) reduce(lines, place, i);
      return result;
    }
    /// Takes what is reduced of both rows of a subtile, and shares columns where it is the last one of them. Most are
    /// inside of D as a whole: without a branch for each row, both are taken at the same time.
    template <int kLines>
    CUTLASS_DEVICE void reduce(Number (&lines)[2][kLines][kLine], Where const& place, int i) {
      bool const is_cut = place.first_column - 2 * (thread % 4) + kColumns > place.columns;  // at the edge of D
      if (!is_cut && (!kReducesAcross || place.row(1) < place.rows)) {
        CUTLASS_PRAGMA_UNROLL
        for (int r = 0; r < 2; ++r) take_row(lines[r], place, i, r);
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int r = 0; r < 2; ++r) {
          if (kReducesAcross && place.row(r) >= place.rows) continue;
          reducers.template leave_out<kLine>(lines[r],
                                             [&](int c) { return place.element(2 / kVectorD * c) < place.columns; });
          take_row(lines[r], place, i, r);
        }
      }
      int const lane = thread % 32;
      if (i == kDown - 1) {
        reducers.template share_columns<4>(shared.columns, kWarps * kColumnsD, thread / 32 * kColumnsD, lane,
                                           [&](int g) { return kVectorD * (4 * g + lane % 4); });
      }
    }
    template <int kLines>
    CUTLASS_DEVICE void take_row(Number (&lines)[kLines][kLine], Where const& place, int i, int r) {
      reducers.template take<kLine>(2 * i + r, 0, lines);
      selectors.template take<kLine>(2 * i + r, lines,
                                     [&](int c) { return place.element(2 / kVectorD * c) / (2 / kVectorD); });
    }
    /// Between two barriers of the threads that store the tile.
    CUTLASS_DEVICE void synchronized(int i, int j) {
      if constexpr (kReduces) {
        if (i != kDown - 1 || is_outside()) return;
        reducers.leave_columns(partials(), 0, shared.columns, kWarps * kColumnsD, kWarps, kColumnsD,
                               tile_n * kTileColumnsD + j * kColumnsD, of_D(tile).columns, tile_m, tile.batch, thread);
      }
    }
    /// Whether the tile belongs to a cluster of which D has less.
    CUTLASS_DEVICE bool is_outside() const { return tile_m * kTileM >= tile.rows || tile_n * kTileN >= tile.columns; }
    CUTLASS_DEVICE static void synchronize() {
      cutlass::arch::NamedBarrier::sync(32 * kWarps, cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
    }
    /// Leaves what the tile comes to, and has it counted: when all of it has been visited.
    CUTLASS_DEVICE void leave() {
      if constexpr (kReduces) {
        if (is_outside()) return;
        Partials<Number> const partials = this->partials();
        RowsOfTile<kRows> const rows{tile.first_row, tile.rows, tile.batch};
        reducers.template join_rows<4>(thread % 32);
        reducers.template leave_rows<4>(partials, 0, rows, tile_n, thread % 32);
        selectors.template store<4>(given, rows, thread % 32);
        if constexpr (kAxes & 4) {
          reducers.share_whole(shared.wholes, kWarps, thread / 32, thread % 32);
          synchronize();
          if (thread == 0) {
            reducers.leave_whole(partials, 0, shared.wholes, kWarps, tile.batch, tile_m * partials.tiles_n + tile_n);
          }
        }
        // Not earlier: who is counted last waits for what others have not left yet, and its neighbours for it.
        if (thread == 0) count.template ask<kAxes>(partials, tile.batch, tile_m, tile_n);
      }
    }
    /// Joins what tiles have left. All threads do it in one tile: where each warp did it for rows of its own, it kept
    /// its neighbours waiting in four tiles.
    CUTLASS_DEVICE void end() {
      if constexpr (Counted::kHasPartials) {
        if (is_outside()) return;
        Partials<Number> const partials = this->partials();
        if (thread == 0) shared.done[turn] = count.template last<kAxes>(partials);
        synchronize();
        int const done = shared.done[turn];
        auto const rows = [&](auto const& use) {
          for_all(tile_m * kTileM, kTileM, tile.rows, thread, 32 * kWarps, use);
        };
        reducers.finish_rows(partials, 0, given, of_D(tile), tile_n, done, rows);
        reducers.finish(partials, 0, given, of_D(tile), tile_m, tile_n, done, thread, 32 * kWarps);
      }
    }
  };

  template <int kRows, int kColumns, typename Size, typename Coord, typename Source>
  CUTLASS_DEVICE auto tile_callbacks(Size const& size, Coord const& coord, Source const& source, int thread) {
    constexpr int kDown = kTileM / kRows, kSubtiles = kDown * (kTileN / kColumns);
    int const lane = thread % 32, tile_m = cute::get<0>(coord), tile_n = cute::get<1>(coord);
    int const batch = int(cute::get<3>(coord)), rows = int(cute::get<0>(size)), columns = int(cute::get<1>(size));
    bool const is_first = turn < 0, is_outside = tile_m * kTileM >= rows || tile_n * kTileN >= columns;
    if (is_first || !is_outside) turn = turn != 1;  // tiles outside of D have no barrier, and take no turn
    Where const where{tile_m * kTileM + thread / 32 * 16 + lane / 4, tile_n * kTileN + 2 * (lane % 4), rows, columns,
                      kIsGroup ? 0 : batch};
    using Made = TileCallbacks<kRows, kColumns, kDown, kSubtiles, Source>;
    if constexpr (kIsListed) {
      typename Made::Given chosen;
      using Ports = typename Function::Arguments;
      AllPorts<Function>::choose(static_cast<Ports&>(chosen), static_cast<Ports const&>(params->given), batch);
      if constexpr (kIsGated) chosen.target = params->given.target.of(batch);
      return Made{*params, chosen, *shared,  source, where, thread, tile_m, tile_n,
                  batch,   turn,   is_first, {},     {},    {},     {},     {}};
    } else {
      return Made{*params, params->given, *shared,  source, where, thread, tile_m, tile_n,
                  batch,   turn,          is_first, {},     {},    {},     {},     {}};
    }
  }
};

/// What GemmSm90 and GemmGroupedSm90 take.
template <typename Function>
struct FunctionSm90 {
  using ElementCompute = float;

  template <typename TileShape, typename C, typename D, typename Schedule>
  struct Tree {
    static constexpr bool kIsArray = IsArray<Schedule>::value;
    static constexpr bool kIsCooperativeGroup =
        cute::is_same_v<Schedule, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>;
    static constexpr bool kIsGroup =
        kIsCooperativeGroup || cute::is_same_v<Schedule, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;
    static constexpr bool kIsCooperative =
        kIsCooperativeGroup || cute::is_same_v<Schedule, cutlass::epilogue::TmaWarpSpecializedCooperative> ||
        cute::is_same_v<Schedule, OfArray<cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>>;
    static constexpr int kWarpGroups = !kIsCooperative                                        ? 1
                                       : cute::size<0>(TileShape{}) == kRowsOfThreeWarpGroups ? 3
                                                                                              : 2;
    using Type = FunctionCallbacks<Function, TileShape, 4 * kWarpGroups, kIsGroup, D, kIsArray>;
  };

#if !PYCUTLASS_DEVICE_SIDE
  template <typename TreeArguments>
  struct Launch {
    using Arguments = typename Function::Arguments;

    static void describe(EpilogueFields<Arguments>& fields) { Arguments::describe(fields); }
    static Arguments const& of(pycutlass_call const& call) { return *static_cast<Arguments const*>(call.epilogue); }
    static bool reads_ahead(pycutlass_call const& call) { return Function::reads_device_scalars(of(call)); }
    static void fill(TreeArguments& tree, pycutlass_call const& call) {
      static_cast<Arguments&>(tree) = of(call);
      if constexpr (Function::kIsGated) {
        pycutlass_operand const& target = call.operands[PYCUTLASS_D];
        tree.target = {static_cast<decltype(tree.target.data)>(target.data), target.stride[0], target.stride[1]};
      }
      if (call.operands[PYCUTLASS_D].form == PYCUTLASS_ADDRESSES) {
        AllPorts<Function>::list(static_cast<Arguments&>(tree), Port<char>::kAddresses);
        if constexpr (Function::kIsGated) tree.target.batch = tree.target.kAddresses;
      }
    }

    /// Has the ports be tables, of a group; D as well where threads write it.
    static void list(TreeArguments& tree, pycutlass_group_tables const& tables) {
      AllPorts<Function>::list(static_cast<Arguments&>(tree), Port<char>::kTables);
      if constexpr (Function::kIsGated) {
        void const *const targets = tables.pointers[PYCUTLASS_D], *const lds = tables.lds[PYCUTLASS_D];
        tree.target = {static_cast<decltype(tree.target.data)>(const_cast<void*>(targets)),
                       static_cast<int64_t>(reinterpret_cast<intptr_t>(lds)), tree.target.kTables};
      }
    }

    /// The tensor that comes by TMA: C, or the one that takes its place.
    static pycutlass_operand source(pycutlass_call const& call, pycutlass_operand operand) {
      return Function::source(of(call), operand);
    }
  };
#endif
};

template <typename Function>
struct IsFunction<FunctionSm90<Function>> : cute::true_type {};
#if !PYCUTLASS_DEVICE_SIDE
template <typename Function>
struct AxesOf<FunctionSm90<Function>> : ReducedAxes<typename Function::Reductions> {};
#endif

}  // namespace pycutlass
