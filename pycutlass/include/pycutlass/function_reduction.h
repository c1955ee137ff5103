// Reductions of an epilogue function: over the columns of D (one value for each row), over its rows (one for each
// column) or over both. Each tile leaves a partial result in the workspace, and the last one of a line of tiles joins
// them, always in the same order: results do not depend on who comes when.
//
// No fence is needed for that, which would wait for all that TMA brings meanwhile, for microseconds. A tile is counted
// when its epilogue begins, so that the answer is there when it ends. The last one that was counted waits for each
// number until it is there, and puts back what means that there is none: 0, with which the workspace begins. Tiles that
// were counted are in their epilogues, which wait for nothing.
#pragma once

#include "pycutlass/function.h"

namespace pycutlass {

namespace function {

/// The kinds of reductions: what begins, what takes a value, and what joins two results.
struct Sum {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return Number(0);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return result + value;
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number join(Number left, Number right) {
    return left + right;
  }
};
struct SumOfSquares : Sum {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return result + value * value;
  }
};
struct Max {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return -infinity<Number>();
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return maximum(result, value);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number join(Number left, Number right) {
    return maximum(left, right);
  }
};
struct Min {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return infinity<Number>();
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return minimum(result, value);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number join(Number left, Number right) {
    return minimum(left, right);
  }
};
struct AbsMax : Max {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return Number(0);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return maximum(result, abs(value));
  }
};

/// exp(x) and log(x). On a GPU in two instructions each, which are right to 2^-21: they are for sums of which the
/// largest part is 1.
CUTLASS_HOST_DEVICE float quick_exp(float x) { return activation::normal_exp2(x * 1.4426950408889634f); }
CUTLASS_HOST_DEVICE double quick_exp(double x) { return exp(x); }
CUTLASS_HOST_DEVICE float quick_log(float x) {
#if PYCUTLASS_DEVICE_SIDE
  float logarithm;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(logarithm) : "f"(x));
  return logarithm * 0.6931471805599453f;
#else
  return log(x);
#endif
}
CUTLASS_HOST_DEVICE double quick_log(double x) { return log(x); }

/// The logarithm of a sum of exponentials: one number says both how large the largest was and what they come to.
struct LogSumExp : Max {
  /// Takes many at once: one logarithm for all of them.
  template <int kCount, typename Number>
  CUTLASS_HOST_DEVICE static Number take_all(Number result, Number const* values) {
    Number shift = result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) shift = maximum(shift, values[i]);
    shift = abs(shift) < infinity<Number>() ? shift : Number(0);  // none yet, infinity or NaN: as exp has it
    Number sum = quick_exp(result - shift);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) sum = sum + quick_exp(values[i] - shift);
    return shift + quick_log(sum);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number join(Number left, Number right) {
    return take_all<1>(left, &right);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return join(result, value);
  }
};

/// What becomes of a result by many values.
template <int kCount, typename Kind, typename Number>
CUTLASS_HOST_DEVICE Number taken(Kind, Number result, Number const* values) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kCount; ++i) result = Kind::take(result, values[i]);
  return result;
}
template <int kCount, typename Number>
CUTLASS_HOST_DEVICE Number taken(LogSumExp, Number result, Number const* values) {
  return LogSumExp::take_all<kCount>(result, values);
}

// What threads do together. On the host nobody calls these but tests, which define them.
#if PYCUTLASS_DEVICE_SIDE
template <typename Number>
CUTLASS_DEVICE Number exchanged(Number value, int lanes) {
  return __shfl_xor_sync(0xffffffffu, value, lanes);
}
CUTLASS_DEVICE unsigned count_up(unsigned* counter) { return atomicAdd(counter, 1u); }
/// Words that threadblocks pass to each other, each for itself.
CUTLASS_DEVICE void pass_word(uint32_t* address, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}
CUTLASS_DEVICE void pass_word(uint64_t* address, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}
CUTLASS_DEVICE uint32_t passed_word(uint32_t const* address) {
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
  return word;
}
CUTLASS_DEVICE uint64_t passed_word(uint64_t const* address) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
  return word;
}
#else
template <typename Number>
Number exchanged(Number value, int lanes);
unsigned count_up(unsigned* counter);
template <typename Word>
void pass_word(Word* address, Word word);
template <typename Word>
Word passed_word(Word const* address);
#endif

