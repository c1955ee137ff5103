// The ports of an epilogue function: tensors beside A, B and D, and what a thread reads and writes of them.
#pragma once

#include "pycutlass/epilogue.h"
#include "pycutlass/node_functions.h"

#include <cutlass/arch/memory.h>

namespace pycutlass {

template <typename... Ports>
struct List {
  static constexpr int kSize = sizeof...(Ports);
};

/// How a port's tensor lies in the arguments: a member of them, and the elements that its lines are aligned to.
template <auto kMember, int kAlignment_>
struct PortAt {
  static constexpr int kAlignment = kAlignment_;

  template <typename Arguments>
  CUTLASS_HOST_DEVICE static auto const& of(Arguments const& arguments) {
    return arguments.*kMember;
  }
};
/// A matrix of the extents of D, row by row, or column by column; a vector with an element for each column; one with an
/// element for each row.
template <auto kMember, int kAlignment>
struct Matrix : PortAt<kMember, kAlignment> {};
template <auto kMember, int kAlignment>
struct ColumnMajorMatrix : PortAt<kMember, kAlignment> {};
template <auto kMember, int kAlignment>
struct Row : PortAt<kMember, kAlignment> {};
template <auto kMember, int kAlignment>
struct Column : PortAt<kMember, kAlignment> {};
/// One number for each matrix of a batch. Of a group they may lie in one line, by a step between them, and else in a
/// table of addresses.
template <auto kMember, int kAlignment>
struct PerBatch : PortAt<kMember, kAlignment> {};

/// What is done with all ports of a list, as members of the arguments.
template <typename Port>
struct EachPort;
template <template <auto, int> class Form, auto kMember, int kAlignment>
struct EachPort<Form<kMember, kAlignment>> {
  /// Chooses one of the matrices that the port stands for.
  template <typename Arguments>
  CUTLASS_HOST_DEVICE static void choose(Arguments& chosen, Arguments const& arguments, int64_t matrix) {
    chosen.*kMember = (arguments.*kMember).of(matrix);
  }
  /// Takes the port for one of tables. Vectors have addresses alone.
  template <typename Arguments>
  CUTLASS_HOST_DEVICE static void list(Arguments& arguments, int64_t of_matrices) {
    auto& port = arguments.*kMember;
    if (kIsNumber && port.batch != 0) return;
    port.batch = kIsMatrix ? of_matrices : port.kAddresses;
  }

 private:
  using This = Form<kMember, kAlignment>;
  static constexpr bool kIsMatrix = cutlass::platform::is_same<This, Matrix<kMember, kAlignment>>::value ||
                                    cutlass::platform::is_same<This, ColumnMajorMatrix<kMember, kAlignment>>::value;
  static constexpr bool kIsNumber = cutlass::platform::is_same<This, PerBatch<kMember, kAlignment>>::value;
};
template <typename... Ports>
struct EachPort<List<Ports...>> {
  template <typename Arguments>
  CUTLASS_HOST_DEVICE static void choose(Arguments& chosen, Arguments const& arguments, int64_t matrix) {
    (EachPort<Ports>::choose(chosen, arguments, matrix), ...);
  }
  template <typename Arguments>
  CUTLASS_HOST_DEVICE static void list(Arguments& arguments, int64_t of_matrices) {
    (EachPort<Ports>::list(arguments, of_matrices), ...);
  }
};
template <typename Function>
using AllPorts = EachPort<List<typename Function::Inputs, typename Function::HalfInputs, typename Function::Outputs,
                               typename Function::WholeOutputs, typename Function::Reductions>>;

template <typename Element>
struct ElementOf;
template <typename Element>
struct ElementOf<Port<Element const>> {
  using Type = Element;
};
template <typename Element>
struct ElementOf<Port<Element>> {
  using Type = Element;
};

/// Moves adjacent elements, of which the first is aligned to `kAlignment`, as many at a time as can be.
template <int kAlignment, typename Element, int kCount>
struct Line {
  static constexpr int kMost = 16 / sizeof(Element);
  static constexpr int kSmaller = kAlignment < kCount ? kAlignment : kCount;
  static constexpr int kPiece = kSmaller < kMost ? kSmaller : kMost;
  using Piece = cutlass::AlignedArray<Element, kPiece>;

