// Epilogue functions: what the C++ of one is made of, whatever kernel it belongs to. pycutlass/epilogue/lowering.py
// writes a structure `Function` for each, with
//   Number, Arguments, Inputs, Outputs, Reductions, kReadsSource, kScalars,
//   read_scalars(arguments, scalars): scalars of the launch, from the arguments or from device memory, and
//   compute(scalars, in, out): one element. in[0] is the accumulator, then come C where it is read and the Inputs in
//   their order; out[0] is D, then come the Outputs.
// Where kIsGated, D has half as many columns, as have the HalfInputs, the Outputs and what is reduced: compute(scalars,
// even, odd, half, out, whole) makes one element of them of two neighbouring ones, each given as `in` is. `half` has
// the HalfInputs, and whole[0], whole[1] and so on are the two elements of each of the WholeOutputs. C is not read.
#pragma once

#include "pycutlass/activation.h"
#include "pycutlass/epilogue.h"
#include "pycutlass/prelude.h"

#include <cutlass/array.h>
#include <cutlass/bfloat16.h>
#include <cutlass/cutlass.h>
#include <cutlass/float8.h>
#include <cutlass/half.h>
#include <cutlass/platform/platform.h>

#if !defined(__CUDACC_RTC__)
#include <math.h>
#endif

