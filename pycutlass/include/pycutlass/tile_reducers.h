// Reductions whose results are those of each tile alone: nothing is joined.
#pragma once

#include "pycutlass/reducers.h"

namespace pycutlass {

/// Results of each tile alone, as the original's trees left them: an element for each row of D for each tile across, or
/// one for each column for each tile down.
template <auto kMember, int kAlignment>
struct RowTiles : PortAt<kMember, kAlignment> {};
template <auto kMember, int kAlignment>
struct ColumnTiles : PortAt<kMember, kAlignment> {};

/// What a tile left in the workspace is its result.
template <typename Kind, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind, RowTiles<kMember, kAlignment>>, Number, kRows, kGroups, kVector>
    : Reducer<Reduction<Kind, Column<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Joined = Reducer<Reduction<Kind, Column<kMember, kAlignment>>, Number, kRows, kGroups, kVector>;

  static constexpr bool kHasRowTiles = true;
  template <int>
  struct RowPartials {
    Number* from;

    CUTLASS_DEVICE RowPartials(Partials<Number> const& partials, int64_t offset, int64_t batch, int tile_n, int,
                               int row, bool is_inside)
        : from(is_inside ? partials.numbers(offset + Joined::line(partials, batch, tile_n)) + row : nullptr) {}
    template <typename Arguments, typename Where>
    CUTLASS_DEVICE void finish(Arguments const& arguments, Where const& where, int tile_n, int row) {
      auto const port = (arguments.*kMember).of(where.batch);
      using Element = typename ElementOf<cutlass::platform::remove_cv_t<decltype(port)>>::Type;
      Number const result = function::take<Number>(from);
      if (from) port.data[int64_t(tile_n) * where.rows + row] = function::Stored<Element>::of(result);
    }
  };
};
template <typename Kind, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind, ColumnTiles<kMember, kAlignment>>, Number, kRows, kGroups, kVector>
    : Reducer<Reduction<Kind, Row<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Joined = Reducer<Reduction<Kind, Row<kMember, kAlignment>>, Number, kRows, kGroups, kVector>;

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int tile_m, int tile_n, int, int thread, int threads) {
    auto const port = (arguments.*kMember).of(where.batch);
    using Element = typename ElementOf<cutlass::platform::remove_cv_t<decltype(port)>>::Type;
    Number* const from = partials.numbers(offset + Joined::line(partials, where.batch, tile_m));
    for_all(tile_n * partials.tile_n, partials.tile_n, where.columns, thread, threads, [&](int column, bool is_inside) {
      Number const result = function::take<Number>(is_inside ? from + column : nullptr);
      if (is_inside) port.data[int64_t(tile_m) * where.columns + column] = function::Stored<Element>::of(result);
    });
  }
};

}  // namespace pycutlass
