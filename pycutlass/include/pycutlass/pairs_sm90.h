// What threads of Hopper-native kernels read and write beside pairs of columns: matrices and rows like a D that has
// half as many. Of each 8 columns of the product a thread has two side by side, which are one element here. Four
// threads have one row, every fourth element each.
#pragma once

#include "pycutlass/function_reduction.h"

namespace pycutlass {

namespace function {

/// Has word i of the j-th of four neighbouring threads become word j of the i-th.
template <typename Word>
CUTLASS_DEVICE void transpose(Word (&words)[4], int lane) {
  CUTLASS_PRAGMA_UNROLL
  for (int step = 1; step < 4; step *= 2) {
    bool const is_upper = lane & step;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      uint32_t const taken = exchanged(is_upper ? words[i].bits : words[i + step].bits, step);
      words[i].bits = is_upper ? taken : words[i].bits;
      words[i + step].bits = is_upper ? words[i + step].bits : taken;
    }
  }
}

}  // namespace function

/// How many elements that are neighbours in a row-major matrix a thread moves at a time: of four groups of 8 columns,
/// four threads have 16 neighbours, which they exchange with each other where the matrix is aligned to four.
template <typename Element>
CUTLASS_HOST_DEVICE constexpr int neighbours(int groups, int alignment) {
  return groups == 4 && alignment % 4 == 0 && sizeof(Element) <= 4 ? 4 : 1;
}

/// What is exchanged at once: an element, or those of two rows that are small enough.
template <typename Element>
union Word {
  static constexpr int kRows = sizeof(Element) <= 2 ? 2 : 1;
  CUTLASS_DEVICE Word() : bits(0) {}
  Element rows[kRows];
  uint32_t bits;
};

/// Reads what a thread has of two rows of a subtile: one element in each of `kGroups` groups of 8 columns. `turned` is
/// called where they are needed, for what has them.
template <typename Port, typename Arguments, int kGroups>
struct HalfReader : Reader<Port, Arguments, 2, kGroups, 1> {
  using Base = Reader<Port, Arguments, 2, kGroups, 1>;
  template <typename Where>
  CUTLASS_DEVICE void load_elements(Arguments const& arguments, Where const& where, int) {
    Base::load_elements(arguments, where);
  }
  CUTLASS_DEVICE Base const& turned(int) const { return *this; }
};

/// Elements of a matrix, by the rows and the groups of a thread.
template <typename Element, int kGroups>
struct Turned {
  Element elements[2][kGroups];

  template <typename Number>
  CUTLASS_DEVICE Number at(int r, int g, int) const {
    return function::widened<Number>(elements[r][g]);
  }
};

template <auto kMember, int kAlignment, typename Arguments, int kGroups>
struct HalfReader<Matrix<kMember, kAlignment>, Arguments, kGroups> {
  using Base = Reader<Matrix<kMember, kAlignment>, Arguments, 2, kGroups, 1>;
  using Element = typename Base::Element;
  static constexpr int kNeighbours = neighbours<Element>(kGroups, kAlignment);
  static constexpr int kAcross = kGroups / kNeighbours;
  static constexpr Along kAlong = Along::kBoth;
  static constexpr int kColumnBytes = 0;
  cutlass::AlignedArray<Element, kNeighbours> lines[2][kAcross];

  template <typename Where>
  CUTLASS_DEVICE void load_columns(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_DEVICE void load_rows(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_DEVICE void load_elements(Arguments const& arguments, Where const& where, int lane) {
    auto const& place = where.whole;
    auto const& port = arguments.*kMember;
    int const base = place.first_column / 2 - lane;
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < 2; ++r) {
      auto const* const line = port.data + place.batch * port.batch + int64_t(place.row(r)) * port.stride;
      CUTLASS_PRAGMA_UNROLL
      for (int a = 0; a < kAcross; ++a) {
        int const column = base + (kNeighbours == 4 ? 4 * lane : 4 * a + lane);
        if (place.row(r) < place.rows && column < place.columns / 2) {
          lines[r][a] = *reinterpret_cast<cutlass::AlignedArray<Element, kNeighbours> const*>(line + column);
        } else {
          lines[r][a].clear();
        }
      }
    }
  }
  CUTLASS_DEVICE Turned<Element, kGroups> turned(int lane) const {
    constexpr int kRows = Word<Element>::kRows;
    Turned<Element, kGroups> result;
    CUTLASS_PRAGMA_UNROLL
    for (int first = 0; first < 2; first += kRows) {
      Word<Element> words[kGroups];
      CUTLASS_PRAGMA_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kRows; ++i) words[g].rows[i] = lines[first + i][g / kNeighbours][g % kNeighbours];
      }
      if constexpr (kNeighbours == 4) function::transpose(words, lane);
      CUTLASS_PRAGMA_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kRows; ++i) result.elements[first + i][g] = words[g].rows[i];
      }
    }
    return result;
  }
};