namespace pycutlass {

namespace function {

CUTLASS_HOST_DEVICE float exp(float x) { return ::expf(x); }
CUTLASS_HOST_DEVICE double exp(double x) { return ::exp(x); }
CUTLASS_HOST_DEVICE float exp2(float x) { return ::exp2f(x); }
CUTLASS_HOST_DEVICE double exp2(double x) { return ::exp2(x); }
CUTLASS_HOST_DEVICE float log(float x) { return ::logf(x); }
CUTLASS_HOST_DEVICE double log(double x) { return ::log(x); }
CUTLASS_HOST_DEVICE float log1p(float x) { return ::log1pf(x); }
CUTLASS_HOST_DEVICE double log1p(double x) { return ::log1p(x); }
CUTLASS_HOST_DEVICE float sqrt(float x) { return ::sqrtf(x); }
CUTLASS_HOST_DEVICE double sqrt(double x) { return ::sqrt(x); }
CUTLASS_HOST_DEVICE float rsqrt(float x) { return 1 / ::sqrtf(x); }
CUTLASS_HOST_DEVICE double rsqrt(double x) { return 1 / ::sqrt(x); }
CUTLASS_HOST_DEVICE float erf(float x) { return ::erff(x); }
CUTLASS_HOST_DEVICE double erf(double x) { return ::erf(x); }
CUTLASS_HOST_DEVICE float floor(float x) { return ::floorf(x); }
CUTLASS_HOST_DEVICE double floor(double x) { return ::floor(x); }
CUTLASS_HOST_DEVICE float ceil(float x) { return ::ceilf(x); }
CUTLASS_HOST_DEVICE double ceil(double x) { return ::ceil(x); }
CUTLASS_HOST_DEVICE float round(float x) { return ::rintf(x); }
CUTLASS_HOST_DEVICE double round(double x) { return ::rint(x); }
CUTLASS_HOST_DEVICE float abs(float x) { return ::fabsf(x); }
CUTLASS_HOST_DEVICE double abs(double x) { return ::fabs(x); }
CUTLASS_HOST_DEVICE float power(float x, float y) { return ::powf(x, y); }
CUTLASS_HOST_DEVICE double power(double x, double y) { return ::pow(x, y); }
CUTLASS_HOST_DEVICE float fmod(float x, float y) { return ::fmodf(x, y); }
CUTLASS_HOST_DEVICE double fmod(double x, double y) { return ::fmod(x, y); }
CUTLASS_HOST_DEVICE float copysign(float x, float y) { return ::copysignf(x, y); }
CUTLASS_HOST_DEVICE double copysign(double x, double y) { return ::copysign(x, y); }

/// NaN where either is, as in NumPy and torch.
template <typename Number>
CUTLASS_HOST_DEVICE Number maximum(Number x, Number y) {
  return x > y || x != x ? x : y;
}
template <typename Number>
CUTLASS_HOST_DEVICE Number minimum(Number x, Number y) {
  return x < y || x != x ? x : y;
}
/// The same in one instruction, in place of three.
CUTLASS_HOST_DEVICE float maximum(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return activation::at_least(y, x);
#else
  return maximum<float>(x, y);
#endif
}
CUTLASS_HOST_DEVICE float minimum(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
#else
  return minimum<float>(x, y);
#endif
}

/// With the sign of the divisor, as Python's % has it, zeros too.
template <typename Number>
CUTLASS_HOST_DEVICE Number remainder(Number x, Number y) {
  Number const rest = fmod(x, y);
  if (rest == Number(0)) return copysign(rest, y);
  return (rest < Number(0)) != (y < Number(0)) ? rest + y : rest;
}

template <typename Number>
CUTLASS_HOST_DEVICE Number softplus(Number x) {
  return maximum(x, Number(0)) + log1p(exp(-abs(x)));
}

template <typename Number>
CUTLASS_HOST_DEVICE Number infinity() {
  return Number(CUTLASS_STL_NAMESPACE::numeric_limits<float>::infinity());
}

/// An element as a number that is computed with. CUTLASS's narrow types become f32, and nothing else; f32 does not hold
/// every int32.
template <typename Number, typename Element>
CUTLASS_HOST_DEVICE Number widened(Element const& element) {
  if constexpr (sizeof(Element) < sizeof(float)) {
    return Number(static_cast<float>(element));
  } else {
    return Number(element);
  }
}

/// A number rounded to an element type: to nearest even; narrow types saturate, and NaN becomes 0 in integers.
template <typename Element>
struct Stored {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Element of(Number x) {
    return Element(x);
  }
};
template <int kBits, typename Element>
struct StoredInteger {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Element of(Number x) {
    constexpr auto greatest = Element((1u << (kBits - 1)) - 1);
    constexpr Number beyond = Number(1u << (kBits - 1));
    x = round(x);
    if (x != x) return 0;
    return x >= beyond ? greatest : x <= -beyond ? Element(-greatest - 1) : Element(x);
  }
};
template <>
struct Stored<int8_t> : StoredInteger<8, int8_t> {};
template <>
struct Stored<int32_t> : StoredInteger<32, int32_t> {};
template <>
struct Stored<cutlass::half_t> {
  CUTLASS_HOST_DEVICE static cutlass::half_t of(float x) { return cutlass::half_t(x); }
  /// Through the float beside x whose last bit is 1, where x is none itself: it is no tie unless x is.
  CUTLASS_HOST_DEVICE static cutlass::half_t of(double x) {
    union {
      float number;
      uint32_t bits;
    } near = {float(x)};
    if (double(near.number) != x && x == x) {
      near.bits -= abs(double(near.number)) > abs(x);
      near.bits |= 1;
    }
    return cutlass::half_t(near.number);
  }
};
template <>
struct Stored<cutlass::bfloat16_t> {
  CUTLASS_HOST_DEVICE static cutlass::bfloat16_t of(float x) { return cutlass::bfloat16_t(x); }
  CUTLASS_HOST_DEVICE static cutlass::bfloat16_t of(double x) { return cutlass::bfloat16_t(float(x)); }
};

/// Floats of 8 bits saturate, infinities too, and keep NaN: as ml_dtypes and torch convert what was clamped before.
/// `kBias` belongs to their exponent.
template <typename Element, int kMantissa, int kBias, int kGreatest>
struct StoredFloat8 {
  CUTLASS_HOST_DEVICE static Element of(double x) { return of(float(x)); }
  CUTLASS_HOST_DEVICE static Element of(float x) {
#if defined(CUDA_PTX_FP8_CVT_ENABLED)
    return Element(x);  // an instruction that does the same
#else
    constexpr int kShift = 23 - kMantissa;
    uint8_t const sign = uint8_t(bits_of(x) >> 24) & 0x80;
    if (x != x) return Element::bitcast(0x7f);
    float const size = minimum(abs(x), float(kGreatest));
    if (size * float(1 << (kBias - 1)) < 1) {  // less than the least normal one, in steps of one size
      return Element::bitcast(sign | uint8_t(round(size * float(1 << (kBias - 1 + kMantissa)))));
    }
    uint32_t bits = bits_of(size);
    bits += (1u << (kShift - 1)) - 1 + (bits >> kShift & 1);
    return Element::bitcast(sign | uint8_t((bits >> kShift) - ((127 - kBias) << kMantissa)));
#endif
  }