/// A partial result as a word that is not 0, in its place in the workspace.
template <typename Number>
struct Passed;
template <typename Number_, typename Word_, Word_ kNone, Word_ kNaN>
struct PassedAs {
  using Number = Number_;
  using Word = Word_;

  CUTLASS_HOST_DEVICE static Word* at(Number* address) { return reinterpret_cast<Word*>(address); }
  CUTLASS_HOST_DEVICE static Word word(Number number) {
    Word const bits = reinterpret_cast<Word const&>(number);
    return (bits == kNone ? kNaN : bits) ^ kNone;
  }
  CUTLASS_HOST_DEVICE static Number number(Word word) {
    Word const bits = word ^ kNone;
    return reinterpret_cast<Number const&>(bits);
  }
};
// A NaN that nothing computes stands for none. One that comes from a tensor becomes another.
template <>
struct Passed<float> : PassedAs<float, uint32_t, 0xffd5a5a5u, 0x7fffffffu> {};
template <>
struct Passed<double> : PassedAs<double, uint64_t, 0xfffda5a5a5a5a5a5u, 0x7fffffffffffffffu> {};

/// Leaves a partial result.
template <typename Number>
CUTLASS_DEVICE void leave(Number* address, Number number) {
  pass_word(Passed<Number>::at(address), Passed<Number>::word(number));
}

/// Waits for a partial result, and leaves none in its place.
template <typename Number>
CUTLASS_DEVICE Number take(Number* address) {
  using As = Passed<Number>;
  typename As::Word word;
  do {
    word = passed_word(As::at(address));
  } while (word == 0);
  pass_word(As::at(address), typename As::Word(0));
  return As::number(word);
}

/// Waits for partial results, calls `use` with each in their order, and leaves none in their places, which `address`
/// tells. So many are loaded at once that a line of tiles takes the memory's latency once: who is last with one tile is
/// late with the next, and last again.
template <typename Number, typename Address, typename Use>
CUTLASS_DEVICE void take_partials(int count, Address const& address, Use const& use) {
  using As = Passed<Number>;
  constexpr int kAtOnce = 128 / sizeof(Number);
  typename As::Word words[kAtOnce];
  for (int first = 0; first < count; first += kAtOnce) {
    bool complete;
    do {
      complete = true;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        words[i] = 1;
        if (first + i < count) words[i] = passed_word(As::at(address(first + i)));
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) complete = complete && words[i] != 0;
    } while (!complete);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < count) {
        pass_word(As::at(address(first + i)), typename As::Word(0));
        use(As::number(words[i]));
      }
    }
  }
}

/// Joins the results of lanes that are `kFrom`, 2 `kFrom`, ... below `kTo` apart.
template <typename Kind, int kFrom, int kTo, typename Number>
CUTLASS_DEVICE Number joined(Number value) {
  CUTLASS_PRAGMA_UNROLL
  for (int lanes = kFrom; lanes < kTo; lanes *= 2) value = Kind::join(value, exchanged(value, lanes));
  return value;
}

}  // namespace function

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

/// Writes what the threads of a threadblock left of a line, from `first` on, behind `before` elements of a port.
template <typename Element, typename Number>
CUTLASS_DEVICE void copy_tile(Port<Element> const& port, Number* from, int64_t before, int first, int end, int step) {
  for (int i = first; i < end; i += step) {
    port.data[before + i] = function::Stored<Element>::of(function::take<Number>(from + i));
  }
}

/// The partial results of all tiles, in the workspace: for each reduction a line for each tile across its own. And
/// counters of the tiles that are done.
template <typename Number>
struct Partials {
  int tiles_m, tiles_n, tile_m, tile_n;
  int64_t batches;
  unsigned* first_counter;
  Number* first_number;

  CUTLASS_HOST_DEVICE int64_t counters() const { return batches * (tiles_m + tiles_n + 1); }
  CUTLASS_HOST_DEVICE unsigned* counter(int64_t batch, int place) const {
    return first_counter + batch * (tiles_m + tiles_n + 1) + place;
  }
  CUTLASS_HOST_DEVICE Number* numbers(int64_t offset) const { return first_number + offset; }
};

/// Where a problem of a group has its counters and its partial results, behind those of the first.
struct ReductionPlace {
  int64_t counters, numbers;
};

/// Those of all problems of a group, and a table of their places; null elsewhere.
template <typename Number>
struct GroupPartials {
  ReductionPlace const* places;
  unsigned* first_counter;
  Number* first_number;
};

