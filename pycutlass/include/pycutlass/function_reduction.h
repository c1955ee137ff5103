// Reductions of an epilogue function: over the columns of D (one value for each row), over its rows (one for each
// column) or over both. Each tile leaves a partial result in the workspace, and the last one of a line of tiles joins
// them, always in the same order: results do not depend on who comes when. Where threadblocks stay for several tiles,
// they join lines when they have no more (ended_lines.h).
//
// No fence is needed for that, which would wait for all that TMA brings meanwhile, for microseconds. A tile is counted
// before its epilogue ends. The last one that was counted waits for each number until it is there, and puts back what
// means that there is none: 0, with which the workspace begins. Tiles that were counted wait for nothing before they
// have left their numbers.
#pragma once

#include "pycutlass/reducers.h"

namespace pycutlass {

/// Which of the three kinds a function has: 1 a Column, 2 a Row, 4 a Whole.
template <typename List>
struct ReducedAxes;
template <>
struct ReducedAxes<List<>> {
  static constexpr int kAxes = 0;
};
template <typename Kind, auto kMember, int kAlignment, typename... Others>
struct ReducedAxes<List<Reduction<Kind, Column<kMember, kAlignment>>, Others...>> {
  static constexpr int kAxes = 1 | ReducedAxes<List<Others...>>::kAxes;
};
template <typename Kind, auto kMember, int kAlignment, typename... Others>
struct ReducedAxes<List<Reduction<Kind, Row<kMember, kAlignment>>, Others...>> {
  static constexpr int kAxes = 2 | ReducedAxes<List<Others...>>::kAxes;
};
template <typename Kind, auto kMember, int kAlignment, typename... Others>
struct ReducedAxes<List<Reduction<Kind, Whole<kMember, kAlignment>>, Others...>> {
  static constexpr int kAxes = 4 | ReducedAxes<List<Others...>>::kAxes;
};

/// Tiles that stand alone end no line.
template <typename Kind, auto kMember, int kAlignment, typename... Others>
struct ReducedAxes<List<Reduction<Kind, RowTiles<kMember, kAlignment>>, Others...>> : ReducedAxes<List<Others...>> {};
template <typename Kind, auto kMember, int kAlignment, typename... Others>
struct ReducedAxes<List<Reduction<Kind, ColumnTiles<kMember, kAlignment>>, Others...>> : ReducedAxes<List<Others...>> {
};

/// What the threads of a tile share for reductions: `kSharedColumns` columns of each warp, and `kBuffers` of them.
template <typename Function, int kWarps, int kSharedColumns, int kBuffers>
struct ReductionStorage {
  using Number = typename Function::Number;
  using Counted = Reducers<typename Function::Reductions, Number, 1, 1, 1>;
  static constexpr int kColumns = Counted::kColumnLines * kWarps * kSharedColumns;  // of one buffer
  Number columns[kColumns > 0 ? kBuffers * kColumns : 1];
  Number wholes[Counted::kWholes > 0 ? Counted::kWholes * kWarps : 1];
  int done[4];  // what the first thread tells the others: two for each of two groups
};

/// Counts a tile in the lines of tiles that it belongs to, along `kAxes`. One thread asks, and looks at the answers
/// when it needs them: until then it does not wait for the memory. Lines count `others` beside their tiles.
struct TileCount {
  unsigned before[3];

  /// Counts of a line that this ends begin anew, for the next launch.
  template <int kAxes, typename Number>
  CUTLASS_DEVICE void ask(Partials<Number> const& partials, int64_t batch, int tile_m, int tile_n,
                          unsigned others = 0) {
    CUTLASS_PRAGMA_UNROLL
    for (int axis = 0; axis < 3; ++axis) {
      if (!(kAxes & (1 << axis))) continue;
      unsigned* const counter = partials.counter(axis, batch, tile_m, tile_n);
      before[axis] = function::count_up(counter, partials.tiles_of_line(axis) - 1 + others);
    }
  }
  /// Returns which lines this ends.
  template <int kAxes, typename Number>
  CUTLASS_DEVICE int last(Partials<Number> const& partials, unsigned others = 0) const {
    int result = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int axis = 0; axis < 3; ++axis) {
      // Not whether one more is all of them: a compiler would add where it asks, and wait there.
      if ((kAxes & (1 << axis)) && before[axis] == partials.tiles_of_line(axis) - 1 + others) result |= 1 << axis;
    }
    return result;
  }
  /// Counts up the i-th line of tiles, and returns whether that ends it.
  template <int kAxes, typename Number>
  CUTLASS_DEVICE static bool ends(Partials<Number> const& partials, int64_t i, unsigned others) {
    int const axis = partials.line(i).axis;
    if (!(kAxes & (1 << axis))) return false;
    unsigned const last = partials.tiles_of_line(axis) - 1 + others;
    return function::count_up(partials.first_counter + i, last) == last;
  }
};

