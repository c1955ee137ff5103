// What the threads of a GEMV multiply: how they divide a tile, what they load, and how sums meet (gemv.h).
#pragma once

#include "pycutlass/ports.h"
#include "pycutlass/prelude.h"

#include <cutlass/array.h>
#include <cutlass/cutlass.h>
#include <cutlass/numeric_conversion.h>

namespace pycutlass {

/// An operand of a tile: its lines, of which so many are left.
template <typename Element>
struct GemvOperand {
  Element const* data;
  int64_t ld;
  int lines;
};

/// Adjacent elements, in registers.
template <typename Element, int kCount>
struct alignas(sizeof(Element) * kCount) GemvFragment {
  cutlass::Array<Element, kCount> elements;
};

/// Loads from memory that is not written meanwhile. `kOnce`: nobody else reads it, so that the L1 cache need not keep
/// it.
template <bool kOnce, typename Piece>
CUTLASS_HOST_DEVICE void load_piece(Piece const* from, Piece* to) {
#if defined(__CUDA_ARCH__)
  if constexpr (kOnce && sizeof(Piece) == 16) {
    auto* const words = reinterpret_cast<unsigned*>(to);
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from));
    return;
  }
#endif
  *to = *from;
}

/// Loads adjacent elements, of which `rest` are there, in pieces of `kAlignment`; the others are zero.
template <int kAlignment, bool kOnce, typename Element, int kCount>
CUTLASS_HOST_DEVICE void load_fragment(Element const* from, int rest, GemvFragment<Element, kCount>& to) {
  constexpr int kPiece = kAlignment < kCount ? kAlignment : kCount;
  using Piece = GemvFragment<Element, kPiece>;
  auto* const pieces = reinterpret_cast<Piece*>(&to);
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kCount / kPiece; ++i) {
    if (i * kPiece < rest) {
      load_piece<kOnce>(reinterpret_cast<Piece const*>(from) + i, pieces + i);
    } else {
      pieces[i].elements.clear();
    }
  }
}

/// Adds up `kCount` values of lanes whose numbers differ by multiples of `kLeast`. Lanes halve what they have as long
/// as there is more than one value: each ends with fewer, of which the number of the first is returned.
template <int kDistance, int kLeast, int kCount, typename Sum>
CUTLASS_DEVICE int add_up_lanes(Sum* values, int lane) {
  if constexpr (kDistance < kLeast) {
    return 0;
  } else if constexpr (kCount == 1) {
    values[0] += __shfl_xor_sync(0xffffffffu, values[0], kDistance);
    return add_up_lanes<kDistance / 2, kLeast, 1>(values, lane);
  } else {
    constexpr int kHalf = kCount / 2;
    bool const upper = lane & kDistance;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      Sum const given = upper ? values[i] : values[i + kHalf], kept = upper ? values[i + kHalf] : values[i];
      values[i] = kept + __shfl_xor_sync(0xffffffffu, given, kDistance);
    }
    int const first = add_up_lanes<kDistance / 2, kLeast, kHalf>(values, lane);
    return (upper ? kHalf : 0) + first;
  }
}

/// An element as a number that is multiplied.
template <typename Number, typename Element>
struct GemvNumber {
  CUTLASS_HOST_DEVICE static Number of(Element const& element) {
    return cutlass::NumericConverter<Number, Element>()(element);
  }
};

#if defined(CUDA_PTX_FP8_CVT_ENABLED)
constexpr bool kConvertsFloat8 = true;
#else
// Older GPUs have no instruction for 8-bit floats, and CUTLASS's conversion is long.
constexpr bool kConvertsFloat8 = false;

/// The same bits in float, with an exponent that is too small by the difference of the biases.
template <>
struct GemvNumber<float, cutlass::float_e4m3_t> {
  CUTLASS_HOST_DEVICE static float of(cutlass::float_e4m3_t const& element) {
    union {
      uint32_t bits;
      float number;
    } found = {uint32_t(element.raw() & 0x80) << 24 | uint32_t(element.raw() & 0x7f) << 20};
    found.number *= 0x1p120f;
    if ((element.raw() & 0x7f) == 0x7f) found.bits = 0x7fffffff;
    return found.number;
  }
};
/// The upper half of float16.
template <>
struct GemvNumber<float, cutlass::float_e5m2_t> {
  CUTLASS_HOST_DEVICE static float of(cutlass::float_e5m2_t const& element) {
    return float(cutlass::half_t::bitcast(uint16_t(element.raw() << 8)));
  }
};
#endif

/// Some of a fragment's elements as numbers that are multiplied.
template <typename Number, int kCount, typename Element, int kAll>
CUTLASS_HOST_DEVICE cutlass::Array<Number, kCount> numbers_of(GemvFragment<Element, kAll> const& fragment, int first) {
  if constexpr (sizeof(Element) == 1 && !kConvertsFloat8) {
    cutlass::Array<Number, kCount> numbers;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) numbers[i] = GemvNumber<Number, Element>::of(fragment.elements[first + i]);
    return numbers;
  } else {
    using Few = cutlass::Array<Element, kCount>;
    auto const* const elements = reinterpret_cast<Element const*>(&fragment) + first;
    return cutlass::NumericArrayConverter<Number, Element, kCount>()(*reinterpret_cast<Few const*>(elements));
  }
}