/// What a thread has of one reduction, for `kRows` rows and `kGroups` groups of `kVector` columns.
template <typename Reduction, typename Number, int kRows, int kGroups, int kVector>
struct Reducer;

template <typename Kind_, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind_, Column<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Kind = Kind_;
  static constexpr int kColumnLines = 0, kWholes = 0;
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
  /// Leaves what rows come to that `kLanes` adjacent lanes share.
  template <int kLanes, typename Where>
  CUTLASS_DEVICE void leave_rows(Partials<Number> const& partials, int64_t offset, Where const& where, int tile_n,
                                 int lane) {
    Number* const to = partials.numbers(offset + line(partials, where.batch, tile_n));
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Number const value = function::joined<Kind, 1, kLanes>(values[r]);
      if (lane % kLanes == 0 && where.row(r) < where.rows) function::leave(to + where.row(r), value);
    }
  }
  template <int kStride, typename Local>
  CUTLASS_DEVICE void share_columns(Number*, int, int, Local const&) {}
  template <typename Shared>
  CUTLASS_DEVICE static void leave_columns(Partials<Number> const&, int64_t, Shared const*, int, int, int, int, int,
                                           int64_t, int) {}
  CUTLASS_DEVICE void share_whole(Number*, int, int) {}
  CUTLASS_DEVICE static void leave_whole(Partials<Number> const&, int64_t, Number const*, int, int64_t, int) {}

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int tile_m, int, int done, int thread, int threads) {
    if (!(done & 1)) return;
    auto const& port = arguments.*kMember;
    using Element =
        typename ElementOf<cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(port)>>>::Type;
    int const end = cutlass::platform::min((tile_m + 1) * partials.tile_m, where.rows);
    for (int row = tile_m * partials.tile_m + thread; row < end; row += threads) {
      Number result = Kind::template begin<Number>();
      function::take_partials<Number>(
          partials.tiles_n,
          [&](int tile) { return partials.numbers(offset + line(partials, where.batch, tile)) + row; },
          [&](Number partial) { result = Kind::join(result, partial); });
      port.data[where.batch * port.batch + row] = function::Stored<Element>::of(result);
    }
  }
};

template <typename Kind_, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind_, Row<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Kind = Kind_;
  static constexpr int kColumnLines = 1, kWholes = 0;
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
                                           int warps, int columns, int first, int end, int tile_m, int64_t batch,
                                           int thread) {
    Number* const to = partials.numbers(offset + line(partials, batch, tile_m));
    if (thread >= columns || first + thread >= end) return;
    Number result = shared[thread];
    for (int warp = 1; warp < warps; ++warp) result = Kind::join(result, shared[warp * columns + thread]);
    function::leave(to + first + thread, result);
  }
  CUTLASS_DEVICE void share_whole(Number*, int, int) {}
  CUTLASS_DEVICE static void leave_whole(Partials<Number> const&, int64_t, Number const*, int, int64_t, int) {}

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int, int tile_n, int done, int thread, int threads) {
    if (!(done & 2)) return;
    auto const& port = arguments.*kMember;
    using Element =
        typename ElementOf<cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(port)>>>::Type;
    int const end = cutlass::platform::min((tile_n + 1) * partials.tile_n, where.columns);
    for (int column = tile_n * partials.tile_n + thread; column < end; column += threads) {
      Number result = Kind::template begin<Number>();
      function::take_partials<Number>(
          partials.tiles_m,
          [&](int tile) { return partials.numbers(offset + line(partials, where.batch, tile)) + column; },
          [&](Number partial) { result = Kind::join(result, partial); });
      port.data[where.batch * port.batch + column] = function::Stored<Element>::of(result);
    }
  }
};

