// Products of 8-bit floats whose sums have 32 bits. Tensor cores keep fewer bits of a sum, so they add up 128 products
// at a time, and threads add each result to sums of their own. CUTLASS waits for a result, adds it, and only then
// begins the next products (cutlass/gemm/collective/fp8_accumulation.hpp), while the tensor cores have nothing to do.
// Here the next products are under way while threads add: those of the next tile along K, or of another part of this
// one. Each sum is added up in the order of CUTLASS's, so results are the same.
#pragma once

#include "pycutlass/k_major_sm90.h"
#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/dispatch_policy.hpp>

namespace pycutlass {

/// Whether a dispatch policy is that of a mainloop whose threads add up what tensor cores have.
template <typename Policy>
struct IsPromoted : cute::false_type {};
template <int kStages, typename ClusterShape, typename Schedule>
struct IsPromoted<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecializedFP8<kStages, ClusterShape, Schedule>>
    : cute::true_type {};
template <int kStages, typename ClusterShape, typename Schedule>
struct IsPromoted<cutlass::gemm::MainloopSm90ArrayTmaGmmaWarpSpecializedFP8<kStages, ClusterShape, Schedule>>
    : cute::true_type {};

/// Whether a tile of a mainloop has as many products along K as tensor cores add up, in lines of 128 bytes.
template <typename Collective, bool = IsPromoted<typename Collective::DispatchPolicy>::value>
struct PromotesTiles : cute::false_type {};
template <typename Collective>
struct PromotesTiles<Collective, true>
    : cute::bool_constant<cute::size<2>(typename Collective::TileShape{}) == 128 && HasWholeRows<Collective>::value> {};

/// A mainloop with an `mma` of our own.
template <typename Base>
struct PromotedMainloop : Base {
  using typename Base::MainloopPipeline;
  using typename Base::PipelineState;
  using typename Base::TensorStorage;
  using typename Base::TiledMma;
  using typename Base::TileShape;

#if PYCUTLASS_DEVICE_SIDE

  static constexpr int kStages = Base::DispatchPolicy::Stages;
  static constexpr int kTileM = cute::size<0>(TileShape{}), kTileN = cute::size<1>(TileShape{});
  static constexpr int kTileK = cute::size<2>(TileShape{});
  /// Warp groups that share a tile, and blocks of 64 rows that each has.
  static constexpr int kGroups = cute::size<1>(typename TiledMma::ThrLayoutVMNK{});
  static constexpr int kBlocks = kTileM / (64 * kGroups);
  /// Registers have no room for two results of a block that is so wide. Where two warp groups share the tile, one
  /// multiplies while the other adds. A single one multiplies halves, for which it reads A twice.
  static constexpr bool kIsWide = kBlocks == 1 && kTileN > 128;
  static_assert(!kIsWide || kGroups < 3, "three warp groups have no registers for a block that is so wide");
  static constexpr bool kAlternates = !kIsWide || kGroups == 1, kIsHalved = kIsWide && kAlternates;
  /// Parts of a tile whose products are issued one after the other.
  static constexpr int kParts = kIsHalved ? 2 : kBlocks, kColumns = kIsHalved ? kTileN / 2 : kTileN;
  using Instruction = cute::MMA_Atom<
      decltype(cute::GMMA::ss_op_selector<typename Base::ElementA, typename Base::ElementB, float,
                                          cute::Shape<cute::_64, cute::Int<kColumns>, cute::Int<kTileK>>>())>;
  using Results =
      decltype(cute::make_tensor<float>(cute::Shape<cute::Shape<cute::_2, cute::_2, cute::Int<kColumns / 8>>>{}));

