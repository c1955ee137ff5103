// Turns tiles of B around in shared memory as kernels with A in registers do, with the layouts of CUTLASS's mainloop
// (cutlass/gemm/collective/sm90_mma_tma_gmma_rs_warpspecialized.hpp), and looks for every element in its new place.
#pragma once

#include "warp.h"

#include "pycutlass/gemm_sm90.h"

#include <cstdio>
#include <vector>

#include "synchronization.h"
#include "threads.h"

namespace emulation {

using namespace cute;
namespace turned = cutlass::transform::collective::detail;

/// The elements that are not where they should be, of a tile of kColumns in one of two stages. Consumers begin with
/// warp `first`, and kGroups groups of them share the tile. TMA has elements of type `Multiplied` as `Loaded`.
template <typename Loaded, typename Multiplied, int kColumns, int kGroups>
int misplaced(int first, int stage) {
  constexpr int kDepth = 128 / sizeof(Loaded), kStages = 2;
  using Tile = Shape<Int<64 * kGroups>, Int<kColumns>, Int<kDepth>>;
  using Sum = conditional_t<cutlass::platform::is_integral<Multiplied>::value, int32_t, float>;
  using Mma =
      decltype(make_tiled_mma(GMMA::rs_op_selector<Multiplied, Multiplied, Sum, Tile, GMMA::Major::K, GMMA::Major::K>(),
                              Layout<Shape<Int<kGroups>, _1, _1>>{}));
  using Built = decltype(cutlass::gemm::collective::detail::rs_smem_selector<GMMA::Major::MN, Multiplied, Int<kColumns>,
                                                                             Int<kDepth>, true>());
  using Atom = typename pycutlass::Lines<Multiplied, Stride<_1, int64_t, int64_t>, Int<kColumns>, Built>::Type;
  using Lines = Shape<Int<kColumns>, Int<kDepth>, Int<kStages>>;
  using Before = decltype(tile_to_shape(Atom{}, Lines{}, Step<_2, _1, _3>{}));
  using TurnedAtom = decltype(turned::gmma_smem_transpose_or_passthrough<true, Atom, Loaded>());
  using After = decltype(tile_to_shape(TurnedAtom{}, Lines{}, Step<_2, _1, _3>{}));

  static std::vector<char> memory(sizeof(Loaded) * kColumns * kDepth * kStages + 1024);
  char* const aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 1023) / 1024 * 1024);
  auto const loaded = as_position_independent_swizzle_tensor(
      make_tensor(make_smem_ptr(reinterpret_cast<Multiplied*>(aligned)), Before{}));
  auto const multiplied = as_position_independent_swizzle_tensor(
      make_tensor(make_smem_ptr(reinterpret_cast<Multiplied*>(aligned)), After{}));
  auto const value = [](int n, int k, int stage) {
    uint32_t const number = (1 + n + 256 * k + 65536 * stage) * 2654435761u;
    Multiplied result;
    std::memcpy(&result, reinterpret_cast<char const*>(&number) + 4 - sizeof(result), sizeof(result));
    return result;
  };
  auto const differ = [](Multiplied const& one, Multiplied const& other) {
    return std::memcmp(&one, &other, sizeof(one)) != 0;
  };
  for (int s = 0; s < kStages; ++s)
    for (int k = 0; k < kDepth; ++k)
      for (int n = 0; n < kColumns; ++n) loaded(n, k, s) = value(n, k, s);

  run_block({0, 0, 0}, 128 * kGroups, [&] {
    auto turn = turned::make_transpose_operand_b(first + threadIdx.x / 32, threadIdx.x % 128, Mma{}, Before{}, Atom{},
                                                 Loaded{}, bool_constant<true>{});
    for (int step = 0; step < 4; ++step) {
      turn(loaded, multiplied, stage, step);
      wait_for_block();
    }
  });

  int found = 0;
  for (int s = 0; s < kStages; ++s)
    for (int k = 0; k < kDepth; ++k)
      for (int n = 0; n < kColumns; ++n)
        found += differ(s == stage ? multiplied(n, k, s) : loaded(n, k, s), value(n, k, s));
  return found;
}

}  // namespace emulation