template <typename Kind_, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind_, Whole<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Kind = Kind_;
  static constexpr int kColumnLines = 0, kWholes = 1;
  Number value;

  CUTLASS_DEVICE void begin_rows() {}
  CUTLASS_DEVICE void begin_columns() {}
  CUTLASS_DEVICE void begin_whole() { value = Kind::template begin<Number>(); }
  template <int kCount>
  CUTLASS_DEVICE void take(int, int, Number const* line) {
    value = function::taken<kCount>(Kind(), value, line);
  }

  CUTLASS_HOST_DEVICE static int64_t size(Partials<Number> const& partials) {
    return partials.batches * partials.tiles_m * partials.tiles_n;
  }
  template <int kLanes, typename Where>
  CUTLASS_DEVICE void leave_rows(Partials<Number> const&, int64_t, Where const&, int, int) {}
  template <int kStride, typename Local>
  CUTLASS_DEVICE void share_columns(Number*, int, int, Local const&) {}
  template <typename Shared>
  CUTLASS_DEVICE static void leave_columns(Partials<Number> const&, int64_t, Shared const*, int, int, int, int, int,
                                           int64_t, int) {}
  CUTLASS_DEVICE void share_whole(Number* shared, int warp, int lane) {
    Number const all = function::joined<Kind, 1, 32>(value);
    if (lane == 0) shared[warp] = all;
  }
  CUTLASS_DEVICE static void leave_whole(Partials<Number> const& partials, int64_t offset, Number const* shared,
                                         int warps, int64_t batch, int tile) {
    Number result = shared[0];
    for (int warp = 1; warp < warps; ++warp) result = Kind::join(result, shared[warp]);
    function::leave(partials.numbers(offset + batch * partials.tiles_m * partials.tiles_n + tile), result);
  }

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int, int, int done, int thread, int) {
    if (!(done & 4) || thread >= 32) return;
    auto const& port = arguments.*kMember;
    using Element =
        typename ElementOf<cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(port)>>>::Type;
    int const tiles = partials.tiles_m * partials.tiles_n;
    Number* const from = partials.numbers(offset + where.batch * tiles + thread);
    Number result = Kind::template begin<Number>();
    function::take_partials<Number>((tiles - thread + 31) / 32, [&](int i) { return from + 32 * i; },
                                    [&](Number partial) { result = Kind::join(result, partial); });
    result = function::joined<Kind, 1, 32>(result);
    if (thread == 0) port.data[where.batch * port.batch] = function::Stored<Element>::of(result);
  }
};

/// What a tile left in the workspace is its result.
template <typename Kind, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind, RowTiles<kMember, kAlignment>>, Number, kRows, kGroups, kVector>
    : Reducer<Reduction<Kind, Column<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Joined = Reducer<Reduction<Kind, Column<kMember, kAlignment>>, Number, kRows, kGroups, kVector>;

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int tile_m, int tile_n, int, int thread, int threads) {
    int const first = tile_m * partials.tile_m, end = cutlass::platform::min(first + partials.tile_m, where.rows);
    auto const port = (arguments.*kMember).of(where.batch);
    copy_tile(port, partials.numbers(offset + Joined::line(partials, where.batch, tile_n)),
              int64_t(tile_n) * where.rows, first + thread, end, threads);
  }
};
template <typename Kind, auto kMember, int kAlignment, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<Reduction<Kind, ColumnTiles<kMember, kAlignment>>, Number, kRows, kGroups, kVector>
    : Reducer<Reduction<Kind, Row<kMember, kAlignment>>, Number, kRows, kGroups, kVector> {
  using Joined = Reducer<Reduction<Kind, Row<kMember, kAlignment>>, Number, kRows, kGroups, kVector>;

  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int tile_m, int tile_n, int, int thread, int threads) {
    int const first = tile_n * partials.tile_n, end = cutlass::platform::min(first + partials.tile_n, where.columns);
    auto const port = (arguments.*kMember).of(where.batch);
    copy_tile(port, partials.numbers(offset + Joined::line(partials, where.batch, tile_m)),
              int64_t(tile_m) * where.columns, first + thread, end, threads);
  }
};

/// All reductions of a function, one behind the other. Numbers of the first are at `offset` of the partial results, its
/// line of columns is the first in shared memory, and so on.
template <typename List, typename Number, int kRows, int kGroups, int kVector>
struct Reducers;
template <typename Number, int kRows, int kGroups, int kVector>
struct Reducers<List<>, Number, kRows, kGroups, kVector> {
  static constexpr int kColumnLines = 0, kWholes = 0;