  CUTLASS_HOST_DEVICE static void load(Element const* from, cutlass::Array<Element, kCount>& to) {
    auto* const pieces = reinterpret_cast<Piece*>(&to);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount / kPiece; ++i) pieces[i] = reinterpret_cast<Piece const*>(from)[i];
  }
  CUTLASS_HOST_DEVICE static void store(cutlass::Array<Element, kCount> const& from, Element* to) {
    auto const* const pieces = reinterpret_cast<Piece const*>(&from);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount / kPiece; ++i) reinterpret_cast<Piece*>(to)[i] = pieces[i];
  }
  /// Stores where that is wanted. A branch would take with it what computes the elements, so that each line waited for
  /// the one before.
  CUTLASS_HOST_DEVICE static void store(cutlass::Array<Element, kCount> const& from, Element* to, bool wanted) {
    auto const* const pieces = reinterpret_cast<Piece const*>(&from);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount / kPiece; ++i) {
      Piece* const place = reinterpret_cast<Piece*>(to) + i;
#if PYCUTLASS_DEVICE_SIDE
      cutlass::arch::global_store<Piece, int(sizeof(Piece))>(pieces[i], place, wanted);
#else
      if (wanted) *place = pieces[i];
#endif
    }
  }
};

/// Bytes of the registers for so many.
constexpr int round_up_to_word(int bytes) { return (bytes + 3) / 4 * 4; }

/// What decides which element of a tensor belongs to one of D.
enum class Along { kColumns, kRows, kBoth };

/// What a thread reads of a tensor for a block of its elements: `kRows` rows with `kGroups` groups of `kVector`
/// adjacent columns each. `Where` has row(r) and column(g) of the first one in a group, rows, columns and batch: a
/// group is inside of D or outside as a whole. `load_columns`, `load_rows` or `load_elements` reads, as `kAlong` says;
/// `kColumnBytes` is what the registers hold of the first, `kRowBytes` of the other two.
template <typename Port, typename Arguments, int kRows, int kGroups, int kVector>
struct Reader;

template <auto kMember, int kAlignment, typename Arguments, int kRows, int kGroups, int kVector>
struct Reader<Matrix<kMember, kAlignment>, Arguments, kRows, kGroups, kVector> {
  using Element = typename ElementOf<
      cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(Arguments{}.*kMember)>>>::Type;
  // Aligned to what is moved at a time.
  struct alignas(16) Group {
    cutlass::Array<Element, kVector> elements;
  };
  static constexpr Along kAlong = Along::kBoth;
  static constexpr int kRowBytes = kRows * kGroups * kVector * int(sizeof(Element)), kColumnBytes = 0;
  Group groups[kRows][kGroups];

  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_elements(Arguments const& arguments, Where const& where) {
    auto const& port = arguments.*kMember;
    auto const* const first = port.data + where.batch * port.batch;
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      auto const* const line = first + int64_t(where.row(r)) * port.stride;
      CUTLASS_PRAGMA_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        if (where.row(r) < where.rows && where.column(g) < where.columns) {
          Line<kAlignment, Element, kVector>::load(line + where.column(g), groups[r][g].elements);
        } else {
          groups[r][g].elements.clear();
        }
      }
    }
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE Number at(int r, int g, int v) const {
    return function::widened<Number>(Element(groups[r][g].elements[v]));
  }
};

/// Elements that are adjacent for a thread are not so in memory: it reads each alone.
template <auto kMember, int kAlignment, typename Arguments, int kRows, int kGroups, int kVector>
struct Reader<ColumnMajorMatrix<kMember, kAlignment>, Arguments, kRows, kGroups, kVector> {
  using Element = typename Reader<Matrix<kMember, kAlignment>, Arguments, 1, 1, 1>::Element;
  static constexpr Along kAlong = Along::kBoth;
  static constexpr int kRowBytes = kRows * kGroups * kVector * int(sizeof(Element)), kColumnBytes = 0;
  cutlass::Array<Element, kVector> groups[kRows][kGroups];

  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_elements(Arguments const& arguments, Where const& where) {
    auto const& port = arguments.*kMember;
    auto const* const first = port.data + where.batch * port.batch;
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      CUTLASS_PRAGMA_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        groups[r][g].clear();
        if (where.row(r) >= where.rows || where.column(g) >= where.columns) continue;
        auto const* const element = first + where.row(r) + int64_t(where.column(g)) * port.stride;
        CUTLASS_PRAGMA_UNROLL
        for (int v = 0; v < kVector; ++v) groups[r][g][v] = element[v * port.stride];
      }
    }
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE Number at(int r, int g, int v) const {
    return function::widened<Number>(Element(groups[r][g][v]));
  }
};

template <auto kMember, int kAlignment, typename Arguments, int kRows, int kGroups, int kVector>
struct Reader<Row<kMember, kAlignment>, Arguments, kRows, kGroups, kVector> {
  using Element = typename Reader<Matrix<kMember, kAlignment>, Arguments, 1, 1, 1>::Element;
  static constexpr int kWide = Line<kVector, Element, kVector>::kPiece;
  struct alignas(16) Group {
    cutlass::Array<Element, kVector> elements;
  };
  static constexpr Along kAlong = Along::kColumns;
  static constexpr int kRowBytes = 0, kColumnBytes = kGroups * round_up_to_word(kVector * int(sizeof(Element)));
  Group groups[kGroups];

