// The mainloop of Hopper-native kernels whose operands both lie along K: CUTLASS's
// (cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp) with a `load` and an `mma` of our own for device
// code. They issue the instructions that CUTLASS's do, but CUTLASS derives boxes, coordinates and descriptors from
// layouts of any kind, which takes a compiler longer than all else that a kernel does.
//
// Here a tile of an operand lies in shared memory row by row, each as long as the swizzle is wide. So one box of TMA
// brings what a threadblock loads of it, and an instruction's part of it begins a number of bytes behind its start.
#pragma once

#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>

#if !PYCUTLASS_DEVICE_SIDE
#include <cstddef>
#endif

namespace pycutlass {

/// Whether a dispatch policy is that of a mainloop with A and B in shared memory, and sums in the tensor cores alone.
template <typename Policy>
struct IsPlain : cute::false_type {};
template <int kStages, typename ClusterShape, typename Schedule>
struct IsPlain<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<kStages, ClusterShape, Schedule>> : cute::true_type {};

/// Whether rows of an operand's tiles are as long as the swizzle of shared memory is wide.
template <typename Stride, typename Atom, typename TileShape>
constexpr bool has_whole_rows() {
  return !cutlass::gemm::detail::is_major<0>(Stride{}) &&
         decltype(cute::size<1>(Atom{}))::value == decltype(cute::size<2>(TileShape{}))::value;
}
/// Whether tiles of both operands lie in shared memory like that.
template <typename Collective>
struct HasWholeRows
    : cute::bool_constant<has_whole_rows<typename Collective::StrideA, typename Collective::SmemLayoutAtomA,
                                         typename Collective::TileShape>() &&
                          has_whole_rows<typename Collective::StrideB, typename Collective::SmemLayoutAtomB,
                                         typename Collective::TileShape>()> {};
template <typename Collective, bool = IsPlain<typename Collective::DispatchPolicy>::value>
struct IsKMajor : cute::false_type {};
template <typename Collective>
struct IsKMajor<Collective, true> : HasWholeRows<Collective> {};

#if PYCUTLASS_DEVICE_SIDE

/// Returns descriptors of what a warp group takes of an operand's tiles, by instruction along the rows, by step along
/// K, and by stage (asynchronous warpgroup level matrix shared memory layout, in the PTX manual).
template <int kRows, int kInstructionRows, int kGroups, int kTileK, int kStages, typename Element>
CUTLASS_DEVICE auto k_major_descriptors(Element* shared, int group) {
  constexpr int kRowWords = kTileK * sizeof(Element) / 16;  // a word is what addresses are counted in
  static_assert(kRowWords == 8 || kRowWords == 4 || kRowWords == 2);
  constexpr int kTogether = kInstructionRows * kGroups, kStepWords = 2;
  cute::GmmaDescriptor first;
  first.bitfield.layout_type_ = uint8_t(kRowWords == 8   ? cute::SM90::GMMA::LayoutType::B128
                                        : kRowWords == 4 ? cute::SM90::GMMA::LayoutType::B64
                                                         : cute::SM90::GMMA::LayoutType::B32);
  first.bitfield.start_address_ =
      static_cast<uint16_t>(cute::cast_smem_ptr_to_uint(shared + group * kInstructionRows * kTileK) >> 4);
  first.bitfield.base_offset_ = 0;
  first.bitfield.stride_byte_offset_ = kInstructionRows > 8 ? 8 * kRowWords : 0;
  first.bitfield.leading_byte_offset_ = 1;
  using Shape =
      cute::Shape<cute::_1, cute::Int<kRows / kTogether>, cute::Int<kRowWords / kStepWords>, cute::Int<kStages>>;
  using Stride =
      cute::Stride<cute::_0, cute::Int<kTogether * kRowWords>, cute::Int<kStepWords>, cute::Int<kRows * kRowWords>>;
  return cute::make_tensor(cute::SM90::GMMA::DescriptorIterator{first}, cute::Layout<Shape, Stride>{});
}

#endif

/// What the parameters of a kernel have of an operand: its tensor map, and what CUTLASS keeps beside, which is empty.
struct TensorMap {
  cute::TmaDescriptor map;
  cute::tuple<> beside;
};

/// The collective mainloop that a builder made, with parameters, loads and products of our own in device code.
template <typename Collective>
struct KMajorMainloop : Collective {
  using typename Collective::MainloopPipeline;
  using typename Collective::PipelineState;
  using typename Collective::TensorStorage;
  using typename Collective::TiledMma;
  using typename Collective::TileShape;
  using ClusterShape = typename Collective::DispatchPolicy::ClusterShape;

