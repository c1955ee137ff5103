// Grouped GEMM, Hopper-native: CUTLASS's kernel for groups of problems (cutlass/gemm/kernel/
// sm90_gemm_array_tma_warpspecialized_*.hpp) behind the call record. A persistent kernel takes tile after tile; where
// it comes to another problem it writes the tensor maps of that into a place of its multiprocessor in the scratch
// memory.
#pragma once

#include "pycutlass/gemm_sm90.h"

#include <cutlass/gemm/group_array_problem_shape.hpp>

namespace pycutlass {

/// The schedules of a single GEMM, for groups.
template <typename Schedule>
struct GroupSchedule;
template <>
struct GroupSchedule<Pingpong> {
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong;
};
template <>
struct GroupSchedule<Cooperative> {
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative;
};

template <>
struct GroupSchedule<PingpongFastAccumulation> : GroupSchedule<Pingpong> {
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpongFP8FastAccum;
};
template <>
struct GroupSchedule<CooperativeFastAccumulation> : GroupSchedule<Cooperative> {
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperativeFP8FastAccum;
};

/// CUTLASS's mainloop, which may have nothing to do: with K = 0 its own would leave the accumulators as they are. And
/// one lane of the warp may write the next tensor maps to shared memory only after the others have read the last ones.
template <typename Mainloop>
struct GroupMainloop : Mainloop {
  template <typename Accumulators, typename... Rest>
  CUTLASS_DEVICE void mma(typename Mainloop::MainloopPipeline pipeline, typename Mainloop::PipelineState state,
                          Accumulators& accumulators, int k_tiles, Rest&&... rest) {
    if (k_tiles == 0) cute::clear(accumulators);
    Mainloop::mma(pipeline, state, accumulators, k_tiles, static_cast<Rest&&>(rest)...);
  }

  template <typename... Given>
  CUTLASS_DEVICE void tensormaps_cp_fence_release(Given&&... given) {
    Mainloop::tensormaps_cp_fence_release(static_cast<Given&&>(given)...);
    __syncwarp();
  }
};

/// CUTLASS's epilogue, with the same order of what is read and written. Where threads write D themselves nothing leaves
/// by TMA, and there are no tensor maps of D: it has other extents than the product, of which maps would be made.
template <typename Epilogue>
struct GroupEpilogue : Epilogue {
  using Epilogue::Epilogue;
  static constexpr bool kWritesTarget = WritesTarget<typename Epilogue::FusionCallbacks>::value;

  template <bool IsLoad, typename... Given>
  CUTLASS_DEVICE void tensormaps_perform_update(Given&&... given) {
    if constexpr (IsLoad || !kWritesTarget) {
      Epilogue::template tensormaps_perform_update<IsLoad>(static_cast<Given&&>(given)...);
    }
  }
  template <bool IsLoad, typename... Given>
  CUTLASS_DEVICE void tensormaps_cp_fence_release(Given&&... given) {
    if constexpr (IsLoad || !kWritesTarget) {
      Epilogue::template tensormaps_cp_fence_release<IsLoad>(static_cast<Given&&>(given)...);
      __syncwarp();
    }
  }
  template <bool IsLoad, typename... Given>
  CUTLASS_DEVICE void tensormaps_fence_acquire(Given&&... given) {
    if constexpr (IsLoad || !kWritesTarget) {
      Epilogue::template tensormaps_fence_acquire<IsLoad>(static_cast<Given&&>(given)...);
    }
  }
};

template <typename A, typename B, typename C, typename ElementAccumulator, typename TileShape, typename ClusterShape,
          typename Fusion, typename Schedule, int Stages, typename D = C>
struct GemmGroupedSm90 {
  using Fused = FusionOf<Fusion, TileShape, C, D, typename GroupSchedule<Schedule>::Epilogue>;

  using CollectiveEpilogue = GroupEpilogue<EpilogueSm90<
      typename cutlass::epilogue::collective::CollectiveBuilder<
          cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
          cutlass::epilogue::collective::EpilogueTileAuto, ElementAccumulator, typename Fusion::ElementCompute,
          typename C::Element, typename C::Layout*, C::kAlignment, typename D::Element, typename D::Layout*,
          D::kAlignment, typename GroupSchedule<Schedule>::Epilogue, typename Fused::Type>::CollectiveOp,
      Fused::kIsFunction>>;

  using BuiltMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename A::Element, typename A::Layout*, A::kAlignment,
      typename B::Element, typename B::Layout*, B::kAlignment, ElementAccumulator, TileShape, ClusterShape,
      typename StageCount<Stages, CollectiveEpilogue>::Type, typename GroupSchedule<Schedule>::Mainloop>::CollectiveOp;
  using CollectiveMainloop = GroupMainloop<typename WithPromotion<BuiltMainloop>::Type>;

  using Size = cute::Shape<int, int, int>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Size>, CollectiveMainloop,
                                                      CollectiveEpilogue>;

  using Params = typename Kernel::Params;
  using Call = pycutlass_grouped_call;
  static unsigned const kThreads = Kernel::MaxThreadsPerBlock;
  static unsigned const kMinBlocks = Kernel::MinBlocksPerMultiprocessor;
  static unsigned const kSharedBytes = Kernel::SharedStorageSize;
  static unsigned const kClusterM = cute::size<0>(ClusterShape{});
  static unsigned const kClusterN = cute::size<1>(ClusterShape{});

#if PYCUTLASS_DEVICE_SIDE

