// What a thread has of the reductions of an epilogue function, and what it does with it: takes values, joins them with
// those of its warp and its threadblock, leaves partial results in the workspace (`Partials`), and joins those at last.
#pragma once

#include "pycutlass/partial_results.h"

namespace pycutlass {

/// One element for each matrix of a batch.
template <auto kMember, int kAlignment>
struct Whole : PortAt<kMember, kAlignment> {};

/// Results of each tile alone, as the original's trees left them: an element for each row of D for each tile across, or
/// one for each column for each tile down.
template <auto kMember, int kAlignment>
struct RowTiles : PortAt<kMember, kAlignment> {};
template <auto kMember, int kAlignment>
struct ColumnTiles : PortAt<kMember, kAlignment> {};

/// A reduction, and the port that its results go to: a Column, a Row or a Whole, or those of tiles.
template <typename Kind, typename Port>
struct Reduction;
template <typename Kind, typename Port>
struct EachPort<Reduction<Kind, Port>> : EachPort<Port> {};

/// Calls `use` with the first of 32 numbers that this thread's warp has, of `count` from `first` on that are shared out
/// among warps, and with how many these are: fewer at the end, or none. All warps call it as often.
template <typename Use>
CUTLASS_DEVICE void for_blocks(int first, int count, int thread, int threads, Use const& use) {
  for (int i = 0; i < count; i += threads) {
    int const block = i + 32 * function::warp_of(thread);
    use(first + block, cutlass::platform::min(count - block, 32));
  }
}

/// What a thread has of one reduction, for `kRows` rows and `kGroups` groups of `kVector` columns.
template <typename Reduction, typename Number, int kRows, int kGroups, int kVector>
struct Reducer;

template <typename Kind_, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind_, Column<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Kind = Kind_;
  static constexpr int kColumnLines = 0, kWholes = 0;
  static constexpr bool kHasPartials = true, kOfTile = false;
  Number values[kRows];

  CUTLASS_DEVICE void begin_rows() {
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) values[r] = Kind::template begin<Number>();
  }
  CUTLASS_DEVICE void begin_columns() {}
  CUTLASS_DEVICE void begin_whole() {}
  template <int kCount>
  CUTLASS_DEVICE void take(int r, int, Number const* line) {
    values[r] = function::taken<kCount>(Kind(), values[r], line);
  }

  CUTLASS_HOST_DEVICE static int64_t size(Partials<Number> const& partials) {
    return partials.batches * partials.tiles_n * partials.tiles_m * partials.tile_m;
  }
  CUTLASS_DEVICE static int64_t line(Partials<Number> const& partials, int64_t batch, int tile_n) {
    return (batch * partials.tiles_n + tile_n) * partials.tiles_m * partials.tile_m;
  }
  /// Joins what rows come to that `kLanes` adjacent lanes share, and leaves it.
  template <int kLanes>
  CUTLASS_DEVICE void join_rows(int lane) {
    function::join_lines<Kind, 1, kLanes, kRows>(values, lane);
  }
  template <int kLanes, typename Where>
  CUTLASS_DEVICE void leave_rows(Partials<Number> const& partials, int64_t offset, Where const& where, int tile_n,
                                 int lane) {
    Number* const to = partials.numbers(offset + line(partials, where.batch, tile_n));
    function::JoinedLines const joined = function::joined_lines<1, kLanes, kRows>(lane);
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r >= joined.count) break;
      int const row = where.row(joined.first + r);
      if (!joined.is_other) function::leave(to + row, values[r]);
    }
  }
  template <int kStride, typename Local>
  CUTLASS_DEVICE void share_columns(Number*, int, int, Local const&) {}
  template <typename Shared>
  CUTLASS_DEVICE static void leave_columns(Partials<Number> const&, int64_t, Shared const*, int, int, int, int, int64_t,
                                           int) {}
  CUTLASS_DEVICE void share_whole(Number*, int, int) {}
  CUTLASS_DEVICE static void leave_whole(Partials<Number> const&, int64_t, Number const*, int, int64_t, int) {}

  /// Joins what tiles left of 32 rows.
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish_rows(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                         Where const& where, int, int done, int first, int count, int lane) {
    if (!(done & 1)) return;
    auto const& port = arguments.*kMember;
    using Element =
        typename ElementOf<cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(port)>>>::Type;
    function::PartialLines<Number> const lines{partials.numbers(offset + line(partials, where.batch, 0)) + first,
                                               line(partials, 0, 1), partials.tiles_n, count};
    auto const [number, result] = function::joined_partials<Kind>(lines, lane);
    int const row = first + number;
    if (number < count && row < where.rows) {
      port.data[where.batch * port.batch + row] = function::Stored<Element>::of(result);
    }
  }
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const&, int64_t, Arguments const&, Where const&, int, int, int,
                                    int, int) {}
};