  template <int kAligned, typename Where>
  CUTLASS_HOST_DEVICE void load(Element const* first, Where const& where) {
    CUTLASS_PRAGMA_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      if (where.column(g) < where.columns) {
        Line<kAligned, Element, kVector>::load(first + where.column(g), groups[g].elements);
      }
    }
  }

  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const& arguments, Where const& where) {
    auto const& port = arguments.*kMember;
    auto const* const first = port.data + where.batch * port.batch;
    CUTLASS_PRAGMA_UNROLL
    for (int g = 0; g < kGroups; ++g) groups[g].elements.clear();
    // Vectors may begin anywhere; most are aligned all the same.
    if (kVector > 1 && reinterpret_cast<uintptr_t>(first) % (kWide * sizeof(Element)) == 0) {
      load<kWide>(first, where);
    } else {
      load<kAlignment>(first, where);
    }
  }
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_elements(Arguments const&, Where const&) {}
  template <typename Number>
  CUTLASS_HOST_DEVICE Number at(int, int g, int v) const {
    return function::widened<Number>(Element(groups[g].elements[v]));
  }
};

template <auto kMember, int kAlignment, typename Arguments, int kRows, int kGroups, int kVector>
struct Reader<Column<kMember, kAlignment>, Arguments, kRows, kGroups, kVector> {
  using Element = typename Reader<Matrix<kMember, kAlignment>, Arguments, 1, 1, 1>::Element;
  static constexpr Along kAlong = Along::kRows;
  static constexpr int kRowBytes = kRows * int(sizeof(Element)), kColumnBytes = 0;
  Element elements[kRows];

  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const& arguments, Where const& where) {
    auto const& port = arguments.*kMember;
    auto const* const first = port.data + where.batch * port.batch;
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) elements[r] = where.row(r) < where.rows ? first[where.row(r)] : Element(0);
  }
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_elements(Arguments const&, Where const&) {}
  template <typename Number>
  CUTLASS_HOST_DEVICE Number at(int r, int, int) const {
    return function::widened<Number>(elements[r]);
  }
};

template <auto kMember, int kAlignment, typename Arguments, int kRows, int kGroups, int kVector>
struct Reader<PerBatch<kMember, kAlignment>, Arguments, kRows, kGroups, kVector> {
  using Element = typename Reader<Matrix<kMember, kAlignment>, Arguments, 1, 1, 1>::Element;
  static constexpr Along kAlong = Along::kColumns;
  static constexpr int kRowBytes = 0, kColumnBytes = round_up_to_word(int(sizeof(Element)));
  Element element;

  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const& arguments, Where const& where) {
    auto const& port = arguments.*kMember;
    element = port.data[where.batch * port.batch];
  }
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_elements(Arguments const&, Where const&) {}
  template <typename Number>
  CUTLASS_HOST_DEVICE Number at(int, int, int) const {
    return function::widened<Number>(element);
  }
};

/// The one of three readers of a port that has loaded it: the first was asked for columns, the others for rows and for
/// elements.
template <typename Reader>
CUTLASS_HOST_DEVICE Reader const& loaded_one(Reader const& columns, Reader const& rows, Reader const& elements) {
  return Reader::kAlong == Along::kColumns ? columns : Reader::kAlong == Along::kRows ? rows : elements;
}