/// The workspace of a launch, and where it is. `kHasLists` says whether threads make lists of lines in it.
template <typename Function, int kTileM, int kTileN, bool kHasLists = false>
struct ReductionSpace {
  using Number = typename Function::Number;
  using Counted = Reducers<typename Function::Reductions, Number, 1, 1, 1>;
  static constexpr bool kIsNeeded = Function::Reductions::kSize > 0;

  /// Of a GEMM or a batch: counters, then partial results.
  CUTLASS_HOST_DEVICE static Partials<Number> of(int m, int n, int64_t batches, void* memory) {
    Partials<Number> partials = of_tiles(m, n, batches);
    partials.first_counter = static_cast<unsigned*>(memory);
    partials.first_number = reinterpret_cast<Number*>(
        static_cast<char*>(memory) + counter_bytes(kHasLists ? 2 * partials.counters() : partials.counters()));
    return partials;
  }
  CUTLASS_HOST_DEVICE static size_t bytes(int m, int n, int64_t batches) {
    if (!kIsNeeded) return 0;
    Partials<Number> const partials = of_tiles(m, n, batches);
    return size_t(counter_bytes(kHasLists ? 2 * partials.counters() : partials.counters()) +
                  Counted::size(partials) * int64_t(sizeof(Number)));
  }

  /// Of a problem of a group.
  CUTLASS_HOST_DEVICE static Partials<Number> of(int m, int n, GroupPartials<Number> const& group, int64_t problem) {
    Partials<Number> partials = of_tiles(m, n, 1);
    ReductionPlace const place = group.places[problem];
    partials.first_counter = group.first_counter + place.counters;
    partials.first_number = group.first_number + place.numbers;
    return partials;
  }

#if !PYCUTLASS_DEVICE_SIDE
  /// Plans for a group: in its workspace, which the host fills, the table of places and counters of 0 come behind what
  /// is there already; and so do the partial results in its scratch memory, which is cleared before each launch.
  static GroupPartials<Number> of(pycutlass_grouped_call const& call, pycutlass_plan_result& result,
                                  bool is_transposed = false) {
    if (!kIsNeeded) return {};
    uint64_t const places = (result.workspace_bytes + 15) / 16 * 16;
    uint64_t const counters = places + call.problem_count * sizeof(ReductionPlace);
    uint64_t const numbers = (result.scratch_bytes + 127) / 128 * 128;
    auto* const written =
        call.schedule ? reinterpret_cast<ReductionPlace*>(static_cast<char*>(call.schedule) + places) : nullptr;
    ReductionPlace end{};
    for (int i = 0; i < call.problem_count; ++i) {
      if (written) written[i] = end;
      int const m = call.sizes[3 * i], n = call.sizes[3 * i + 1];
      Partials<Number> const partials = is_transposed ? of_tiles(n, m, 1) : of_tiles(m, n, 1);
      end.counters += partials.counters();
      end.numbers += Counted::size(partials);
    }
    result.workspace_bytes = counters + end.counters * sizeof(unsigned);
    result.scratch_bytes = numbers + end.numbers * sizeof(Number);
    auto* const workspace = static_cast<char*>(call.common.workspace);
    auto* const scratch = static_cast<char*>(call.scratch);
    if (scratch) {  // there is no partial result yet, whatever the memory was for before
      result.clear_offset = uint64_t(scratch + numbers - workspace);
      result.clear_bytes = end.numbers * sizeof(Number);
    }
    return {reinterpret_cast<ReductionPlace const*>(workspace + places),
            reinterpret_cast<unsigned*>(workspace + counters), reinterpret_cast<Number*>(scratch + numbers)};
  }
#endif

 private:
  /// Where columns are combined in pairs, results are of half as many; there are as many tiles all the same.
  static constexpr int kColumns = Function::kIsGated ? kTileN / 2 : kTileN;

  CUTLASS_HOST_DEVICE static Partials<Number> of_tiles(int m, int n, int64_t batches) {
    return {(m + kTileM - 1) / kTileM, (n + kTileN - 1) / kTileN, kTileM, kColumns, batches, nullptr, nullptr};
  }
  CUTLASS_HOST_DEVICE static int64_t counter_bytes(int64_t counters) {
    return (counters * int64_t(sizeof(unsigned)) + 15) / 16 * 16;
  }
};

}  // namespace pycutlass
