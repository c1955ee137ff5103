// How a Hopper-native kernel with A in registers turns a tile of B around in shared memory, where its elements do not
// lie along K. It takes the place of what CUTLASS 4.2 has (cutlass/transform/collective/sm90_wgmma_transpose.hpp). For
// 8-bit elements that counts its steps for one warp group of consumers with the first warps alone: where two share a
// tile, or take turns, it moves some parts of the tile twice and others not at all. For tf32 it keeps so many addresses
// that registers spill.
#pragma once

#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/cutlass.h>
#include <cutlass/tfloat32.h>
#include <cutlass/transform/collective/sm90_wgmma_transpose.hpp>

namespace pycutlass {

/// Two parts of a square of a tile of B, which has kAlong x kAlong of them. A part is turned around where it is, or its
/// place is where part (k, n) has to be, and the other way round. So a warp reads two before it writes them: of the
/// first pairs two of the diagonal, and then (n, n ^ difference) with (n ^ difference, n) for each difference.
template <int kAlong>
struct PartsOfB {
  static constexpr int kPairs = kAlong * kAlong / 2;

  CUTLASS_HOST_DEVICE explicit PartsOfB(int pair) {
    int const difference = pair / (kAlong / 2), number = pair % (kAlong / 2);
    if (difference == 0) {
      n[0] = k[0] = 2 * number;
      n[1] = k[1] = 2 * number + 1;
    } else {
      int const highest = difference < 2 ? 1 : difference < 4 ? 2 : 4;  // bit that all the n of such pairs lack
      n[0] = k[1] = number / highest * 2 * highest + number % highest;
      n[1] = k[0] = n[0] ^ difference;
    }
  }

  int n[2], k[2];
};

/// What mainloops know a transposition by. All of a tile is turned around in the step before the first instruction.
template <typename TiledMma, typename SmemLayoutB, typename Element>
struct TransposedB {
  static constexpr int kWarps = int(cute::size(TiledMma{})) / cutlass::NumThreadsPerWarp;
  static constexpr int kSquare = 128 / sizeof(Element), kPart = sizeof(Element) == 1 ? 16 : 8;
  static constexpr int kHeld = kPart * kPart / cutlass::NumThreadsPerWarp;  // elements of a part that a lane moves
  using Parts = PartsOfB<kSquare / kPart>;
  static_assert(kWarps == 4 || kWarps == 8);
  static_assert(cute::size<1>(SmemLayoutB{}) == kSquare && cute::size<0>(SmemLayoutB{}) % kSquare == 0);

  CUTLASS_HOST_DEVICE TransposedB(int warp, int thread)
      : warp_(warp % kWarps), n_(thread % kPart), k_(thread % cutlass::NumThreadsPerWarp / kPart * kHeld) {}

  template <typename Loaded, typename Transposed>
  CUTLASS_DEVICE void operator()(Loaded const& loaded, Transposed const& transposed, int stage, int step) {
    if (step > 0) return;
    if constexpr (sizeof(Element) == 4) {
      turn_words(loaded, transposed, stage);
    } else {
      turn(loaded, transposed, stage);
    }
  }

  /// Has the tile be there for the instructions behind a step.
  CUTLASS_DEVICE void synchronize(int step) {
    if (step == 0) synchronize();
  }
  CUTLASS_DEVICE void synchronize() {
    cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(cute::size(TiledMma{}), cutlass::arch::ReservedNamedBarriers::TransposeBarrier);
  }

 private:
  template <typename Loaded, typename Transposed>
  CUTLASS_DEVICE void turn(Loaded const& loaded, Transposed const& transposed, int stage) {
    CUTLASS_PRAGMA_NO_UNROLL
    for (int square = 0; square < int(cute::size<0>(SmemLayoutB{})); square += kSquare) {
      CUTLASS_PRAGMA_NO_UNROLL
      for (int pair = warp_; pair < Parts::kPairs; pair += kWarps) {
        Parts const parts(pair);
        typename Loaded::value_type held[2][kHeld];
        auto const exchange = [&](auto const& move) {
          CUTLASS_PRAGMA_UNROLL
          for (int part = 0; part < 2; ++part) {
            int const n = square + parts.n[part] * kPart + n_, k = parts.k[part] * kPart + k_;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kHeld; ++i) move(held[part][i], n, k + i);
          }
        };
        exchange([&](auto& element, int n, int k) { element = loaded(n, k, stage); });
        __syncwarp();
        exchange([&](auto& element, int n, int k) { transposed(n, k, stage) = element; });
      }
    }
  }

  /// All squares have a part in the same place, so that its address is computed once.
  template <typename Loaded, typename Transposed>
  CUTLASS_DEVICE void turn_words(Loaded const& loaded, Transposed const& transposed, int stage) {
    constexpr int kSquares = int(cute::size<0>(SmemLayoutB{})) / kSquare, kWords = kSquare * kSquare;
    static_assert(kHeld == 2);  // which lie side by side once they are turned
    CUTLASS_PRAGMA_NO_UNROLL
    for (int pair = warp_; pair < Parts::kPairs; pair += kWarps) {
      Parts const parts(pair);
      uint32_t const* from[2][kHeld];
      uint2* to[2];
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < 2; ++part) {
        int const n = parts.n[part] * kPart + n_, k = parts.k[part] * kPart + k_;
        from[part][0] = reinterpret_cast<uint32_t const*>(&loaded(n, k, stage));
        from[part][1] = reinterpret_cast<uint32_t const*>(&loaded(n, k + 1, stage));
        to[part] = reinterpret_cast<uint2*>(&transposed(n, k, stage));
      }
      CUTLASS_PRAGMA_UNROLL
      for (int square = 0; square < kSquares; ++square) {
        uint2 held[2];
        CUTLASS_PRAGMA_UNROLL
        for (int part = 0; part < 2; ++part) {
          held[part] = {from[part][0][square * kWords], from[part][1][square * kWords]};
        }
        __syncwarp();
        to[0][square * (kWords / 2)] = held[0];
        to[1][square * (kWords / 2)] = held[1];
      }
    }
  }

  int const warp_, n_, k_;
};

}  // namespace pycutlass

/// CUTLASS's classes for 8-bit elements, which TMA has as uint8_t, and for tf32.
template <class TiledMma, class SmemLayoutB, class SmemLayoutAtomB>
struct cutlass::transform::collective::detail::AsyncTranspositionOperandB_1BElementB<TiledMma, SmemLayoutB,
                                                                                     SmemLayoutAtomB, uint8_t>
    : pycutlass::TransposedB<TiledMma, SmemLayoutB, uint8_t> {
  CUTLASS_HOST_DEVICE AsyncTranspositionOperandB_1BElementB(int warp, int thread, TiledMma, SmemLayoutB,
                                                            SmemLayoutAtomB, uint8_t)
      : pycutlass::TransposedB<TiledMma, SmemLayoutB, uint8_t>(warp, thread) {}
};
template <class TiledMma, class SmemLayoutB, class SmemLayoutAtomB>
struct cutlass::transform::collective::detail::AsyncTranspositionOperandB<TiledMma, SmemLayoutB, SmemLayoutAtomB,
                                                                          cutlass::tfloat32_t>
    : pycutlass::TransposedB<TiledMma, SmemLayoutB, cutlass::tfloat32_t> {
  CUTLASS_HOST_DEVICE AsyncTranspositionOperandB(int warp, int thread, TiledMma, SmemLayoutB, SmemLayoutAtomB,
                                                 cutlass::tfloat32_t)
      : pycutlass::TransposedB<TiledMma, SmemLayoutB, cutlass::tfloat32_t>(warp, thread) {}
};