/// All that a thread reads.
template <typename Ports, typename Arguments, int kRows, int kGroups, int kVector>
struct Readers;
template <typename Arguments, int kRows, int kGroups, int kVector>
struct Readers<List<>, Arguments, kRows, kGroups, kVector> {
  static constexpr int kRowBytes = 0, kColumnBytes = 0;
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_elements(Arguments const&, Where const&) {}
  template <typename Number>
  CUTLASS_HOST_DEVICE static void values_of(Readers const&, Readers const&, Readers const&, int, int, int, Number*) {}
  template <typename Number>
  CUTLASS_HOST_DEVICE void values(int, int, int, Number*) const {}
};
template <typename First, typename... Others, typename Arguments, int kRows, int kGroups, int kVector>
struct Readers<List<First, Others...>, Arguments, kRows, kGroups, kVector> {
  Reader<First, Arguments, kRows, kGroups, kVector> first;
  Readers<List<Others...>, Arguments, kRows, kGroups, kVector> others;
  static constexpr int kRowBytes = decltype(first)::kRowBytes + decltype(others)::kRowBytes;
  static constexpr int kColumnBytes = decltype(first)::kColumnBytes + decltype(others)::kColumnBytes;

  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const& arguments, Where const& where) {
    first.load_columns(arguments, where);
    others.load_columns(arguments, where);
  }
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const& arguments, Where const& where) {
    first.load_rows(arguments, where);
    others.load_rows(arguments, where);
  }
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_elements(Arguments const& arguments, Where const& where) {
    first.load_elements(arguments, where);
    others.load_elements(arguments, where);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static void values_of(Readers const& columns, Readers const& rows, Readers const& elements, int r,
                                            int g, int v, Number* in) {
    *in = loaded_one(columns.first, rows.first, elements.first).template at<Number>(r, g, v);
    decltype(others)::values_of(columns.others, rows.others, elements.others, r, g, v, in + 1);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE void values(int r, int g, int v, Number* in) const {
    values_of(*this, *this, *this, r, g, v, in);
  }
};

/// What three readers have loaded: the first columns, the others rows and elements.
template <typename AllReaders>
struct Loaded {
  AllReaders const &columns, &rows, &elements;

  CUTLASS_HOST_DEVICE Loaded(AllReaders const& columns_, AllReaders const& rows_, AllReaders const& elements_)
      : columns(columns_), rows(rows_), elements(elements_) {}
  template <typename Number>
  CUTLASS_HOST_DEVICE void values(int r, int g, int v, Number* in) const {
    AllReaders::values_of(columns, rows, elements, r, g, v, in);
  }
};

/// Writes what a thread has of the outputs at row `r` and group `g`: out[0] belongs to the first of them.
/// `kBranches` has rows be converted one after the other, where registers do not hold all at once.
template <typename Ports>
struct Writers;
template <>
struct Writers<List<>> {
  template <bool kBranches = false, typename Arguments, typename Where, typename Number, int kVector>
  CUTLASS_HOST_DEVICE static void store(Arguments const&, Where const&, int, int, Number const (*)[kVector]) {}
};
template <auto kMember, int kAlignment, typename... Others>
struct Writers<List<Matrix<kMember, kAlignment>, Others...>> {
  template <bool kBranches = false, typename Arguments, typename Where, typename Number, int kVector>
  CUTLASS_HOST_DEVICE static void store(Arguments const& arguments, Where const& where, int r, int g,
                                        Number const (*out)[kVector]) {
    auto const& port = arguments.*kMember;
    using Element =
        typename ElementOf<cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(port)>>>::Type;
    auto const converted = [&] {
      struct alignas(16) {
        cutlass::Array<Element, kVector> elements;
      } group;
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kVector; ++v) group.elements[v] = function::Stored<Element>::of((*out)[v]);
      return group;
    };
    auto* const line = port.data + where.batch * port.batch + int64_t(where.row(r)) * port.stride;
    bool const is_inside = where.row(r) < where.rows && where.column(g) < where.columns;
    using To = Line<kAlignment, Element, kVector>;
    if constexpr (kBranches) {
      if (is_inside) To::store(converted().elements, line + where.column(g));
    } else {
      To::store(converted().elements, line + where.column(g), is_inside);
    }
    Writers<List<Others...>>::template store<kBranches>(arguments, where, r, g, out + 1);
  }
};

template <auto kMember, int kAlignment, typename... Others>
struct Writers<List<ColumnMajorMatrix<kMember, kAlignment>, Others...>> {
  template <bool kBranches = false, typename Arguments, typename Where, typename Number, int kVector>
  CUTLASS_HOST_DEVICE static void store(Arguments const& arguments, Where const& where, int r, int g,
                                        Number const (*out)[kVector]) {
    auto const& port = arguments.*kMember;
    using Element =
        typename ElementOf<cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(port)>>>::Type;
    if (where.row(r) < where.rows && where.column(g) < where.columns) {
      auto* const first = port.data + where.batch * port.batch + where.row(r) + int64_t(where.column(g)) * port.stride;
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kVector; ++v) first[v * port.stride] = function::Stored<Element>::of((*out)[v]);
    }
    Writers<List<Others...>>::template store<kBranches>(arguments, where, r, g, out + 1);
  }
};

/// Where the elements of D are of which each is made of two neighbouring columns, of which `Where` tells.
template <typename Where>
struct HalfColumns {
  Where const& whole;
  int rows, columns;
  int64_t batch;

  CUTLASS_HOST_DEVICE explicit HalfColumns(Where const& where)
      : whole(where), rows(where.rows), columns(where.columns / 2), batch(where.batch) {}
  CUTLASS_HOST_DEVICE int row(int r) const { return whole.row(r); }
  CUTLASS_HOST_DEVICE int column(int g) const { return whole.column(g) / 2; }
};

}  // namespace pycutlass
