// The callbacks of epilogue functions in Hopper-native kernels, for the `store` of epilogue_sm90.h. C, or one tensor
// that takes its place, comes by TMA; all other tensors are read and written by the threads that have the sums, two
// columns at a time where these are both inside of D or both outside. Without TMA (epilogue_direct_sm90.h) C and D are,
// too.
#pragma once

#include "pycutlass/ended_lines.h"
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
  /// Whether `synchronized` has anything to do; and whether results are of several rows, so that those outside of D
  /// must be left out.
  static constexpr bool kReducesColumns = Counted::kColumnLines > 0;
  static constexpr bool kReducesAcross = kReducesColumns || Counted::kWholes > 0;
  /// Columns of D in a stored subtile, and those that a thread has side by side: half of the product's where these are
  /// combined in pairs.
  static constexpr int kColumnsD = kIsGated ? kStoredColumns / 2 : kStoredColumns, kVectorD = kIsGated ? 1 : 2;
  static constexpr int kTileColumnsD = kIsGated ? kTileN / 2 : kTileN;
  /// Neighbouring columns of the product that are moved at a time: where they come in pairs.
  static constexpr bool kByRows = cutlass::platform::is_same<typename D::Layout, cutlass::layout::RowMajor>::value;
  static constexpr int kVector = kIsGated || (kByRows && D::kAlignment % 2 == 0) ? 2 : 1;
  using Storage = ReductionStorage<Function, kWarps, kColumnsD, 1>;
  /// Whether lines of tiles are joined by threads that have no more tiles (`end_lines`), where a kernel asks for it.
  static constexpr bool kJoinsLater = Counted::kHasPartials && !Counted::kOfTile && !kIsListed;
  using Space = ReductionSpace<Function, kTileM, kTileN, kJoinsLater>;
  using Ended = EndedLines<kAxes, 32 * kWarps, Number>;

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
  int turn = -1;             // of two tiles, one after the other; -1 before the first
  bool joins_later = false;  // which a kernel asks for that calls `end_lines`

  CUTLASS_HOST_DEVICE FunctionCallbacks(Params const& params_, SharedStorage& shared_)
      : params(&params_), shared(&shared_) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return Function::kReadsSource; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return Function::kReadsSource; }
  template <typename Given>
  CUTLASS_DEVICE auto get_producer_load_callbacks(Given const&) {
    return cutlass::epilogue::fusion::EmptyProducerLoadCallbacks{};
  }
  /// Two words that threads share which store a tile together, of two such groups that take turns. To be called by
  /// whole warps.
  CUTLASS_DEVICE int* words_of_group() const {
    return shared->done + (kWarps == 4 ? cutlass::canonical_warp_group_idx() % 2 * 2 : 0);
  }
  CUTLASS_DEVICE void begin_joining(int thread) {
    joins_later = true;
    Ended::begin(words_of_group(), thread);
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
    int* ended;     // words of those that join lines of tiles when they have no more tiles
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
    CUTLASS_DEVICE void load_elements(int subtile) {
      if (subtile < kSubtiles) readers.load_elements(given, where(subtile), subtile, thread % 4);
    }
    CUTLASS_DEVICE void begin() {
      // What this thread itself reads is of kernels before this one. To wait empties the L1 cache, each time.
      if (is_first) cutlass::arch::wait_on_dependent_grids();
      if constexpr (kJoinsLater) {
        if (ended && thread == 0 && !is_outside()) ask();  // and has the answer when the tile is stored
      }
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
                               tile_n * kTileColumnsD + j * kColumnsD, tile_m, tile.batch, thread);
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
        if (!ended && thread == 0) ask();
      }
    }
    /// Joins the lines that end with the tile, or notes them for later.
    CUTLASS_DEVICE void end() {
      if constexpr (Counted::kHasPartials) {
        if (is_outside()) return;
        Partials<Number> const partials = this->partials();
        if (ended) {
          if (thread == 0) {
            int const done = count.template last<kAxes>(partials, Ended::kOthers);
            Ended::note(partials, ended, done, tile.batch, tile_m, tile_n);
          }
          return;
        }
        if (thread == 0) shared.done[turn] = count.template last<kAxes>(partials);
        synchronize();
        join(partials, given, tile, tile_m, tile_n, shared.done[turn], thread);
      }
    }
    CUTLASS_DEVICE void ask() {
      count.template ask<kAxes>(partials(), tile.batch, tile_m, tile_n, ended ? Ended::kOthers : 0);
    }
  };

  /// Where the elements of D are, and of all that is like it.
  CUTLASS_DEVICE static auto of_D(Where const& place) {
    if constexpr (kIsGated) {
      return HalfColumns<Where>(place);
    } else {
      return place;
    }
  }

  /// Joins the lines that end with a tile, which `done` tells. All threads do it in one tile: where each warp did it
  /// for rows of its own, it kept its neighbours waiting in four tiles.
  template <typename Given>
  CUTLASS_DEVICE static void join(Partials<Number> const& partials, Given const& given, Where const& tile, int tile_m,
                                  int tile_n, int done, int thread) {
    Counted::finish_all(partials, given, of_D(tile), tile_m, tile_n, done, thread, 32 * kWarps);
  }

  /// Joins the lines that these threads, number `own` of `all` that share a tile, have ended. To be called once, when
  /// they have no more tiles.
  template <typename Size>
  CUTLASS_DEVICE void end_lines(Size const& size, int64_t own, int64_t all, int thread) {
    cutlass::arch::wait_on_dependent_grids();  // if there was no tile
    Partials<Number> const& partials = params->partials;
    int const group = kWarps == 4 ? cutlass::canonical_warp_group_idx() % 2 : 0;
    Ended::count_others(partials, words_of_group(), own, all, thread);
    Ended::join_all(partials, words_of_group(), group, thread, [&](LineOfTiles const& line) {
      Where const tile{0, 0, int(cute::get<0>(size)), int(cute::get<1>(size)), line.batch};
      join(partials, params->given, tile, line.tile_m, line.tile_n, 1 << line.axis, thread);
    });
  }

  template <int kRows, int kColumns, typename Size, typename Coord, typename Source>
  CUTLASS_DEVICE auto tile_callbacks(Size const& size, Coord const& coord, Source const& source, int thread) {
    constexpr int kDown = kTileM / kRows, kSubtiles = kDown * (kTileN / kColumns);
    int const lane = thread % 32, tile_m = cute::get<0>(coord), tile_n = cute::get<1>(coord);
    int const batch = int(cute::get<3>(coord)), rows = int(cute::get<0>(size)), columns = int(cute::get<1>(size));
    bool const is_first = turn < 0, is_outside = tile_m * kTileM >= rows || tile_n * kTileN >= columns;
    if (is_first || !is_outside) turn = turn != 1;  // tiles outside of D have no barrier, and take no turn
    int* ended = nullptr;
    if constexpr (kJoinsLater) {
      if (joins_later) ended = words_of_group();
    }
    Where const where{tile_m * kTileM + thread / 32 * 16 + lane / 4, tile_n * kTileN + 2 * (lane % 4), rows, columns,
                      kIsGroup ? 0 : batch};
    using Made = TileCallbacks<kRows, kColumns, kDown, kSubtiles, Source>;
    if constexpr (kIsListed) {
      typename Made::Given chosen;
      using Ports = typename Function::Arguments;
      AllPorts<Function>::choose(static_cast<Ports&>(chosen), static_cast<Ports const&>(params->given), batch);
      if constexpr (kIsGated) chosen.target = params->given.target.of(batch);
      return Made{*params, chosen,   *shared, source, where, thread, tile_m, tile_n, batch,
                  turn,    is_first, ended,   {},     {},    {},     {},     {}};
    } else {
      return Made{*params, params->given, *shared, source, where, thread, tile_m, tile_n, batch,
                  turn,    is_first,      ended,   {},     {},    {},     {},     {}};
    }
  }
};

}  // namespace pycutlass