 private:
  CUTLASS_HOST_DEVICE static uint32_t bits_of(float x) {
    union {
      float number;
      uint32_t bits;
    } const both = {x};
    return both.bits;
  }
};
template <>
struct Stored<cutlass::float_e4m3_t> : StoredFloat8<cutlass::float_e4m3_t, 3, 7, 448> {};
template <>
struct Stored<cutlass::float_e5m2_t> : StoredFloat8<cutlass::float_e5m2_t, 2, 15, 57344> {};

template <typename Element, typename Number>
CUTLASS_HOST_DEVICE Number rounded_to(Number x) {
  return widened<Number>(Stored<Element>::of(x));
}

}  // namespace function

template <typename... Ports>
struct List {
  static constexpr int kSize = sizeof...(Ports);
};

/// What every `Function` has: the type that each result is rounded to, the one that is computed in on the way, and the
/// one that activations are right to.
template <typename Compute, typename Number_, typename Activated_ = Number_>
struct EpilogueFunction {
  using Number = Number_;
  using Activated = Activated_;
  static constexpr bool kIsGated = false;
  using HalfInputs = List<>;
  using WholeOutputs = List<>;

  CUTLASS_HOST_DEVICE static Number rounded(Number x) {
    if constexpr (cutlass::platform::is_same<Compute, Number>::value) {
      return x;
    } else {
      return function::rounded_to<Compute>(x);
    }
  }
  CUTLASS_HOST_DEVICE static void read(Compute const& value, Compute const* address, Number& scalar) {
    scalar = function::widened<Number>(address ? *address : value);
  }
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
};

/// What a thread reads of a tensor for a block of its elements: `kRows` rows with `kGroups` groups of `kVector`
/// adjacent columns each. `Where` has row(r) and column(g) of the first one in a group, rows, columns and batch: a
/// group is inside of D or outside as a whole. `kRowBytes` is what the registers hold of these rows alone.
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
  static constexpr int kRowBytes = kRows * kGroups * kVector * int(sizeof(Element));
  Group groups[kRows][kGroups];

  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const& arguments, Where const& where) {
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
  static constexpr int kRowBytes = kRows * kGroups * kVector * int(sizeof(Element));
  cutlass::Array<Element, kVector> groups[kRows][kGroups];

  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const& arguments, Where const& where) {
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
  static constexpr int kRowBytes = 0;
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
  template <typename Number>
  CUTLASS_HOST_DEVICE Number at(int, int g, int v) const {
    return function::widened<Number>(Element(groups[g].elements[v]));
  }
};

template <auto kMember, int kAlignment, typename Arguments, int kRows, int kGroups, int kVector>
struct Reader<Column<kMember, kAlignment>, Arguments, kRows, kGroups, kVector> {
  using Element = typename Reader<Matrix<kMember, kAlignment>, Arguments, 1, 1, 1>::Element;
  static constexpr int kRowBytes = kRows * int(sizeof(Element));
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
  template <typename Number>
  CUTLASS_HOST_DEVICE Number at(int r, int, int) const {
    return function::widened<Number>(elements[r]);
  }
};

template <auto kMember, int kAlignment, typename Arguments, int kRows, int kGroups, int kVector>
struct Reader<PerBatch<kMember, kAlignment>, Arguments, kRows, kGroups, kVector> {
  using Element = typename Reader<Matrix<kMember, kAlignment>, Arguments, 1, 1, 1>::Element;
  static constexpr int kRowBytes = 0;
  Element element;

  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const& arguments, Where const& where) {
    auto const& port = arguments.*kMember;
    element = port.data[where.batch * port.batch];
  }
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const&, Where const&) {}
  template <typename Number>
  CUTLASS_HOST_DEVICE Number at(int, int, int) const {
    return function::widened<Number>(element);
  }
};

/// All that a thread reads.
template <typename Ports, typename Arguments, int kRows, int kGroups, int kVector>
struct Readers;
template <typename Arguments, int kRows, int kGroups, int kVector>
struct Readers<List<>, Arguments, kRows, kGroups, kVector> {
  static constexpr int kRowBytes = 0;
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_columns(Arguments const&, Where const&) {}
  template <typename Where>
  CUTLASS_HOST_DEVICE void load_rows(Arguments const&, Where const&) {}
  template <typename Number>
  CUTLASS_HOST_DEVICE void values(int, int, int, Number*) const {}
};
template <typename First, typename... Others, typename Arguments, int kRows, int kGroups, int kVector>
struct Readers<List<First, Others...>, Arguments, kRows, kGroups, kVector> {
  Reader<First, Arguments, kRows, kGroups, kVector> first;
  Readers<List<Others...>, Arguments, kRows, kGroups, kVector> others;
  static constexpr int kRowBytes = decltype(first)::kRowBytes + decltype(others)::kRowBytes;

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
  template <typename Number>
  CUTLASS_HOST_DEVICE void values(int r, int g, int v, Number* in) const {
    *in = first.template at<Number>(r, g, v);
    others.values(r, g, v, in + 1);
  }
};