template <typename Kind_, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind_, Row<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Kind = Kind_;
  static constexpr int kColumnLines = 1, kWholes = 0;
  static constexpr bool kHasPartials = true, kOfTile = false;
  Number values[kGroups][kVector];

  CUTLASS_DEVICE void begin_rows() {}
  CUTLASS_DEVICE void begin_columns() {
    CUTLASS_PRAGMA_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kVector; ++v) values[g][v] = Kind::template begin<Number>();
    }
  }
  CUTLASS_DEVICE void begin_whole() {}
  template <int kCount>
  CUTLASS_DEVICE void take(int, int g, Number const* line) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      Number& value = values[g + i / kVector][i % kVector];
      value = Kind::take(value, line[i]);
    }
  }

  CUTLASS_HOST_DEVICE static int64_t size(Partials<Number> const& partials) {
    return partials.batches * partials.tiles_m * partials.tiles_n * partials.tile_n;
  }
  CUTLASS_DEVICE static int64_t line(Partials<Number> const& partials, int64_t batch, int tile_m) {
    return (batch * partials.tiles_m + tile_m) * partials.tiles_n * partials.tile_n;
  }
  template <int kLanes>
  CUTLASS_DEVICE void join_rows(int) {}
  template <int kLanes, typename Where>
  CUTLASS_DEVICE void leave_rows(Partials<Number> const&, int64_t, Where const&, int, int) {}

  /// Leaves in shared memory, in a line for each warp, what columns come to that lanes `kStride` apart share.
  template <int kStride, typename Local>
  CUTLASS_DEVICE void share_columns(Number* shared, int warp_line, int lane, Local const& local) {
    CUTLASS_PRAGMA_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kVector; ++v) {
        Number const value = function::joined<Kind, kStride, 32>(values[g][v]);
        if (lane < kStride) shared[warp_line + local(g) + v] = value;
      }
    }
  }
  /// Joins the lines of all warps: `columns` of them, from column `first` of D on.
  template <typename Shared>
  CUTLASS_DEVICE static void leave_columns(Partials<Number> const& partials, int64_t offset, Shared const* shared,
                                           int warps, int columns, int first, int tile_m, int64_t batch, int thread) {
    Number* const to = partials.numbers(offset + line(partials, batch, tile_m));
    if (thread >= columns) return;
    Number result = shared[thread];
    for (int warp = 1; warp < warps; ++warp) result = Kind::join(result, shared[warp * columns + thread]);
    function::leave(to + first + thread, result);
  }
  CUTLASS_DEVICE void share_whole(Number*, int, int) {}
  CUTLASS_DEVICE static void leave_whole(Partials<Number> const&, int64_t, Number const*, int, int64_t, int) {}

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish_rows(Partials<Number> const&, int64_t, Arguments const&, Where const&, int, int,
                                         int, int, int) {}
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int, int tile_n, int done, int thread, int threads) {
    if (!(done & 2)) return;
    auto const& port = arguments.*kMember;
    using Element =
        typename ElementOf<cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(port)>>>::Type;
    for_blocks(tile_n * partials.tile_n, partials.tile_n, thread, threads, [&](int first, int count) {
      function::PartialLines<Number> const lines{partials.numbers(offset + line(partials, where.batch, 0)) + first,
                                                 line(partials, 0, 1), partials.tiles_m, count};
      auto const [number, result] = function::joined_partials<Kind>(lines, thread % 32);
      int const column = first + number;
      if (number < count && column < where.columns) {
        port.data[where.batch * port.batch + column] = function::Stored<Element>::of(result);
      }
    });
  }
};

