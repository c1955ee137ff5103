// The mainloop of Hopper-native kernels whose operands TMA cannot copy, since they are aligned to 4 or 8 bytes:
// CUTLASS's (cutlass/gemm/collective/sm90_mma_multistage_gmma_ss_warpspecialized.hpp) with a `load` and an `mma` of our
// own.
//
// cp.async writes to shared memory as threads do, wgmma reads it by the asynchronous proxy: PTX wants a fence between
// the two, which CUTLASS leaves out. And what lies before the first element of K is zeroed by cp.async as well, so that
// nothing but its own barrier has to be waited for.
#pragma once

#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>

namespace pycutlass {

template <typename Collective>
struct CpAsyncMainloop : Collective {
  using typename Collective::MainloopPipeline;
  using typename Collective::Params;
  using typename Collective::PipelineState;
  using typename Collective::SmemLayoutA;
  using typename Collective::SmemLayoutB;
  using typename Collective::TensorStorage;
  using typename Collective::TiledMma;
  /// Products of a tile that may be under way while the next one is waited for.
  static constexpr int kInFlight = 1;
  /// Copies of a thread whose addresses are computed together.
  static constexpr int kAtOnce = 8;

  /// Loads tiles of A and B along K, by all threads of the producers.
  ///
  /// `residue` has the rows and the columns that are left from this tile on, and less than 0 where K is no multiple of
  /// the tile's: tiles are shifted by so much, so that the first one, and no other, has elements outside.
  template <typename GlobalA, typename GlobalB, typename Tiles, typename Residue>
  CUTLASS_DEVICE void load(MainloopPipeline pipeline, PipelineState state, GlobalA const& given_A,
                           GlobalB const& given_B, Tiles tile, int count, Residue const& residue, int thread,
                           TensorStorage& shared) {
    int const before = cute::get<2>(residue);
    auto const A = cute::domain_offset(cute::make_coord(0, before, 0), given_A);
    auto const B = cute::domain_offset(cute::make_coord(0, before, 0), given_B);
    auto const shared_A = cute::make_tensor(cute::make_smem_ptr(shared.smem_A.data()), SmemLayoutA{});
    auto const shared_B = cute::make_tensor(cute::make_smem_ptr(shared.smem_B.data()), SmemLayoutB{});
    Operand<typename Collective::GmemTiledCopyA> const copy_A{thread, cute::get<0>(residue)};
    Operand<typename Collective::GmemTiledCopyB> const copy_B{thread, cute::get<1>(residue)};

    int first = -before;
    CUTLASS_PRAGMA_NO_UNROLL
    for (; count > 0; --count, ++tile, ++state, first = 0) {
      pipeline.producer_acquire(state);
      copy_A.copy(A, *tile, shared_A, state.index(), first);
      copy_B.copy(B, *tile, shared_B, state.index(), first);
      pipeline.producer_commit(state, cutlass::arch::cpasync_barrier_arrive);
    }
  }

  /// Multiplies `count` tiles, which is at least one; those that are under way in the end `mma_tail` waits for.
  template <typename Accumulators>
  CUTLASS_DEVICE void mma(MainloopPipeline pipeline, PipelineState state, Accumulators& accumulators, int count,
                          int thread, TensorStorage& shared, Params const&) {
    auto const shared_A = cute::make_tensor(cute::make_smem_ptr(shared.smem_A.data()), SmemLayoutA{});
    auto const shared_B = cute::make_tensor(cute::make_smem_ptr(shared.smem_B.data()), SmemLayoutB{});
    constexpr int kGroup = cutlass::NumThreadsPerWarpGroup;
    auto const groups = cute::make_layout(cute::Int<cute::size(TiledMma{}) / kGroup>{}, cute::Int<kGroup>{});
    TiledMma instruction;
    auto const part = instruction.get_slice(groups(__shfl_sync(~0u, thread / kGroup % cute::size(groups), 0)));
    auto const A = part.make_fragment_A(part.partition_A(shared_A));
    auto const B = part.make_fragment_B(part.partition_B(shared_B));

    PipelineState released = state;
    instruction.accumulate_ = cute::GMMA::ScaleOut::Zero;
    cute::warpgroup_fence_operand(accumulators);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < count; ++i, ++state) {
      pipeline.consumer_wait(state, pipeline.consumer_try_wait(state));
      cutlass::arch::fence_view_async_shared();  // what cp.async has written is seen by wgmma
      cute::warpgroup_fence_operand(accumulators);
      cute::warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < cute::size<2>(A); ++k) {
        cute::gemm(instruction, A(cute::_, cute::_, k, state.index()), B(cute::_, cute::_, k, state.index()),
                   accumulators);
        instruction.accumulate_ = cute::GMMA::ScaleOut::One;
      }
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<kInFlight>();
      cute::warpgroup_fence_operand(accumulators);
      if (i < kInFlight) continue;
      pipeline.consumer_release(released);
      ++released;
    }
    cute::warpgroup_fence_operand(accumulators);
  }

 private:
  /// What one thread copies of an operand's tiles, of which so many lines are inside.
  template <typename TiledCopy>
  struct Operand {
    int thread, lines;

    /// Copies tile `index` to buffer `stage`. Lines outside become zeros, and so does K before `first`.
    ///
    /// Addresses of all copies at once, which a compiler would keep from tile to tile, are too many for the registers.
    template <typename Global, typename Index, typename Shared>
    CUTLASS_DEVICE void copy(Global const& global, Index const& index, Shared const& shared, int stage,
                             int first) const {
      TiledCopy tiled;
      auto const part = tiled.get_slice(thread);
      auto const from = part.partition_S(global)(cute::_, cute::_, cute::_, index);
      auto const to = part.partition_D(shared)(cute::_, cute::_, cute::_, stage);
      auto const places =
          part.partition_S(cute::make_identity_tensor(cute::make_shape(cute::size<0>(shared), cute::size<1>(shared))));
      constexpr int kAcross = decltype(cute::size<1>(to))::value, kAlong = decltype(cute::size<2>(to))::value;
      auto is_inside = cute::make_tensor<bool>(cute::Shape<cute::_1>{});
#pragma unroll kAtOnce
      for (int i = 0; i < kAcross * kAlong; ++i) {
        int const m = i % kAcross, k = i / kAcross;
        auto const place = places(0, m, k);
        is_inside(0) = cute::get<0>(place) < lines && cute::get<1>(place) >= first;
        tiled.call(is_inside, from(cute::_, m, k), to(cute::_, m, k));
      }
    }
  };
};

}  // namespace pycutlass
