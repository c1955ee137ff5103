// The loads of a Hopper-native kernel with A in registers.
#pragma once

#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/dispatch_policy.hpp>

namespace pycutlass {

/// Whether a dispatch policy is that of a mainloop with A in registers.
template <typename Policy>
struct LoadsA : cute::false_type {};
template <int kStages, typename ClusterShape, typename Schedule>
struct LoadsA<cutlass::gemm::MainloopSm90TmaGmmaRmemAWarpSpecialized<kStages, ClusterShape, Schedule>>
    : cute::true_type {};

/// CUTLASS's mainloop, whose producer takes one box after the other. Of an operand that does not lie along K a tile has
/// several boxes, whose addresses do not fit in the registers of a producer, of which CUTLASS unrolls all
/// (cutlass/gemm/collective/sm90_mma_tma_gmma_rs_warpspecialized.hpp). And CUTLASS swizzles
/// the addresses that TMA writes to, which TMA does itself: wrong where a multicast slice is no multiple of 8 lines.
template <typename Collective>
struct InBoxes : Collective {
  using typename Collective::MainloopPipeline;
  using typename Collective::Params;
  using typename Collective::PipelineState;
  using typename Collective::TensorStorage;
  using ClusterShape = typename Collective::DispatchPolicy::ClusterShape;

  template <typename TensorA, typename TensorB, typename Steps, typename Coord>
  CUTLASS_DEVICE void load(Params const& params, MainloopPipeline pipeline, PipelineState state,
                           cute::tuple<TensorA, TensorB> const& inputs, Coord const& coord, Steps steps, int count, int,
                           uint32_t rank, TensorStorage& shared) {
    if (!cute::elect_one_sync()) return;
    constexpr auto cluster = cute::Layout<ClusterShape>{};
    uint32_t const down = rank % cute::size<0>(ClusterShape{}), across = rank / cute::size<0>(ClusterShape{});
    auto const slice_a = params.tma_load_a.get_slice(across);
    auto const slice_b = params.tma_load_b.get_slice(down);
    auto const [m, n, k, batch] = coord;
    auto const from_a = slice_a.partition_S(cute::get<0>(inputs)(cute::_, cute::_, m, cute::_, batch));
    auto const from_b = slice_b.partition_S(cute::get<1>(inputs)(cute::_, cute::_, n, cute::_, batch));
    auto const to_a = slice_a.partition_D(in_shared(shared.smem_A, typename Collective::SmemLayoutA{}));
    auto const to_b = slice_b.partition_D(in_shared(shared.smem_B, typename Collective::SmemLayoutB{}));
    uint16_t mask_a = 0, mask_b = 0;  // who else gets the tile, where it is multicast
    for (int i = 0; i < cute::size<1>(ClusterShape{}); ++i) mask_a |= uint16_t(1) << cluster(down, i, cute::_0{});
    for (int i = 0; i < cute::size<0>(ClusterShape{}); ++i) mask_b |= uint16_t(1) << cluster(i, across, cute::_0{});

    CUTLASS_PRAGMA_NO_UNROLL
    for (; count > 0; --count, ++steps, ++state) {
      pipeline.producer_acquire(state);
      auto* const barrier = pipeline.producer_get_barrier(state);
      copy_boxes(params.tma_load_a.with(*barrier, mask_a), from_a(cute::_, cute::_0{}, cute::_0{}, *steps),
                 to_a(cute::_, cute::_0{}, cute::_0{}, state.index()));
      copy_boxes(params.tma_load_b.with(*barrier, mask_b), from_b(cute::_, cute::_0{}, cute::_0{}, *steps),
                 to_b(cute::_, cute::_0{}, cute::_0{}, state.index()));
    }
  }

 private:
  template <typename Array, typename Layout>
  CUTLASS_DEVICE static auto in_shared(Array& array, Layout layout) {
    return cute::make_tensor(cute::make_smem_ptr(array.data()), layout);
  }

  /// Copies what a threadblock loads of a tile, whose only mode is that of (elements of a box, boxes).
  template <typename Copy, typename From, typename To>
  CUTLASS_DEVICE static void copy_boxes(Copy const& copy, From const& from, To const& to) {
    auto const boxes_from = cute::tensor<0>(from);
    auto const boxes_to = cute::tensor<0>(to);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < cute::size<1>(boxes_from); ++i) {
      cute::copy(copy, boxes_from(cute::_, i), boxes_to(cute::_, i));
    }
  }
};

/// Lines in shared memory of an operand's tile of 32-bit elements that do not lie along K: of 128 bytes where rows
/// allow. CUTLASS takes 32 bytes, whose banks differ when threads read them, but a line of 32 takes TMA as long as one
/// of 128 (rs_smem_selector in cutlass/gemm/collective/builders/sm90_common.inl).
template <typename Element, typename Stride, typename Rows, typename Atom>
struct Lines {
  static constexpr bool kAreWide =
      sizeof(Element) == 4 && cutlass::gemm::detail::is_major<0>(Stride{}) && Rows::value % 32 == 0;
  using Type = cute::conditional_t<kAreWide, cute::GMMA::Layout_MN_SW128_Atom<cutlass::tfloat32_t>, Atom>;
};

/// A mainloop with A in registers, with such lines.
template <typename Collective>
struct InLines {
  using Type = Collective;
};
template <int kStages, typename ClusterShape, typename Schedule, typename TileShape, typename A, typename StrideA,
          typename B, typename StrideB, typename TiledMma, typename TmaA, typename AtomA, typename CopyA,
          typename TransformA, typename TmaB, typename AtomB, typename CopyB, typename TransformB>
struct InLines<cutlass::gemm::collective::CollectiveMma<
    cutlass::gemm::MainloopSm90TmaGmmaRmemAWarpSpecialized<kStages, ClusterShape, Schedule>, TileShape, A, StrideA, B,
    StrideB, TiledMma, TmaA, AtomA, CopyA, TransformA, TmaB, AtomB, CopyB, TransformB>> {
  using LinesOfA = typename Lines<A, StrideA, decltype(cute::size<0>(TileShape{})), AtomA>::Type;
  using LinesOfB = typename Lines<B, StrideB, decltype(cute::size<1>(TileShape{})), AtomB>::Type;
  using Type = cutlass::gemm::collective::CollectiveMma<
      cutlass::gemm::MainloopSm90TmaGmmaRmemAWarpSpecialized<kStages, ClusterShape, Schedule>, TileShape, A, StrideA, B,
      StrideB, TiledMma, TmaA, LinesOfA, CopyA, TransformA, TmaB, LinesOfB, CopyB, TransformB>;
};

/// The mainloop of a kernel, as CUTLASS has it or with loads of our own.
template <typename Collective>
using WithOwnLoads = cute::conditional_t<LoadsA<typename Collective::DispatchPolicy>::value,
                                         InBoxes<typename InLines<Collective>::Type>, Collective>;

}  // namespace pycutlass