template <typename Kind_, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind_, Whole<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Kind = Kind_;
  static constexpr int kColumnLines = 0, kWholes = 1;
  static constexpr bool kHasPartials = true, kOfTile = false;
  Number value;

  CUTLASS_DEVICE void begin_rows() {}
  CUTLASS_DEVICE void begin_columns() {}
  CUTLASS_DEVICE void begin_whole() { value = Kind::template begin<Number>(); }
  template <int kCount>
  CUTLASS_DEVICE void take(int, int, Number const* line) {
    value = function::taken<kCount>(Kind(), value, line);
  }

  CUTLASS_HOST_DEVICE static int64_t size(Partials<Number> const& partials) {
    return partials.batches * numbers(partials);
  }
  /// Of one matrix: one for each tile, and a few more, so that there are 32 in every line.
  CUTLASS_HOST_DEVICE static int64_t numbers(Partials<Number> const& partials) {
    return (int64_t(partials.tiles_m) * partials.tiles_n + 31) / 32 * 32;
  }
  template <int kLanes>
  CUTLASS_DEVICE void join_rows(int) {}
  template <int kLanes, typename Where>
  CUTLASS_DEVICE void leave_rows(Partials<Number> const&, int64_t, Where const&, int, int) {}
  template <int kStride, typename Local>
  CUTLASS_DEVICE void share_columns(Number*, int, int, Local const&) {}
  template <typename Shared>
  CUTLASS_DEVICE static void leave_columns(Partials<Number> const&, int64_t, Shared const*, int, int, int, int, int64_t,
                                           int) {}
  CUTLASS_DEVICE void share_whole(Number* shared, int warp, int lane) {
    Number const all = function::joined<Kind, 1, 32>(value);
    if (lane == 0) shared[warp] = all;
  }
  CUTLASS_DEVICE static void leave_whole(Partials<Number> const& partials, int64_t offset, Number const* shared,
                                         int warps, int64_t batch, int tile) {
    Number result = shared[0];
    for (int warp = 1; warp < warps; ++warp) result = Kind::join(result, shared[warp]);
    function::leave(partials.numbers(offset + batch * numbers(partials) + tile), result);
  }

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish_rows(Partials<Number> const&, int64_t, Arguments const&, Where const&, int, int,
                                         int, int, int) {}
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int, int, int done, int thread, int) {
    if (!(done & 4) || function::warp_of(thread) > 0) return;
    auto const& port = arguments.*kMember;
    using Element =
        typename ElementOf<cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(port)>>>::Type;
    int const tiles = partials.tiles_m * partials.tiles_n;
    Number* const from = partials.numbers(offset + where.batch * numbers(partials));
    int const count = int(numbers(partials)), last = count - 32 + thread;
    if (last >= tiles) function::leave(from + last, Kind::Joined::template begin<Number>());  // which no tile does
    __syncwarp();
    function::PartialLines<Number> const all{from, 32, count / 32, 32};
    Number const result =
        function::joined<typename Kind::Joined, 1, 32>(function::joined_partials<Kind>(all, thread).value);
    if (thread == 0) port.data[where.batch * port.batch] = function::Stored<Element>::of(result);
  }
};

/// What a tile left in the workspace is its result.
template <typename Kind, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind, RowTiles<kMember, kAlignment>>, Number, kRows, kGroups, kVector>
    : Reducer<Reduction<Kind, Column<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Joined = Reducer<Reduction<Kind, Column<kMember, kAlignment>>, Number, kRows, kGroups, kVector>;
  static constexpr bool kOfTile = true;

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish_rows(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                         Where const& where, int tile_n, int, int first, int count, int lane) {
    auto const port = (arguments.*kMember).of(where.batch);
    using Element = typename ElementOf<cutlass::platform::remove_cv_t<decltype(port)>>::Type;
    int const row = first + lane;
    Number* const from = partials.numbers(offset + Joined::line(partials, where.batch, tile_n));
    Number const result = function::take<Number>(lane < count ? from + row : nullptr);
    if (lane < count && row < where.rows) {
      port.data[int64_t(tile_n) * where.rows + row] = function::Stored<Element>::of(result);
    }
  }
};
template <typename Kind, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind, ColumnTiles<kMember, kAlignment>>, Number, kRows, kGroups, kVector>
    : Reducer<Reduction<Kind, Row<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Joined = Reducer<Reduction<Kind, Row<kMember, kAlignment>>, Number, kRows, kGroups, kVector>;
  static constexpr bool kOfTile = true;

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int tile_m, int tile_n, int, int thread, int threads) {
    auto const port = (arguments.*kMember).of(where.batch);
    using Element = typename ElementOf<cutlass::platform::remove_cv_t<decltype(port)>>::Type;
    Number* const from = partials.numbers(offset + Joined::line(partials, where.batch, tile_m));
    int const lane = thread % 32;
    for_blocks(tile_n * partials.tile_n, partials.tile_n, thread, threads, [&](int first, int count) {
      int const column = first + lane;
      Number const result = function::take<Number>(lane < count ? from + column : nullptr);
      if (lane < count && column < where.columns) {
        port.data[int64_t(tile_m) * where.columns + column] = function::Stored<Element>::of(result);
      }
    });
  }
};