/// What the threads of a warp have in common, whichever way their loads lie: `kCount` sums of each, of `kAcross`
/// columns side by side; lanes whose numbers differ by multiples of `kStep` have the same ones.
template <typename Sum_, int kCount_, int kAcross, int kStep>
struct GemvSums {
  using Sum = Sum_;
  static constexpr int kCount = kCount_, kSharers = 32 / kStep, kLeft = kCount > kSharers ? kCount / kSharers : 1;
  Sum sums[kCount];

  /// Hands over each sum of a warp, its row and its column from `first_column` on, as they are in the tile.
  template <typename Use>
  CUTLASS_DEVICE void share(int lane, int first_column, Use const& use) {
    int const first = add_up_lanes<16, kStep, kCount>(sums, lane);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLeft; ++i) use((first + i) / kAcross, first_column + (first + i) % kAcross, sums[i]);
  }
};

/// Calls step<true>(k) for each step of a warp that is whole, and step<false>(k) for the rest.
template <int kDepth, int kStep, typename Step>
CUTLASS_DEVICE void for_steps(int warp, int k, Step const& step) {
  int at = warp * kDepth;
  CUTLASS_PRAGMA_NO_UNROLL
  for (; at + kDepth <= k; at += kStep) step(at, cutlass::platform::true_type());
  if (at < k) step(at, cutlass::platform::false_type());
}

/// Threads of which each loads elements along K. The lanes of a warp lie along K, and have all of its columns.
template <typename A, typename B, typename Sum, typename Tile, typename Warps>
struct GemvAlongK {
  using ElementA = typename A::Element;
  using ElementB = typename B::Element;
  static constexpr int kRows = Tile::kM, kColumns = Tile::kN / Warps::kN, kDepth = Tile::kK / Warps::kK;  // of a warp
  static constexpr int kVector = 16 / sizeof(ElementB);   // elements of a load
  static constexpr int kLoads = kDepth / (32 * kVector);  // of a thread and a column, in a step
  /// Whether there are registers for all of A in a step; conversions of 8-bit floats take some.
  static constexpr bool kIsEarly = kRows * kLoads <= (sizeof(ElementA) == 1 ? 4 : 8);
  static_assert(kColumns * Warps::kN == Tile::kN && kDepth * Warps::kK == Tile::kK);
  static_assert(kLoads * 32 * kVector == kDepth && sizeof(ElementA) == sizeof(ElementB));
  using FragmentA = GemvFragment<ElementA, kVector>;
  using FragmentB = GemvFragment<ElementB, kVector>;

  int first_column, warp_k, lane;  // the column in the tile
  GemvSums<Sum, kRows * kColumns, kColumns, 1> all;

  CUTLASS_DEVICE GemvAlongK(int warp_n, int warp_k, int lane)
      : first_column(warp_n * kColumns), warp_k(warp_k), lane(lane), all{} {}

  CUTLASS_DEVICE void add_up(GemvOperand<ElementA> const& a, GemvOperand<ElementB> const& b, int tile_column, int k) {
    // What is beyond the last line is that line again: its sums are not written.
    ElementA const* rows[kRows];
    ElementB const* columns[kColumns];
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) rows[r] = a.data + cutlass::platform::min(r, a.lines - 1) * a.ld;
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      columns[c] = b.data + (tile_column + cutlass::platform::min(first_column + c, b.lines - 1)) * b.ld;
    }
    for_steps<kDepth, Tile::kK>(warp_k, k, [&](int first, auto is_whole) {
      auto const rest = [&](int at) { return decltype(is_whole)::value ? kVector : k - at; };
      int const at = first + lane * kVector;
      FragmentB loaded[kLoads][kColumns];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        int const here = at + i * 32 * kVector;
        CUTLASS_PRAGMA_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          load_fragment<B::kAlignment, true>(columns[c] + here, rest(here), loaded[i][c]);
        }
      }
      FragmentA of_rows[kIsEarly ? kLoads : 1][kRows];
      auto const load_rows = [&](int i) {
        int const here = at + i * 32 * kVector;
        CUTLASS_PRAGMA_UNROLL
        for (int r = 0; r < kRows; ++r) {
          load_fragment<A::kAlignment, false>(rows[r] + here, rest(here), of_rows[kIsEarly ? i : 0][r]);
        }
      };
      if constexpr (kIsEarly) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kLoads; ++i) load_rows(i);
      }
      __syncwarp();  // else compilers multiply what has come before they load the rest, to save registers
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        if constexpr (!kIsEarly) load_rows(i);
        multiply(of_rows[kIsEarly ? i : 0], loaded[i]);
      }
    });
  }

  template <typename Use>
  CUTLASS_DEVICE void share(Use const& use) {
    all.share(lane, first_column, use);
  }

 private:
  CUTLASS_DEVICE void multiply(FragmentA const (&rows)[kRows], FragmentB const (&columns)[kColumns]) {
    constexpr int kFew = 4;
    CUTLASS_PRAGMA_UNROLL
    for (int first = 0; first < kVector; first += kFew) {
      if constexpr (cutlass::platform::is_same<Sum, int>::value) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kRows * kColumns; ++i) {
          auto const* const row = reinterpret_cast<int const*>(&rows[i / kColumns]);
          auto const* const column = reinterpret_cast<int const*>(&columns[i % kColumns]);
          all.sums[i] = __dp4a(row[first / kFew], column[first / kFew], all.sums[i]);
        }
      } else {
        cutlass::Array<Sum, kFew> of_columns[kColumns];
        CUTLASS_PRAGMA_UNROLL
        for (int c = 0; c < kColumns; ++c) of_columns[c] = numbers_of<Sum, kFew>(columns[c], first);
        CUTLASS_PRAGMA_UNROLL
        for (int r = 0; r < kRows; ++r) {
          auto const of_row = numbers_of<Sum, kFew>(rows[r], first);
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kColumns * kFew; ++i) {
            Sum& sum = all.sums[r * kColumns + i / kFew];
            sum = of_row[i % kFew] * of_columns[i / kFew][i % kFew] + sum;
          }
        }
      }
    }
  }
};