  /// The parameters as device code takes them, in the places where the host leaves them.
  struct DeviceParams {
    TensorMap tma_load_a, tma_load_b;
    uint32_t tma_transaction_bytes, tma_transaction_bytes_mk, tma_transaction_bytes_nk;
  };

#if !PYCUTLASS_DEVICE_SIDE

  using Params = typename Collective::Params;
  static_assert(sizeof(Params) == sizeof(DeviceParams) && alignof(Params) == alignof(DeviceParams) &&
                offsetof(Params, tma_load_b) == offsetof(DeviceParams, tma_load_b) &&
                offsetof(Params, tma_transaction_bytes) == offsetof(DeviceParams, tma_transaction_bytes));

#else

  using Params = DeviceParams;

  static constexpr int kStages = Collective::DispatchPolicy::Stages;
  static constexpr int kTileM = cute::size<0>(TileShape{}), kTileN = cute::size<1>(TileShape{});
  static constexpr int kTileK = cute::size<2>(TileShape{});
  static constexpr int kClusterM = cute::size<0>(ClusterShape{}), kClusterN = cute::size<1>(ClusterShape{});
  /// Products of a tile that may be under way while the next one is waited for.
  static constexpr int kInFlight = Collective::K_PIPE_MMAS;
  static_assert(kInFlight == 1);

  CUTLASS_DEVICE static void prefetch_tma_descriptors(Params const& params) {
    cute::prefetch_tma_descriptor(&params.tma_load_a.map);
    cute::prefetch_tma_descriptor(&params.tma_load_b.map);
  }

  /// Returns A and B in tiles. Kernels ask for their numbers, and `load` for nothing.
  template <typename Size>
  CUTLASS_DEVICE auto load_init(Size const& size, Params const&) const {
    auto const [m, n, k, batches] = size;
    return cute::make_tuple(tiles<kTileM>(m, k, batches), tiles<kTileN>(n, k, batches));
  }

  /// Loads `count` tiles of A and B along K, by one thread.
  template <typename Inputs, typename Coord, typename Steps>
  CUTLASS_DEVICE void load(Params const& params, MainloopPipeline pipeline, PipelineState state, Inputs const&,
                           Coord const& coord, Steps steps, int count, int, uint32_t rank, TensorStorage& shared) {
    if (!cute::elect_one_sync()) return;
    auto const [m, n, k, batch] = coord;
    uint32_t const down = rank % kClusterM, across = rank / kClusterM;
    Box<kTileM, kClusterN> const box_a(int(m), int(batch), across);
    Box<kTileN, kClusterM> const box_b(int(n), int(batch), down);
    constexpr auto cluster = cute::Layout<ClusterShape>{};
    uint16_t mask_a = 0, mask_b = 0;  // who else gets what this threadblock loads
    if constexpr (kClusterN > 1) {
      for (int i = 0; i < kClusterN; ++i) mask_a |= uint16_t(1) << cluster(down, i, cute::_0{});
    }
    if constexpr (kClusterM > 1) {
      for (int i = 0; i < kClusterM; ++i) mask_b |= uint16_t(1) << cluster(i, across, cute::_0{});
    }

    CUTLASS_PRAGMA_NO_UNROLL
    for (; count > 0; --count) {
      pipeline.producer_acquire(state);
      uint64_t* const barrier = pipeline.producer_get_barrier(state);
      int const stage = state.index();
      box_a.load(params.tma_load_a.map, barrier, mask_a, *steps, shared.smem_A.data(), stage);
      box_b.load(params.tma_load_b.map, barrier, mask_b, *steps, shared.smem_B.data(), stage);
      ++steps;
      ++state;
    }
  }