/// Writes what a thread has of the outputs at row `r` and group `g`: out[0] belongs to the first of them.
template <typename Ports>
struct Writers;
template <>
struct Writers<List<>> {
  template <typename Arguments, typename Where, typename Number, int kVector>
  CUTLASS_HOST_DEVICE static void store(Arguments const&, Where const&, int, int, Number const (*)[kVector]) {}
};
template <auto kMember, int kAlignment, typename... Others>
struct Writers<List<Matrix<kMember, kAlignment>, Others...>> {
  template <typename Arguments, typename Where, typename Number, int kVector>
  CUTLASS_HOST_DEVICE static void store(Arguments const& arguments, Where const& where, int r, int g,
                                        Number const (*out)[kVector]) {
    auto const& port = arguments.*kMember;
    using Element =
        typename ElementOf<cutlass::platform::remove_cv_t<cutlass::platform::remove_reference_t<decltype(port)>>>::Type;
    if (where.row(r) < where.rows && where.column(g) < where.columns) {
      struct alignas(16) {
        cutlass::Array<Element, kVector> elements;
      } group;
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kVector; ++v) group.elements[v] = function::Stored<Element>::of((*out)[v]);
      auto* const line = port.data + where.batch * port.batch + int64_t(where.row(r)) * port.stride;
      Line<kAlignment, Element, kVector>::store(group.elements, line + where.column(g));
    }
    Writers<List<Others...>>::store(arguments, where, r, g, out + 1);
  }
};

template <auto kMember, int kAlignment, typename... Others>
struct Writers<List<ColumnMajorMatrix<kMember, kAlignment>, Others...>> {
  template <typename Arguments, typename Where, typename Number, int kVector>
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
    Writers<List<Others...>>::store(arguments, where, r, g, out + 1);
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

/// Computes what a group of elements comes to where each two neighbours are one element of D.
template <typename Function, int kVector, typename Accumulator, typename AllReaders, typename HalfReaders, int kMade,
          int kWhole>
CUTLASS_HOST_DEVICE void compute_pairs(typename Function::Number const* scalars, Accumulator const* accumulators,
                                       AllReaders const& readers, HalfReaders const& half_readers, int r, int g,
                                       typename Function::Number (&out)[kMade][kVector / 2],
                                       typename Function::Number (&whole)[kWhole][kVector]) {
  using Number = typename Function::Number;
  static_assert(kVector % 2 == 0, "both columns of a pair belong to one thread");
  static_assert(!Function::kReadsSource && kMade == 1 + Function::Outputs::kSize + Function::Reductions::kSize);
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < kVector / 2; ++v) {
    Number in[2][1 + Function::Inputs::kSize], half[1 + Function::HalfInputs::kSize], made[kMade], both[kWhole][2];
    CUTLASS_PRAGMA_UNROLL
    for (int odd = 0; odd < 2; ++odd) {
      in[odd][0] = function::widened<Number>(accumulators[2 * v + odd]);
      readers.values(r, g, 2 * v + odd, in[odd] + 1);
    }
    half_readers.values(r, g, v, half);
    Function::compute(scalars, in[0], in[1], half, made, both);
    CUTLASS_PRAGMA_UNROLL
    for (int o = 0; o < kMade; ++o) out[o][v] = made[o];
    CUTLASS_PRAGMA_UNROLL
    for (int o = 0; o < Function::WholeOutputs::kSize; ++o) {
      CUTLASS_PRAGMA_UNROLL
      for (int odd = 0; odd < 2; ++odd) whole[o][2 * v + odd] = both[o][odd];
    }
  }
}

/// Computes a group of elements: `source` is called for C, with the number of an element.
template <typename Function, int kVector, typename Accumulator, typename Source, typename AllReaders>
CUTLASS_HOST_DEVICE void compute_group(typename Function::Number const* scalars, Accumulator const* accumulators,
                                       Source const& source, AllReaders const& readers, int r, int g,
                                       typename Function::Number (*out)[kVector]) {
  using Number = typename Function::Number;
  constexpr int kBefore = Function::kReadsSource ? 2 : 1;
  constexpr int kMade = 1 + Function::Outputs::kSize + Function::Reductions::kSize;
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < kVector; ++v) {
    Number in[kBefore + Function::Inputs::kSize], made[kMade];
    in[0] = function::widened<Number>(accumulators[v]);
    if constexpr (Function::kReadsSource) in[1] = Number(source(v));
    readers.values(r, g, v, in + kBefore);
    Function::compute(scalars, in, made);
    CUTLASS_PRAGMA_UNROLL
    for (int o = 0; o < kMade; ++o) out[o][v] = made[o];
  }
}

}  // namespace pycutlass
