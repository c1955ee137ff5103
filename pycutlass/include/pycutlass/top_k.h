// The largest elements of each row of D and their columns, where a row fits a tile: each lane keeps those that it meets
// in registers, and lanes that share a row join theirs. No other tile has a part in a row, so that nothing goes through
// the workspace.
#pragma once

#include "pycutlass/function_reduction.h"

namespace pycutlass {

namespace function {

/// An element and its column as numbers in their order: the greater elements first, of equal ones that of the lower
/// column. NaN is the greatest, whatever its sign, and zeros of both signs are equal.
template <typename Number>
struct Ranked {
  using Word = typename Passed<Number>::Word;
  static constexpr Word kSign = Word(1) << (8 * sizeof(Word) - 1);
  Word element;  // 0 is less than any
  uint32_t place;

  CUTLASS_HOST_DEVICE static Ranked none() { return {0, 0}; }
  CUTLASS_HOST_DEVICE static Ranked of(Number x, int column) {
    x = x + Number(0);  // which is 0 of -0
    Word const bits = reinterpret_cast<Word const&>(x);
    Word const ordered = bits & kSign ? Word(~bits) : Word(bits | kSign);
    return {x != x ? Word(~Word(0)) : ordered, ~uint32_t(column)};
  }
  CUTLASS_HOST_DEVICE Number number() const {
    Word const bits = element & kSign ? Word(element ^ kSign) : Word(~element);
    return reinterpret_cast<Number const&>(bits);
  }
  CUTLASS_HOST_DEVICE int column() const { return int(~place); }
  CUTLASS_HOST_DEVICE bool operator>(Ranked const& other) const {
    return element > other.element || (element == other.element && place > other.place);
  }
};

/// The `kCount` largest of what was taken, from the largest down.
template <typename Number, int kCount>
struct Largest {
  Ranked<Number> ranked[kCount];

  CUTLASS_HOST_DEVICE void begin() {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) ranked[i] = Ranked<Number>::none();
  }
  /// Takes one that is known to be less than the first `before`.
  CUTLASS_HOST_DEVICE void take(Ranked<Number> each, int before = 0) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (i < before) continue;
      bool const is_above = each > ranked[i];
      Ranked<Number> const lesser = is_above ? ranked[i] : each;  // which goes on
      ranked[i] = is_above ? each : ranked[i];
      each = lesser;
    }
  }
  /// Takes those of all lanes that are 1, 2, ... below `kLanes` apart.
  template <int kLanes>
  CUTLASS_DEVICE void join() {
    CUTLASS_PRAGMA_UNROLL
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      Ranked<Number> others[kCount];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kCount; ++i) {
        others[i] = {exchanged(ranked[i].element, lanes), exchanged(ranked[i].place, lanes)};
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kCount; ++i) take(others[i], i);  // those before it are taken, and greater
    }
  }
};

}  // namespace function

/// What is selected of each row, among the reductions of a function: lists of ports, each of a matrix with `kCount`
/// columns, that elements and their columns go to.
template <int kCount, typename Values, typename Indices>
struct TopK;
template <int kCount, typename Values, typename Indices>
struct EachPort<TopK<kCount, Values, Indices>> : EachPort<List<Values, Indices>> {};

/// It ends no line of tiles, and leaves no partial results.
template <int kCount, typename Values, typename Indices, typename... Others>
struct ReducedAxes<List<TopK<kCount, Values, Indices>, Others...>> : ReducedAxes<List<Others...>> {};
template <int kCount, typename Values, typename Indices, typename Number, int kRows, int kGroups, int kVector>
struct Reducer<TopK<kCount, Values, Indices>, Number, kRows, kGroups, kVector> {
  using Kind = function::Max;  // elements outside of D become the least, behind all of D's own
  static constexpr int kColumnLines = 0, kWholes = 0;
  static constexpr bool kHasPartials = false, kOfTile = false;