  CUTLASS_DEVICE static void run(Params const& params, char* shared) {
    Kernel kernel;
    kernel(params, shared);
  }

#else

  using Operands = Elements<typename A::Element, typename B::Element, typename C::Element, typename D::Element>;
  using Epilogue = typename Fused::template Launch<decltype(Kernel::Arguments::epilogue.thread)>;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    if (!can_count_tiles(call)) return cutlass::Status::kErrorInvalidProblem;
    typename Kernel::Arguments arguments = make(call);
    result = {{1, 1, 1}, 0, 0, 0, Kernel::get_workspace_size(arguments)};
    if constexpr (Fused::kIsFunction) {
      if constexpr (Fused::Type::kReducesGroup) {
        if (!call.sizes) return cutlass::Status::kErrorNotSupported;
        arguments.epilogue.thread.group = Fused::Type::Space::of(call, result);
      }
    }
    if (!call.scratch) return cutlass::Status::kSuccess;
    if (!Kernel::can_implement(arguments)) return cutlass::Status::kErrorInvalidProblem;

    Params* params = new (storage) Params(Kernel::to_underlying_arguments(arguments, call.scratch));
    dim3 const grid = Kernel::get_grid_shape(*params);
    // Where all problems are empty a cluster finds that out.
    result.grid[0] = grid.x ? grid.x : kClusterM;
    result.grid[1] = grid.y ? grid.y : kClusterN;
    return cutlass::Status::kSuccess;
  }

 private:
  static_assert(sizeof(Size) == 3 * sizeof(int32_t), "a problem size is M, N, K and nothing else");
  static_assert(sizeof(typename Kernel::InternalStrideA) == sizeof(int64_t), "a stride is the leading dimension");
  static_assert(sizeof(typename Kernel::InternalStrideD) == sizeof(int64_t), "a stride is the leading dimension");

  static typename Kernel::Arguments make(Call const& call) {
    pycutlass_group_tables const& tables = call.tables;
    typename Kernel::Arguments arguments{};
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    arguments.problem_shape = {call.problem_count, table<Size>(tables.sizes),
                               reinterpret_cast<Size const*>(call.sizes)};
    arguments.mainloop.ptr_A = table<typename A::Element const*>(tables.pointers[PYCUTLASS_A]);
    arguments.mainloop.dA = table<typename Kernel::InternalStrideA>(tables.lds[PYCUTLASS_A]);
    arguments.mainloop.ptr_B = table<typename B::Element const*>(tables.pointers[PYCUTLASS_B]);
    arguments.mainloop.dB = table<typename Kernel::InternalStrideB>(tables.lds[PYCUTLASS_B]);
    pycutlass_operand const source = source_of(call);
    arguments.epilogue.ptr_C = table<typename C::Element const*>(source.data);
    arguments.epilogue.dC = table<typename Kernel::InternalStrideC>(reinterpret_cast<void const*>(source.stride[0]));
    arguments.epilogue.ptr_D = table<typename D::Element*>(tables.pointers[PYCUTLASS_D]);
    arguments.epilogue.dD = table<typename Kernel::InternalStrideD>(tables.lds[PYCUTLASS_D]);
    Epilogue::fill(arguments.epilogue.thread, call.common);
    if constexpr (Fused::kIsFunction) Epilogue::list(arguments.epilogue.thread, tables);
    arguments.hw_info.device_id = call.common.device;
    arguments.hw_info.sm_count = call.common.sm_count;
    return arguments;
  }

  /// The tables of what comes by TMA beside A and B, addresses and leading dimensions: of C, or of a tensor of the
  /// epilogue's in its place.
  static pycutlass_operand source_of(Call const& call) {
    pycutlass_operand source{};
    source.data = table<void>(call.tables.pointers[PYCUTLASS_C]);
    source.stride[0] = reinterpret_cast<intptr_t>(call.tables.lds[PYCUTLASS_C]);
    if constexpr (Fused::kIsFunction) {
      return Epilogue::source(call.common, source);
    } else {
      return source;
    }
  }

  /// A table under the type that CUTLASS's arguments want; nothing writes to it.
  template <typename Entry>
  static Entry* table(void const* entries) {
    return static_cast<Entry*>(const_cast<void*>(entries));
  }

  /// Whether the tiles of all problems, which CUTLASS counts in 32 bits, are few enough.
  static bool can_count_tiles(Call const& call) {
    int64_t const most = 0x7fffffff;
    int64_t const rows = cute::size<0>(TileShape{}) * kClusterM, columns = cute::size<1>(TileShape{}) * kClusterN;
    int64_t total = 0;
    for (int i = 0; call.sizes && i < call.problem_count; ++i) {
      int64_t const m = call.sizes[3 * i], n = call.sizes[3 * i + 1];
      if (m > most - rows || n > most - columns) return false;
      total += ((m + rows - 1) / rows) * ((n + columns - 1) / columns) * kClusterM * kClusterN;
      if (total > most) return false;
    }
    return true;
  }

#endif
};

}  // namespace pycutlass