/// All reductions of a function, one behind the other. Numbers of the first are at `offset` of the partial results, its
/// line of columns is the first in shared memory, and so on.
template <typename List, typename Number, int kRows, int kGroups, int kVector>
struct Reducers;
template <typename Number, int kRows, int kGroups, int kVector>
struct Reducers<List<>, Number, kRows, kGroups, kVector> {
  static constexpr int kColumnLines = 0, kWholes = 0;
  static constexpr bool kHasPartials = false, kOfTile = false;

  CUTLASS_HOST_DEVICE static int64_t size(Partials<Number> const&) { return 0; }
  CUTLASS_DEVICE void begin_rows() {}
  CUTLASS_DEVICE void begin_columns() {}
  CUTLASS_DEVICE void begin_whole() {}
  template <int kCount>
  CUTLASS_DEVICE void take(int, int, Number const (*)[kCount]) {}
  template <int kCount, typename Inside>
  CUTLASS_DEVICE static void leave_out(Number (*)[kCount], Inside const&) {}
  template <int kLanes>
  CUTLASS_DEVICE void join_rows(int) {}
  template <int kLanes, typename Where>
  CUTLASS_DEVICE void leave_rows(Partials<Number> const&, int64_t, Where const&, int, int) {}
  template <int kStride, typename Local>
  CUTLASS_DEVICE void share_columns(Number*, int, int, int, Local const&) {}
  CUTLASS_DEVICE static void leave_columns(Partials<Number> const&, int64_t, Number const*, int, int, int, int, int,
                                           int64_t, int) {}
  CUTLASS_DEVICE void share_whole(Number*, int, int, int) {}
  CUTLASS_DEVICE static void leave_whole(Partials<Number> const&, int64_t, Number const*, int, int64_t, int) {}
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish_rows(Partials<Number> const&, int64_t, Arguments const&, Where const&, int, int,
                                         int, int, int) {}
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const&, int64_t, Arguments const&, Where const&, int, int, int,
                                    int, int) {}
};
template <typename First, typename... Others, typename Number, int kRows, int kGroups, int kVector>
struct Reducers<List<First, Others...>, Number, kRows, kGroups, kVector> {
  using Each = Reducer<First, Number, kRows, kGroups, kVector>;
  using Rest = Reducers<List<Others...>, Number, kRows, kGroups, kVector>;
  static constexpr int kColumnLines = Each::kColumnLines + Rest::kColumnLines;
  static constexpr int kWholes = Each::kWholes + Rest::kWholes;
  static constexpr bool kHasPartials = Each::kHasPartials || Rest::kHasPartials;
  static constexpr bool kOfTile = Each::kOfTile || Rest::kOfTile;
  Each first;
  Rest others;

