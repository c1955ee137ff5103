// C in the epilogue of Hopper-native kernels: what CUTLASS's collective epilogue loads by TMA
// (cutlass/epilogue/collective/sm90_epilogue_tma_warpspecialized.hpp), without its algebra of layouts.
#pragma once

#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>

namespace pycutlass {

/// Whether rows of C's subtiles are as long as the swizzle of shared memory is wide, so that TMA takes one at a time.
template <typename Collective>
struct LoadsBoxes : cute::bool_constant<!cutlass::gemm::detail::is_major<0>(typename Collective::StrideC{}) &&
                                        decltype(cute::size<1>(typename Collective::SmemLayoutAtomC{}))::value ==
                                            decltype(cute::size<1>(typename Collective::EpilogueTile{}))::value> {};

/// Loads what a tile needs of C into `buffers`, one subtile after the other: all, or the one that is named. The order
/// of these instructions is CUTLASS's, so that the machine code is as well.
template <typename Collective, typename Fusion, typename Pipeline, typename State, typename Size, typename Coord,
          typename Mma, typename Element>
CUTLASS_DEVICE State load_boxes(Fusion& fusion, cute::TmaDescriptor const* map, Pipeline& pipeline, State state,
                                Size const& size, Coord const& coord, Mma const& mma, int thread, Element* buffers,
                                int subtile = -1) {
  using CtaTile = typename Collective::CtaTileMNK;
  using EpilogueTile = typename Collective::EpilogueTile;
  constexpr int kRows = cute::size<0>(EpilogueTile{}), kColumns = cute::size<1>(EpilogueTile{});
  constexpr int kDown = cute::size<0>(CtaTile{}) / kRows, kAcross = cute::size<1>(CtaTile{}) / kColumns;
  constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  auto const [m, n, k, batch] = coord;
  int const row = m * (kRows * kDown), column = n * (kColumns * kAcross);
  auto callbacks = fusion.get_producer_load_callbacks(
      cutlass::epilogue::fusion::detail::ProducerLoadArgs(size, CtaTile{}, coord, mma, EpilogueTile{}, thread));
  bool const has_source = fusion.is_C_load_needed(), is_issuer = cute::elect_one_sync();
  callbacks.begin();
  CUTLASS_PRAGMA_UNROLL
  for (int j = 0; j < kAcross; ++j) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kDown; ++i) {
      if (subtile != -1 && j * kDown + i != subtile) continue;
      uint64_t* const barrier = pipeline.producer_get_barrier(state);
      pipeline.producer_acquire(state);
      callbacks.step(barrier, i, j, state.count(), is_issuer);
      if (is_issuer && has_source) {
        cute::SM90_TMA_LOAD::copy(map, barrier, kHint, buffers + state.index() * (kRows * kColumns),
                                  kAcross > 1 ? column + j * kColumns : column, kDown > 1 ? row + i * kRows : row,
                                  batch);
        pipeline.producer_expect_transaction(state);
      }
      pipeline.producer_commit(state);
      ++state;
    }
  }
  callbacks.end();
  return state;
}

}  // namespace pycutlass