/// Threads of which each loads elements along N, some lines one below the other. Those of a warp lie along N, as many
/// as its columns take, and then along K.
template <typename A, typename B, typename Sum, typename Tile, typename Warps>
struct GemvAlongN {
  using ElementA = typename A::Element;
  using ElementB = typename B::Element;
  static constexpr int kRows = Tile::kM, kColumns = Tile::kN / Warps::kN, kDepth = Tile::kK / Warps::kK;  // of a warp
  static constexpr int kMost = 16 / sizeof(ElementB), kSums = 64;
  static constexpr int kVector = kMost < kSums / kRows ? kMost : kSums / kRows;  // elements of a load
  static constexpr int kLanes = kColumns / kVector;                              // along N
  static constexpr int kLoads = kDepth * kLanes / 32;                            // of a thread, in a step
  static_assert(kColumns * Warps::kN == Tile::kN && kDepth * Warps::kK == Tile::kK);
  static_assert(kLanes * kVector == kColumns && kLoads * 32 == kDepth * kLanes);
  using FragmentA = GemvFragment<ElementA, kLoads>;
  using FragmentB = GemvFragment<ElementB, kVector>;

  int first_column, warp_k, lane;  // the column in the tile
  GemvSums<Sum, kRows * kVector, kVector, kLanes> all;

  CUTLASS_DEVICE GemvAlongN(int warp_n, int warp_k, int lane)
      : first_column(warp_n * kColumns + lane % kLanes * kVector), warp_k(warp_k), lane(lane), all{} {}

  CUTLASS_DEVICE void add_up(GemvOperand<ElementA> const& a, GemvOperand<ElementB> const& b, int tile_column, int k) {
    ElementA const* rows[kRows];
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < kRows; ++r) rows[r] = a.data + cutlass::platform::min(r, a.lines - 1) * a.ld;
    ElementB const* const columns = b.data + tile_column + first_column;
    int const width = b.lines - first_column;
    for_steps<kDepth, Tile::kK>(warp_k, k, [&](int first, auto is_whole) {
      constexpr bool kIsWhole = decltype(is_whole)::value;
      int const at = first + lane / kLanes * kLoads;
      FragmentB loaded[kLoads];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        int const rest = kIsWhole || at + i < k ? width : 0;
        load_fragment<B::kAlignment, true>(columns + (at + i) * b.ld, rest, loaded[i]);
      }
      FragmentA of_rows[kRows];
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        load_fragment<A::kAlignment, false>(rows[r] + at, kIsWhole ? kLoads : k - at, of_rows[r]);
      }
      __syncwarp();  // as above
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLoads; ++i) multiply(of_rows, i, loaded[i]);
    });
  }

  template <typename Use>
  CUTLASS_DEVICE void share(Use const& use) {
    all.share(lane, first_column, use);
  }

 private:
  CUTLASS_DEVICE void multiply(FragmentA const (&rows)[kRows], int line, FragmentB const& columns) {
    constexpr int kFew = 4;
    static_assert(kVector % kFew == 0);
    CUTLASS_PRAGMA_UNROLL
    for (int first = 0; first < kVector; first += kFew) {
      auto const of_columns = numbers_of<Sum, kFew>(columns, first);
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        Sum const of_row = GemvNumber<Sum, ElementA>::of(ElementA(rows[r].elements[line]));
        CUTLASS_PRAGMA_UNROLL
        for (int v = 0; v < kFew; ++v) {
          Sum& sum = all.sums[r * kVector + first + v];
          sum = of_row * of_columns[v] + sum;
        }
      }
    }
  }
};

}  // namespace pycutlass