  /// Multiplies `count` tiles.
  template <typename Sums, typename Params>
  CUTLASS_DEVICE void mma(MainloopPipeline pipeline, PipelineState state, Sums& sums, int count, int thread,
                          TensorStorage& shared, Params const&) {
    constexpr int kGroup = cutlass::NumThreadsPerWarpGroup;
    int const group = __shfl_sync(~0u, thread / kGroup, 0) % kGroups;
    auto const A = k_major_descriptors<kTileM, 64, kGroups, kTileK, kStages>(shared.smem_A.data(), group);
    auto const B = k_major_descriptors<kTileN, kColumns, 1, kTileK, kStages>(shared.smem_B.data(), 0);
    static_assert(cute::size(Sums{}) == kParts * cute::size(Results{}));

    PipelineState released = state;
    Results results[2];
    auto const issue = [&](auto part, auto slot) {
      constexpr int kRow = kIsHalved ? 0 : part, kColumn = kIsHalved ? part : 0;
      Instruction instruction;
      instruction.accumulate_ = cute::GMMA::ScaleOut::Zero;
      cute::warpgroup_fence_operand(results[slot]);
      cute::warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < cute::size<2>(A); ++k) {
        cute::gemm(instruction, A(cute::_, kRow, k, state.index()), B(cute::_, kColumn, k, state.index()),
                   results[slot]);
        instruction.accumulate_ = cute::GMMA::ScaleOut::One;
      }
      cute::warpgroup_commit_batch();
    };
    auto const add = [&](auto part, auto slot) {
      cute::warpgroup_fence_operand(results[slot]);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < cute::size(Results{}); ++i) sums(part * cute::size(Results{}) + i) += results[slot](i);
      cute::warpgroup_fence_operand(sums);  // else compilers add behind the next wait, and copy results until then
    };
    auto const release = [&] {
      pipeline.consumer_release(released);
      ++released;
    };
    auto has_tile = pipeline.consumer_test_wait(state);
    // Waits for all that is under way. Before that it asks whether the next tile is there, in branches, over which
    // ptxas moves no addition: it would have all of them wait.
    auto const drain = [&] {
      has_tile = pipeline.consumer_test_wait(state);
      cute::warpgroup_wait<0>();
      release();
    };
    // Multiplies tiles whose results alternate between two slots, and adds all but the last one, which lies in the
    // second slot then. It is for the next tiles to add, where `carries` says that it is there.
    auto const run = [&](auto tiles, auto carries) {
      constexpr int kCount = decltype(tiles)::value * kParts;  // to NVRTC, `tiles` is no constant within
      constexpr bool kCarries = decltype(carries)::value;
      cute::for_each(cute::make_int_sequence<kCount>{}, [&](auto number) {
        constexpr int kPart = number % kParts, kBefore = (number + kParts - 1) % kParts;
        constexpr int kSlot = (number + kCount) % 2;
        if constexpr (number == 0) {
          pipeline.consumer_wait(state, has_tile);
        } else if constexpr (kPart == 0) {
          pipeline.consumer_wait(state, pipeline.consumer_try_wait(state));
        }
        issue(cute::Int<kPart>{}, cute::Int<kSlot>{});
        if constexpr (number > 0) cute::warpgroup_wait<1>();
        if constexpr (number > 0 && kPart == 0) release();
        if constexpr (number > 0 || kCarries) add(cute::Int<kBefore>{}, cute::Int<1 - kSlot>{});
        if constexpr (kPart == kParts - 1) ++state;
      });
      drain();
    };

    cute::clear(sums);
    if constexpr (kAlternates) {
      if (count % 2 == 1) {
        run(cute::_1{}, cute::false_type{});
      } else {
        cute::clear(results[1]);
      }
      // ptxas follows products that are under way within a turn of a loop, and not from one turn to the next: there, it
      // would have each product be waited for at once (its warning C7514).
      CUTLASS_PRAGMA_NO_UNROLL
      for (count /= 2; count > 0; --count) run(cute::_2{}, cute::true_type{});
      add(cute::Int<kParts - 1>{}, cute::_1{});
    } else {
      CUTLASS_PRAGMA_NO_UNROLL
      for (; count > 0; --count) {
        pipeline.consumer_wait(state, has_tile);
        issue(cute::_0{}, cute::_0{});
        ++state;
        drain();
        add(cute::_0{}, cute::_0{});
      }
    }
  }

  /// Tiles are released when they have been multiplied.
  CUTLASS_DEVICE void mma_tail(MainloopPipeline, PipelineState, int) {}

#endif
};

/// A mainloop of CUTLASS's that a kernel takes as it is, ...
template <typename Collective, bool = PromotesTiles<Collective>::value>
struct WithPromotion {
  using Type = Collective;
};
/// ... or whose sums threads add up otherwise.
template <typename Collective>
struct WithPromotion<Collective, true> {
  using Type = PromotedMainloop<Collective>;
};

/// The mainloop of a kernel by TMA, as CUTLASS has it or with a `load` and an `mma` of our own.
template <typename Collective, bool = IsKMajor<Collective>::value, bool = PromotesTiles<Collective>::value>
struct OwnMainloop {
  using Type = Collective;
};
template <typename Collective>
struct OwnMainloop<Collective, true, false> {
  using Type = KMajorMainloop<Collective>;
};
template <typename Collective>
struct OwnMainloop<Collective, false, true> {
  using Type = PromotedMainloop<KMajorMainloop<Collective>>;
};

}  // namespace pycutlass