/// All that a thread reads so. `Where` has half as many columns (`HalfColumns`).
template <typename Ports, typename Arguments, int kGroups>
struct HalfReaders;
template <typename Arguments, int kGroups>
struct HalfReaders<List<>, Arguments, kGroups> {
  static constexpr int kColumnBytes = 0;
  template <typename Where>
  CUTLASS_DEVICE void load_columns(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_DEVICE void load_rows(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_DEVICE void load_elements(Arguments const&, Where const&, int) {}
  struct AllTurned {
    template <typename Number>
    CUTLASS_DEVICE void values(int, int, int, Number*) const {}
  };
  CUTLASS_DEVICE static AllTurned turned(HalfReaders const&, HalfReaders const&, HalfReaders const&, int) { return {}; }
};
template <typename First, typename... Others, typename Arguments, int kGroups>
struct HalfReaders<List<First, Others...>, Arguments, kGroups> {
  using Rest = HalfReaders<List<Others...>, Arguments, kGroups>;
  HalfReader<First, Arguments, kGroups> first;
  Rest others;
  static constexpr int kColumnBytes = decltype(first)::kColumnBytes + Rest::kColumnBytes;

  template <typename Where>
  CUTLASS_DEVICE void load_columns(Arguments const& arguments, Where const& where) {
    first.load_columns(arguments, where);
    others.load_columns(arguments, where);
  }
  template <typename Where>
  CUTLASS_DEVICE void load_rows(Arguments const& arguments, Where const& where) {
    first.load_rows(arguments, where);
    others.load_rows(arguments, where);
  }
  template <typename Where>
  CUTLASS_DEVICE void load_elements(Arguments const& arguments, Where const& where, int lane) {
    first.load_elements(arguments, where, lane);
    others.load_elements(arguments, where, lane);
  }
  struct AllTurned {
    decltype(HalfReader<First, Arguments, kGroups>().turned(0)) first;
    typename Rest::AllTurned others;

    template <typename Number>
    CUTLASS_DEVICE void values(int r, int g, int v, Number* in) const {
      *in = first.template at<Number>(r, g, v);
      others.values(r, g, v, in + 1);
    }
  };
  /// What three of them have loaded, as `Loaded` has it.
  CUTLASS_DEVICE static AllTurned turned(HalfReaders const& columns, HalfReaders const& rows,
                                         HalfReaders const& elements, int lane) {
    return {loaded_one(columns.first, rows.first, elements.first).turned(lane),
            Rest::turned(columns.others, rows.others, elements.others, lane)};
  }
};

/// Writes elements of a matrix like D, of half as many columns, that a thread has in two rows of a subtile: one in each
/// of `kGroups` groups of 8 columns. Four threads have one row, every fourth element each, which they exchange for four
/// neighbours where there are as many and the matrix is aligned to them.
/// `kBranches` has rows be converted one after the other, where registers do not hold all at once.
template <int kGroups, int kAlignment, bool kBranches>
struct HalfWriter {
  template <typename Element, typename Where, typename Number>
  CUTLASS_DEVICE static void store(Port<Element> const& target, Where const& place, int lane,
                                   Number const (&made)[2][kGroups]) {
    constexpr int kNeighbours = neighbours<Element>(kGroups, kAlignment), kRowsOfWord = Word<Element>::kRows;
    int const base = place.first_column / 2 - lane;
    CUTLASS_PRAGMA_UNROLL
    for (int first = 0; first < 2; first += kRowsOfWord) {
      Word<Element> words[kGroups];
      CUTLASS_PRAGMA_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kRowsOfWord; ++i) words[g].rows[i] = function::Stored<Element>::of(made[first + i][g]);
      }
      if constexpr (kNeighbours == 4) function::transpose(words, lane);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRowsOfWord; ++i) {
        int const row = place.row(first + i);
        auto* const line = target.data + place.batch * target.batch + int64_t(row) * target.stride;
        CUTLASS_PRAGMA_UNROLL
        for (int g = 0; g < kGroups; g += kNeighbours) {
          int const column = base + (kNeighbours == 4 ? 4 * lane : 4 * g + lane);
          bool const is_inside = row < place.rows && column < place.columns / 2;
          if (kBranches && !is_inside) continue;
          cutlass::AlignedArray<Element, kNeighbours> neighbours;
          CUTLASS_PRAGMA_UNROLL
          for (int c = 0; c < kNeighbours; ++c) neighbours[c] = words[g + c].rows[i];
          using To = Line<kNeighbours, Element, kNeighbours>;
          if constexpr (kBranches) {
            To::store(neighbours, line + column);
          } else {
            To::store(neighbours, line + column, is_inside);
          }
        }
      }
    }
  }
};

/// The same of all outputs. Elements of a column are adjacent in others, which are written one by one.
template <int kGroups, typename Ports>
struct HalfWriters;
template <int kGroups>
struct HalfWriters<kGroups, List<>> {
  template <typename Arguments, typename Where, typename Number>
  CUTLASS_DEVICE static void store(Arguments const&, Where const&, int, Number const (*)[2][kGroups]) {}
};
template <int kGroups, auto kMember, int kAlignment, typename... Others>
struct HalfWriters<kGroups, List<Matrix<kMember, kAlignment>, Others...>> {
  template <typename Arguments, typename Where, typename Number>
  CUTLASS_DEVICE static void store(Arguments const& arguments, Where const& place, int lane,
                                   Number const (*made)[2][kGroups]) {
    HalfWriter<kGroups, kAlignment, true>::store(arguments.*kMember, place, lane, *made);
    HalfWriters<kGroups, List<Others...>>::store(arguments, place, lane, made + 1);
  }
};
template <int kGroups, auto kMember, int kAlignment, typename... Others>
struct HalfWriters<kGroups, List<ColumnMajorMatrix<kMember, kAlignment>, Others...>> {
  template <typename Arguments, typename Where, typename Number>
  CUTLASS_DEVICE static void store(Arguments const& arguments, Where const& place, int lane,
                                   Number const (*made)[2][kGroups]) {
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < 2; ++r) {
      CUTLASS_PRAGMA_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        Number const element[1][1] = {{(*made)[r][g]}};
        Writers<List<ColumnMajorMatrix<kMember, kAlignment>>>::store(arguments, HalfColumns<Where>(place), r, g,
                                                                     element);
      }
    }
    HalfWriters<kGroups, List<Others...>>::store(arguments, place, lane, made + 1);
  }
};

}  // namespace pycutlass
