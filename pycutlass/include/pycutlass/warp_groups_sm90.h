// Tiles of 192 rows that three warp groups share. CUTLASS's builders know of two, each with 64 rows of 128 or 256; its
// collectives take any number.
#pragma once

#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>

namespace pycutlass {

/// Rows of a tile that three warp groups share.
constexpr int kRowsOfThreeWarpGroups = 192;

/// A mainloop as CUTLASS builds it, or for the three warp groups that share a tile of 192 rows: CUTLASS knows of two.
template <typename Collective>
struct WithWarpGroups {
  using Type = Collective;
};
template <typename Policy, typename N, typename K, typename A, typename StrideA, typename B, typename StrideB,
          typename Atom, typename Order, typename... Others>
struct WithWarpGroups<cutlass::gemm::collective::CollectiveMma<
    Policy, cute::Shape<cute::Int<kRowsOfThreeWarpGroups>, N, K>, A, StrideA, B, StrideB,
    cute::TiledMMA<Atom, cute::Layout<cute::Shape<cute::_2, cute::_1, cute::_1>>, Order>, Others...>> {
  using Type = cutlass::gemm::collective::CollectiveMma<
      Policy, cute::Shape<cute::Int<kRowsOfThreeWarpGroups>, N, K>, A, StrideA, B, StrideB,
      cute::TiledMMA<Atom, cute::Layout<cute::Shape<cute::_3, cute::_1, cute::_1>>, Order>, Others...>;
};

/// The epilogue that CUTLASS builds for a schedule, ...
template <typename TileShape, typename ClusterShape, typename EpilogueTile, typename ElementAccumulator,
          typename ElementCompute, typename C, typename D, typename Schedule, typename Fused>
struct BuiltEpilogue {
  using Type = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape, EpilogueTile, ElementAccumulator,
      ElementCompute, typename C::Element, typename C::Layout, C::kAlignment, typename D::Element, typename D::Layout,
      D::kAlignment, Schedule, Fused>::CollectiveOp;
};
/// ... or of three warp groups, of which its builders know nothing: as of two, but each thread has fewer elements.
template <typename Policy>
struct PolicyOfThree;
template <int kStagesC, int kStagesD, int kFragment, bool kReuse, bool kDelay>
struct PolicyOfThree<cutlass::epilogue::Sm90TmaWarpSpecialized<kStagesC, kStagesD, kFragment, kReuse, kDelay>> {
  using Type = cutlass::epilogue::Sm90TmaWarpSpecialized<kStagesC, kStagesD, kFragment * 2 / 3, kReuse, kDelay>;
};
template <typename N, typename K, typename ClusterShape, typename EpilogueTile, typename ElementAccumulator,
          typename ElementCompute, typename C, typename D, typename Fused>
struct BuiltEpilogue<cute::Shape<cute::Int<kRowsOfThreeWarpGroups>, N, K>, ClusterShape, EpilogueTile,
                     ElementAccumulator, ElementCompute, C, D, cutlass::epilogue::TmaWarpSpecializedCooperative,
                     Fused> {
  using TileShape = cute::Shape<cute::Int<kRowsOfThreeWarpGroups>, N, K>;
  using Policy = typename PolicyOfThree<decltype(cutlass::epilogue::collective::detail::sm90_get_tma_dispatch_policy<
                                                 TileShape, EpilogueTile, typename C::Element, typename D::Element,
                                                 cutlass::epilogue::TmaWarpSpecializedCooperative>())>::Type;
  using Type = typename cutlass::epilogue::collective::detail::Sm90TmaBuilderImpl<
      TileShape, EpilogueTile, ElementAccumulator, ElementCompute, typename C::Element, typename C::Layout,
      C::kAlignment, typename D::Element, typename D::Layout, D::kAlignment, Fused, Policy>::CollectiveOp;
};

}  // namespace pycutlass
