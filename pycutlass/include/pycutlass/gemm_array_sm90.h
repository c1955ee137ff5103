// Hopper-native GEMMs of one size, each with tensors of its own (Mode.Array): CUTLASS's kernel for arrays of pointers
// (cutlass/gemm/kernel/sm90_gemm_array_tma_warpspecialized_*.hpp) behind the call record of a single GEMM. The host
// makes the tensor maps; where a threadblock comes to another problem it writes them, with the addresses of that, into
// a place of its multiprocessor in the workspace.
#pragma once

#include "pycutlass/gemm_grouped_sm90.h"

namespace pycutlass {

/// What is written of a tensor map. CUTLASS has one lane take it to shared memory, which holds more words of it at a
/// time than producers have registers, and keeps the extent of the grid in one until it is asked for: both spilled.
struct TensorMaps {
  /// A warp takes a tensor map that the host has made to shared memory, a word by each lane.
  CUTLASS_DEVICE static void copy(cute::TmaDescriptor& to, cute::TmaDescriptor const* from) {
    static_assert(sizeof(cute::TmaDescriptor) == 32 * sizeof(uint32_t), "a word for each lane");
    int const lane = threadIdx.x % 32;
    reinterpret_cast<uint32_t*>(&to)[lane] = reinterpret_cast<uint32_t const*>(from)[lane];
  }
  /// The place of this threadblock among those of the grid.
  CUTLASS_DEVICE static int place() {
    uint32_t columns;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(columns));
    return blockIdx.x + blockIdx.y * columns;
  }
};

template <typename Mainloop>
struct ArrayMainloop : GroupMainloop<Mainloop> {
  CUTLASS_DEVICE auto tensormaps_init(typename Mainloop::Params const& params,
                                      typename Mainloop::TensorMapStorage& shared, int sm_count, int) {
    TensorMaps::copy(shared.smem_tensormap_A, params.tma_load_a.get_tma_descriptor());
    TensorMaps::copy(shared.smem_tensormap_B, params.tma_load_b.get_tma_descriptor());
    __syncwarp();
    auto* const maps = static_cast<cute::TmaDescriptor*>(params.tensormaps) + TensorMaps::place();
    return cute::make_tuple(maps, maps + sm_count);
  }
};

/// Behind those of D, of which each warp group has one, is that of C.
template <typename Epilogue>
struct ArrayEpilogue : GroupEpilogue<Epilogue> {
  using GroupEpilogue<Epilogue>::GroupEpilogue;
  using Params = typename Epilogue::Params;
  using Storage = typename Epilogue::TensorMapStorage;

  CUTLASS_DEVICE auto load_init(Params const& params, Storage& shared, int sm_count, int) {
    TensorMaps::copy(shared.smem_tensormap_C, params.tma_load_c.get_tma_descriptor());
    __syncwarp();
    return cute::make_tuple(params.tensormaps + TensorMaps::place() + Epilogue::NumEpilogueWarpGroups * sm_count);
  }
  CUTLASS_DEVICE auto store_init(Params const& params, Storage& shared, int sm_count, int, int warp_group) {
    if (cutlass::canonical_warp_idx_sync() % 4 == 0) {  // which alone has D stored
      TensorMaps::copy(shared.smem_tensormap_D[warp_group], params.tma_store_d.get_tma_descriptor());
      __syncwarp();
    }
    return cute::make_tuple(params.tensormaps + TensorMaps::place() + warp_group * sm_count);
  }
};

/// Takes what GemmSm90 takes. Tiles are CUTLASS's whole ones: its kernels for arrays have no stream-K.
template <typename A, typename B, typename C, typename ElementAccumulator, typename TileShape, typename ClusterShape,
          typename Fusion, typename Schedule, int Stages, typename D = C>
struct GemmArraySm90 {
  using EpilogueSchedule = typename GroupSchedule<Schedule>::Epilogue;
  using Fused = FusionOf<Fusion, TileShape, C, D, OfArray<EpilogueSchedule>>;
  static constexpr int kTileN = cute::size<1>(TileShape{});
  using EpilogueTile =
      cute::conditional_t<kTileN % 16 == 0,
                          cute::Shape<cute::Int<Schedule::template kStoredRows<cute::size<0>(TileShape{})>>,
                                      cute::Int<cute::gcd(32, kTileN)>>,
                          cutlass::epilogue::collective::EpilogueTileAuto>;