  /// Multiplies `count` tiles, which is at least one; those that are under way in the end `mma_tail` waits for.
  template <typename Accumulators>
  CUTLASS_DEVICE void mma(MainloopPipeline pipeline, PipelineState state, Accumulators& accumulators, int count,
                          int thread, TensorStorage& shared, Params const&) {
    constexpr int kGroup = cutlass::NumThreadsPerWarpGroup;
    constexpr int kGroups = cute::size<1>(typename TiledMma::ThrLayoutVMNK{});
    using Instruction = typename TiledMma::AtomShape_MNK;
    int const group = __shfl_sync(~0u, thread / kGroup, 0) % kGroups;
    auto const A = k_major_descriptors<kTileM, cute::size<0>(Instruction{}), kGroups, kTileK, kStages>(
        shared.smem_A.data(), group);
    auto const B =
        k_major_descriptors<kTileN, cute::size<1>(Instruction{}), 1, kTileK, kStages>(shared.smem_B.data(), 0);

    TiledMma instruction;
    PipelineState released = state;
    instruction.accumulate_ = cute::GMMA::ScaleOut::Zero;
    cute::warpgroup_fence_operand(accumulators);
    {
      pipeline.consumer_wait(state, pipeline.consumer_try_wait(state));
      cute::warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < cute::size<2>(A); ++k) {
        cute::gemm(instruction, A(cute::_, cute::_, k, state.index()), B(cute::_, cute::_, k, state.index()),
                   accumulators);
        instruction.accumulate_ = cute::GMMA::ScaleOut::One;
      }
      cute::warpgroup_commit_batch();
      ++state;
    }
    cute::warpgroup_fence_operand(accumulators);
    cute::warpgroup_fence_operand(accumulators);  // once more, as CUTLASS does: registers are allocated in the same way

    CUTLASS_PRAGMA_NO_UNROLL
    for (count -= cute::min(+kInFlight, count); count > 0; --count) {
      pipeline.consumer_wait(state, pipeline.consumer_try_wait(state));
      cute::warpgroup_fence_operand(accumulators);
      cute::warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < cute::size<2>(A); ++k) {
        cute::gemm(instruction, A(cute::_, cute::_, k, state.index()), B(cute::_, cute::_, k, state.index()),
                   accumulators);
      }
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<kInFlight>();
      cute::warpgroup_fence_operand(accumulators);
      pipeline.consumer_release(released);
      ++state;
      ++released;
    }
    cute::warpgroup_fence_operand(accumulators);
  }

 private:
  template <int kRows>
  CUTLASS_DEVICE static auto tiles(int rows, int k, int batches) {
    auto const counted = cute::make_shape(cute::Int<kRows>{}, cute::Int<kTileK>{}, (rows + kRows - 1) / kRows,
                                          (k + kTileK - 1) / kTileK, batches);
    return cute::make_tensor(cute::counting_iterator<int>{}, cute::make_layout(counted));
  }

  /// What one threadblock loads of a tile of so many rows, which `kSharers` threadblocks of a cluster load together.
  template <int kRows, int kSharers>
  struct Box {
    static constexpr int kBoxRows = kRows / kSharers;
    int row, batch, offset;

    CUTLASS_DEVICE Box(int tile, int batch, uint32_t part)
        : row(tile * kRows + (kSharers > 1 ? part * kBoxRows : 0)),
          batch(batch),
          offset(kSharers > 1 ? part * kBoxRows * kTileK : 0) {}

    template <typename Element>
    CUTLASS_DEVICE void load(cute::TmaDescriptor const& map, uint64_t* barrier, uint16_t mask, int k, Element* shared,
                             int stage) const {
      constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
      Element* const to = shared + (offset + stage * kRows * kTileK);
      if constexpr (kSharers > 1) {
        cute::SM90_TMA_LOAD_MULTICAST::copy(&map, barrier, mask, kHint, to, k * kTileK, row, batch);
      } else {
        cute::SM90_TMA_LOAD::copy(&map, barrier, kHint, to, k * kTileK, row, batch);
      }
    }
  };
#endif
};

}  // namespace pycutlass