  /// Numbers of all partial results.
  CUTLASS_HOST_DEVICE static int64_t size(Partials<Number> const& partials) {
    return Each::size(partials) + Rest::size(partials);
  }
  CUTLASS_DEVICE void begin_rows() {
    first.begin_rows();
    others.begin_rows();
  }
  CUTLASS_DEVICE void begin_columns() {
    first.begin_columns();
    others.begin_columns();
  }
  CUTLASS_DEVICE void begin_whole() {
    first.begin_whole();
    others.begin_whole();
  }
  /// Takes elements of row `r`, from group `g` on, that are inside of D.
  template <int kCount>
  CUTLASS_DEVICE void take(int r, int g, Number const (*given)[kCount]) {
    first.template take<kCount>(r, g, *given);
    others.template take<kCount>(r, g, given + 1);
  }
  /// Replaces elements outside of D by what changes no result.
  template <int kCount, typename Inside>
  CUTLASS_DEVICE static void leave_out(Number (*given)[kCount], Inside const& inside) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (!inside(i)) (*given)[i] = Each::Kind::template begin<Number>();
    }
    Rest::template leave_out<kCount>(given + 1, inside);
  }
  template <int kLanes>
  CUTLASS_DEVICE void join_rows(int lane) {
    first.template join_rows<kLanes>(lane);
    others.template join_rows<kLanes>(lane);
  }
  template <int kLanes, typename Where>
  CUTLASS_DEVICE void leave_rows(Partials<Number> const& partials, int64_t offset, Where const& where, int tile_n,
                                 int lane) {
    first.template leave_rows<kLanes>(partials, offset, where, tile_n, lane);
    others.template leave_rows<kLanes>(partials, offset + Each::size(partials), where, tile_n, lane);
  }
  /// `warp_line` is where the line of this warp begins, `all_lines` how many elements all warps have of one reduction.
  template <int kStride, typename Local>
  CUTLASS_DEVICE void share_columns(Number* shared, int all_lines, int warp_line, int lane, Local const& local) {
    first.template share_columns<kStride>(shared, warp_line, lane, local);
    others.template share_columns<kStride>(shared + Each::kColumnLines * all_lines, all_lines, warp_line, lane, local);
  }
  CUTLASS_DEVICE static void leave_columns(Partials<Number> const& partials, int64_t offset, Number const* shared,
                                           int all_lines, int warps, int columns, int first_column, int tile_m,
                                           int64_t batch, int thread) {
    Each::leave_columns(partials, offset, shared, warps, columns, first_column, tile_m, batch, thread);
    Rest::leave_columns(partials, offset + Each::size(partials), shared + Each::kColumnLines * all_lines, all_lines,
                        warps, columns, first_column, tile_m, batch, thread);
  }
  CUTLASS_DEVICE void share_whole(Number* shared, int warps, int warp, int lane) {
    first.share_whole(shared, warp, lane);
    others.share_whole(shared + Each::kWholes * warps, warps, warp, lane);
  }
  CUTLASS_DEVICE static void leave_whole(Partials<Number> const& partials, int64_t offset, Number const* shared,
                                         int warps, int64_t batch, int tile) {
    Each::leave_whole(partials, offset, shared, warps, batch, tile);
    Rest::leave_whole(partials, offset + Each::size(partials), shared + Each::kWholes * warps, warps, batch, tile);
  }
  /// Joins the partial results of the lines of tiles that end with one (`done`: 1 a line across, 2 one down, 4 all),
  /// and writes the results of this thread's warp. To be called by whole warps.
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish_all(Partials<Number> const& partials, Arguments const& arguments,
                                        Where const& where, int tile_m, int tile_n, int done, int thread, int threads) {
    for_blocks(tile_m * partials.tile_m, partials.tile_m, thread, threads, [&](int first, int count) {
      finish_rows(partials, 0, arguments, where, tile_n, done, first, count, thread % 32);
    });
    finish(partials, 0, arguments, where, tile_m, tile_n, done, thread, threads);
  }
  /// The first half of it: results of `count` rows, 32 at most.
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish_rows(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                         Where const& where, int tile_n, int done, int first, int count, int lane) {
    Each::finish_rows(partials, offset, arguments, where, tile_n, done, first, count, lane);
    Rest::finish_rows(partials, offset + Each::size(partials), arguments, where, tile_n, done, first, count, lane);
  }
  /// The other half: results of columns, and of all of D.
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int tile_m, int tile_n, int done, int thread, int threads) {
    Each::finish(partials, offset, arguments, where, tile_m, tile_n, done, thread, threads);
    Rest::finish(partials, offset + Each::size(partials), arguments, where, tile_m, tile_n, done, thread, threads);
  }
};

}  // namespace pycutlass