  CUTLASS_HOST_DEVICE static int64_t size(Partials<Number> const&) { return 0; }
  CUTLASS_DEVICE void begin_rows() {}
  CUTLASS_DEVICE void begin_columns() {}
  CUTLASS_DEVICE void begin_whole() {}
  template <int kCount>
  CUTLASS_DEVICE void take(int, int, Number const (*)[kCount]) {}
  template <int kCount, typename Inside>
  CUTLASS_DEVICE static void leave_out(Number (*)[kCount], Inside const&) {}
  template <int kLanes, typename Where>
  CUTLASS_DEVICE void leave_rows(Partials<Number> const&, int64_t, Where const&, int, int) {}
  template <int kStride, typename Local>
  CUTLASS_DEVICE void share_columns(Number*, int, int, int, Local const&) {}
  CUTLASS_DEVICE static void leave_columns(Partials<Number> const&, int64_t, Number const*, int, int, int, int, int,
                                           int, int64_t, int) {}
  CUTLASS_DEVICE void share_whole(Number*, int, int, int) {}
  CUTLASS_DEVICE static void leave_whole(Partials<Number> const&, int64_t, Number const*, int, int64_t, int) {}
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
                                           int all_lines, int warps, int columns, int first_column, int end, int tile_m,
                                           int64_t batch, int thread) {
    Each::leave_columns(partials, offset, shared, warps, columns, first_column, end, tile_m, batch, thread);
    Rest::leave_columns(partials, offset + Each::size(partials), shared + Each::kColumnLines * all_lines, all_lines,
                        warps, columns, first_column, end, tile_m, batch, thread);
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
  /// Joins the partial results of the lines of tiles whose last one this is (`done`: 1 a line across, 2 one down, 4
  /// all), and writes.
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void finish(Partials<Number> const& partials, int64_t offset, Arguments const& arguments,
                                    Where const& where, int tile_m, int tile_n, int done, int thread, int threads) {
    Each::finish(partials, offset, arguments, where, tile_m, tile_n, done, thread, threads);
    Rest::finish(partials, offset + Each::size(partials), arguments, where, tile_m, tile_n, done, thread, threads);
  }
};

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
  int done;
};

/// Counts a tile whose epilogue begins, in each line of tiles that it belongs to; returns in which of them it is the
/// last. To be called by one thread.
template <int kAxes, typename Number>
CUTLASS_DEVICE int count_tile(Partials<Number> const& partials, int64_t batch, int tile_m, int tile_n) {
  int const places[3] = {tile_m, partials.tiles_m + tile_n, partials.tiles_m + partials.tiles_n};
  unsigned const tiles[3] = {unsigned(partials.tiles_n), unsigned(partials.tiles_m),
                             unsigned(partials.tiles_m) * unsigned(partials.tiles_n)};
  unsigned before[3] = {};
  CUTLASS_PRAGMA_UNROLL
  for (int axis = 0; axis < 3; ++axis) {  // none waits for the one before
    if (kAxes & (1 << axis)) before[axis] = function::count_up(partials.counter(batch, places[axis]));
  }
  int last = 0;
  CUTLASS_PRAGMA_UNROLL
  for (int axis = 0; axis < 3; ++axis) {
    if ((kAxes & (1 << axis)) && before[axis] + 1 == tiles[axis]) {
      *partials.counter(batch, places[axis]) = 0;  // for the next launch
      last |= 1 << axis;
    }
  }
  return last;
}

/// The workspace of a launch, and where it is.
template <typename Function, int kTileM, int kTileN>
struct ReductionSpace {
  using Number = typename Function::Number;
  using Counted = Reducers<typename Function::Reductions, Number, 1, 1, 1>;
  static constexpr bool kIsNeeded = Function::Reductions::kSize > 0;

  /// Of a GEMM or a batch: counters, then partial results.
  CUTLASS_HOST_DEVICE static Partials<Number> of(int m, int n, int64_t batches, void* memory) {
    Partials<Number> partials = of_tiles(m, n, batches);
    partials.first_counter = static_cast<unsigned*>(memory);
    partials.first_number = reinterpret_cast<Number*>(static_cast<char*>(memory) + counter_bytes(partials.counters()));
    return partials;
  }
  CUTLASS_HOST_DEVICE static size_t bytes(int m, int n, int64_t batches) {
    if (!kIsNeeded) return 0;
    Partials<Number> const partials = of_tiles(m, n, batches);
    return size_t(counter_bytes(partials.counters()) + Counted::size(partials) * int64_t(sizeof(Number)));
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
  CUTLASS_HOST_DEVICE static Partials<Number> of_tiles(int m, int n, int64_t batches) {
    return {(m + kTileM - 1) / kTileM, (n + kTileN - 1) / kTileN, kTileM, kTileN, batches, nullptr, nullptr};
  }
  CUTLASS_HOST_DEVICE static int64_t counter_bytes(int64_t counters) {
    return (counters * int64_t(sizeof(unsigned)) + 15) / 16 * 16;
  }
};

}  // namespace pycutlass
