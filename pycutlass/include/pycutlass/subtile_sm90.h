// How the threads of a warp group share a part of a tile, and how each moves its elements to and from shared memory.
#pragma once

#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/array.h>
#include <cutlass/numeric_conversion.h>

namespace pycutlass {

/// What D has of computed numbers.
///
/// Of max(x, 0) and the conversion to uint8_t ptxas 13.0 makes one instruction, F2IP.U8.F32.NTZ.RELU, which an H100
/// does not execute ("an illegal instruction was encountered"). It makes none where another one stands between them,
/// and the limit of 255 changes nothing: the conversion saturates, and has 0 of NaN.
template <typename Element, typename Computed, int kCount>
CUTLASS_DEVICE cutlass::Array<Element, kCount> converted(cutlass::Array<Computed, kCount> numbers) {
#if defined(__CUDA_ARCH__)
  if constexpr (cute::is_same_v<Element, uint8_t> && cute::is_same_v<Computed, float>) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) asm("min.NaN.f32 %0, %1, %2;" : "=f"(numbers[i]) : "f"(numbers[i]), "f"(255.0f));
  }
#endif
  return cutlass::NumericArrayConverter<Element, Computed, kCount>{}(numbers);
}

/// How the threads of a warp group share a subtile of `kRows` x `kColumns` elements, each with a fragment in registers,
/// and how a fragment goes to shared memory and comes from there, where the elements of a row are side by side, or
/// those of a column.
///
/// Warp w of the group has rows 16 w to 16 w + 15. Of each 8 columns, thread 4 r + c of the warp has elements 2 c and
/// 2 c + 1 of row r, then those of row r + 8: PTX ISA, "Register fragments and shared memory matrix layouts" of wgmma.
template <typename Element, int kRows, int kColumns, int kFragment, bool kByColumns = false>
struct Subtile {
  using Fragment = cutlass::Array<Element, kFragment>;
  /// ldmatrix and stmatrix move 16 x 16 elements of 16 bits for a warp, and transpose them where columns are stored.
  static constexpr bool kMovesMatrices = sizeof(Element) == 2;
  static_assert(sizeof(Element) <= 4 && (kColumns == 8 || kColumns % 16 == 0));

  int warp;
  int lane;

  CUTLASS_DEVICE explicit Subtile(int thread) : warp(thread / 32), lane(thread % 32) {}

  template <typename Shared>
  CUTLASS_DEVICE void load(Shared const& shared, Fragment& fragment) const {
    if constexpr (kMovesMatrices) {
      each_matrix(shared, fragment, [](auto* memory, uint32_t* registers) {
        if constexpr (kColumns == 8) {
          using Load = cute::conditional_t<kByColumns, cute::SM75_U16x4_LDSM_T, cute::SM75_U32x2_LDSM_N>;
          Load::copy(*memory, registers[0], registers[1]);
        } else {
          using Load = cute::conditional_t<kByColumns, cute::SM75_U16x8_LDSM_T, cute::SM75_U32x4_LDSM_N>;
          Load::copy(*memory, registers[0], registers[1], registers[2], registers[3]);
        }
      });
    } else {
      each_pair(shared, fragment, [](auto* memory, auto* registers) { *registers = *memory; });
    }
  }

  template <typename Shared>
  CUTLASS_DEVICE void store(Fragment& fragment, Shared const& shared) const {
    if constexpr (kMovesMatrices) {
      each_matrix(shared, fragment, [](auto* memory, uint32_t* registers) {
        if constexpr (kColumns == 8) {
          using Store = cute::conditional_t<kByColumns, cute::SM90_U16x4_STSM_T, cute::SM90_U32x2_STSM_N>;
          Store::copy(registers[0], registers[1], *memory);
        } else {
          using Store = cute::conditional_t<kByColumns, cute::SM90_U16x8_STSM_T, cute::SM90_U32x4_STSM_N>;
          Store::copy(registers[0], registers[1], registers[2], registers[3], *memory);
        }
      });
    } else {
      each_pair(shared, fragment, [](auto* memory, auto* registers) { *memory = *registers; });
    }
  }

 private:
  /// Calls `move` with the address of a line of 8 elements that this thread has to name, and the registers of its own
  /// elements of four matrices: rows 0 to 7 and 8 to 15 of 8 columns, then those of the next 8, if there are more.
  template <typename Shared, typename Move>
  CUTLASS_DEVICE void each_matrix(Shared const& shared, Fragment& fragment, Move move) const {
    auto* registers = reinterpret_cast<uint32_t*>(&fragment);
    int const row = 16 * warp + (kByColumns ? lane & 8 : lane % 16);
    int const column = (kColumns == 8 ? 0 : lane / 16 * 8) + (kByColumns ? lane % 8 : 0);
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; 16 * part < kColumns; ++part) {
      Element* line = &shared(row, 16 * part + column);
      move(reinterpret_cast<cute::uint128_t*>(line), registers + 4 * part);
    }
  }

  /// Calls `move` with every address of this thread's elements, and their registers: in pairs, or one by one where the
  /// elements of a pair are not side by side.
  template <typename Shared, typename Move>
  CUTLASS_DEVICE void each_pair(Shared const& shared, Fragment& fragment, Move move) const {
    using Pair = cutlass::AlignedArray<Element, 2>;
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < kFragment / 2; ++part) {
      int const row = 16 * warp + lane / 4 + 8 * (part % 2), column = 8 * (part / 2) + 2 * (lane % 4);
      if constexpr (kByColumns) {
        auto* registers = reinterpret_cast<Element*>(&fragment) + 2 * part;
        move(&shared(row, column), registers);
        move(&shared(row, column + 1), registers + 1);
      } else {
        move(reinterpret_cast<Pair*>(&shared(row, column)), reinterpret_cast<Pair*>(&fragment) + part);
      }
    }
  }
};

}  // namespace pycutlass
