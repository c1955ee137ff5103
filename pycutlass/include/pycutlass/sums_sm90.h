// The sums that a thread has of a tile in a Hopper-native kernel.
#pragma once

#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>

#if PYCUTLASS_DEVICE_SIDE

namespace cute {

/// What `partition_fragment_C` of CuTe returns, for wgmma alone: of each instruction, pairs of columns in two rows, for
/// all instructions that a warp group has along M and N. CuTe divides layouts for that, which takes a compiler as long
/// as an epilogue does. Kernels find the overload by the type of `mma`.
template <typename Op, typename Groups, typename M, typename N,
          typename = enable_if_t<is_same_v<typename MMA_Traits<Op>::ThrID, Layout<_128>>>>
CUTE_HOST_DEVICE constexpr auto partition_fragment_C(
    TiledMMA<MMA_Atom<Op>, Groups, Tile<Underscore, Underscore, Underscore>> const&, tuple<M, N> const&) {
  using Mma = TiledMMA<MMA_Atom<Op>, Groups, Tile<Underscore, Underscore, Underscore>>;
  constexpr int kRows = size<0>(typename Mma::AtomShape_MNK{}) * size<0>(Groups{});
  constexpr int kColumns = size<1>(typename Mma::AtomShape_MNK{}) * size<1>(Groups{});
  static_assert(size<0>(typename Mma::AtomShape_MNK{}) == 64 && M::value % kRows == 0 && N::value % kColumns == 0);
  using Sums = Shape<_2, _2, Int<int(size<1>(typename Mma::AtomShape_MNK{})) / 8>>;
  return make_tensor<typename Mma::FrgTypeC>(Shape<Sums, Int<M::value / kRows>, Int<N::value / kColumns>>{});
}

}  // namespace cute

#endif