  CUTLASS_HOST_DEVICE static int64_t size(Partials<Number> const&) { return 0; }
  CUTLASS_DEVICE void begin_rows() {}
  CUTLASS_DEVICE void begin_columns() {}
  CUTLASS_DEVICE void begin_whole() {}
  template <int, typename... Given>
  CUTLASS_DEVICE void take(Given const&...) {}
  template <int, typename... Given>
  CUTLASS_DEVICE void join_rows(Given const&...) {}
  template <int, typename... Given>
  CUTLASS_DEVICE void leave_rows(Given const&...) {}
  template <typename... Given>
  CUTLASS_DEVICE static void finish_rows(Given const&...) {}
  template <int, typename... Given>
  CUTLASS_DEVICE void share_columns(Given const&...) {}
  template <typename... Given>
  CUTLASS_DEVICE static void leave_columns(Given const&...) {}
  template <typename... Given>
  CUTLASS_DEVICE void share_whole(Given const&...) {}
  template <typename... Given>
  CUTLASS_DEVICE static void leave_whole(Given const&...) {}
  template <typename... Given>
  CUTLASS_DEVICE static void finish(Given const&...) {}
};

/// Writes a number to one place of the matrices of a list of ports.
template <typename Ports>
struct Put;
template <auto... kMembers, int... kAlignments>
struct Put<List<Matrix<kMembers, kAlignments>...>> {
  template <typename Arguments, typename Given>
  CUTLASS_DEVICE static void at(Arguments const& arguments, int64_t batch, int row, int column, Given number) {
    (put(arguments.*kMembers, batch, row, column, number), ...);
  }

 private:
  template <typename Element, typename Given>
  CUTLASS_DEVICE static void put(Port<Element> const& port, int64_t batch, int row, int column, Given number) {
    Element& place = port.data[batch * port.batch + int64_t(row) * port.stride + column];
    if constexpr (cutlass::platform::is_same<Given, int>::value) {
      place = Element(number);
    } else {
      place = function::Stored<Element>::of(number);
    }
  }
};

/// What a thread has of all that is selected, of `kRows` rows: other reductions of the list are passed by.
template <typename List, typename Number, int kRows>
struct Selectors;
template <typename Number, int kRows>
struct Selectors<List<>, Number, kRows> {
  CUTLASS_DEVICE void begin_rows() {}
  template <int kCount, typename Column>
  CUTLASS_DEVICE void take(int, Number const (*)[kCount], Column const&) {}
  template <int kLanes, typename Arguments, typename Where>
  CUTLASS_DEVICE void store(Arguments const&, Where const&, int) {}
};
template <typename First, typename... Others, typename Number, int kRows>
struct Selectors<List<First, Others...>, Number, kRows> {
  Selectors<List<Others...>, Number, kRows> others;

  CUTLASS_DEVICE void begin_rows() { others.begin_rows(); }
  template <int kCount, typename Column>
  CUTLASS_DEVICE void take(int r, Number const (*given)[kCount], Column const& column) {
    others.template take<kCount>(r, given + 1, column);
  }
  template <int kLanes, typename Arguments, typename Where>
  CUTLASS_DEVICE void store(Arguments const& arguments, Where const& where, int lane) {
    others.template store<kLanes>(arguments, where, lane);
  }
};
template <int kSelected, typename Values, typename Indices, typename... Others, typename Number, int kRows>
struct Selectors<List<TopK<kSelected, Values, Indices>, Others...>, Number, kRows> {
  function::Largest<Number, kSelected> largest[kRows];
  Selectors<List<Others...>, Number, kRows> others;

  CUTLASS_DEVICE void begin_rows() {
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) largest[r].begin();
    others.begin_rows();
  }
  /// Takes elements of row `r`, which are in the columns of D that `column` tells.
  template <int kCount, typename Column>
  CUTLASS_DEVICE void take(int r, Number const (*given)[kCount], Column const& column) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) largest[r].take(function::Ranked<Number>::of((*given)[i], column(i)));
    others.template take<kCount>(r, given + 1, column);
  }
  /// Writes what is selected from rows that `kLanes` adjacent lanes share, all of which call it.
  template <int kLanes, typename Arguments, typename Where>
  CUTLASS_DEVICE void store(Arguments const& arguments, Where const& where, int lane) {
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      largest[r].template join<kLanes>();
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSelected; ++i) {
        if (lane % kLanes != i % kLanes || where.row(r) >= where.rows) continue;
        Put<Values>::at(arguments, where.batch, where.row(r), i, largest[r].ranked[i].number());
        Put<Indices>::at(arguments, where.batch, where.row(r), i, largest[r].ranked[i].column());
      }
    }
    others.template store<kLanes>(arguments, where, lane);
  }
};

}  // namespace pycutlass