  using CollectiveEpilogue = ArrayEpilogue<EpilogueSm90<
      typename cutlass::epilogue::collective::CollectiveBuilder<
          cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape, EpilogueTile,
          ElementAccumulator, typename Fusion::ElementCompute, typename C::Element, typename C::Layout, C::kAlignment,
          typename D::Element, typename D::Layout, D::kAlignment, EpilogueSchedule, typename Fused::Type>::CollectiveOp,
      Fused::kIsFunction>>;

  using CollectiveMainloop =
      ArrayMainloop<typename WithPromotion<BuiltMainloop<A, B, ElementAccumulator, TileShape, ClusterShape,
                                                         typename StageCount<Stages, CollectiveEpilogue>::Type,
                                                         typename GroupSchedule<Schedule>::Mainloop>>::Type>;

  using Size = cute::Shape<int, int, int, int>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::ArrayProblemShape<Size>, CollectiveMainloop,
                                                      CollectiveEpilogue>;

  using Params = typename Kernel::Params;
  using Call = pycutlass_gemm_call;
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
  static constexpr bool kWritesTarget = WritesTarget<typename Fused::Type>::value;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    using EA = typename LoadedAs<typename A::Element>::Type;
    using EB = typename LoadedAs<typename B::Element>::Type;
    if (call.mode != static_cast<int>(cutlass::gemm::GemmUniversalMode::kArray) || !has_tables(call.common)) {
      return cutlass::Status::kErrorInvalidProblem;
    }
    pycutlass_operand const &a = operand(call.common, PYCUTLASS_A), &b = operand(call.common, PYCUTLASS_B);
    pycutlass_operand target = operand(call.common, PYCUTLASS_D);
    pycutlass_operand source = source_of<C, D, Fused::kIsFunction, Epilogue>(call);
    if constexpr (kWritesTarget) {  // as in GemmSm90
      target.stride[0] = call.n;
      source = target;
    }

    typename Kernel::Arguments arguments{};
    arguments.mode = cutlass::gemm::GemmUniversalMode::kArray;
    arguments.problem_shape = Size{call.m, call.n, call.k, call.batch_count};
    arguments.mainloop.ptr_A = static_cast<EA const**>(a.data);
    arguments.mainloop.dA = stride_of<typename Kernel::StrideA>(a);
    arguments.mainloop.ptr_B = static_cast<EB const**>(b.data);
    arguments.mainloop.dB = stride_of<typename Kernel::StrideB>(b);
    arguments.epilogue.ptr_C = static_cast<typename C::Element const**>(source.data);
    arguments.epilogue.dC = stride_of<typename Kernel::StrideC>(source);
    arguments.epilogue.ptr_D = static_cast<typename D::Element**>(target.data);
    arguments.epilogue.dD = stride_of<typename Kernel::StrideD>(target);
    Epilogue::fill(arguments.epilogue.thread, call.common);
    arguments.hw_info.device_id = call.common.device;
    arguments.hw_info.sm_count = call.common.sm_count;
    arguments.hw_info.max_active_clusters = most_clusters<ClusterShape>(call.common.sm_count);
    order_tiles<A, B, Fusion, false>(arguments.scheduler, call);

    if (!Kernel::can_implement(arguments)) return cutlass::Status::kErrorInvalidProblem;

    Params* params = new (storage) Params(Kernel::to_underlying_arguments(arguments, call.common.workspace));
    dim3 const grid = Kernel::get_grid_shape(*params);
    // CUTLASS's kernels for arrays do not wait for the kernel ahead of them: they start behind its end.
    result = {{grid.x, grid.y, grid.z}, Kernel::get_workspace_size(arguments), 0, 0, 0};
    return cutlass::Status::kSuccess;
  }

 private:
  static bool has_tables(pycutlass_call const& call) {
    for (pycutlass_operand const& each : call.operands) {
      if (each.data && each.form != PYCUTLASS_ADDRESSES) return false;
    }
    return true;
  }

#endif
};

}  // namespace pycutlass
