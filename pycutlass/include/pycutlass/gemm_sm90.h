// Hopper-native GEMM: a kernel of CUTLASS's 3.x API, made by the collective builders (TMA, wgmma, warp
// specialisation; cutlass/gemm/collective/collective_builder.hpp), behind the call record.
#pragma once

// Has CUTLASS's kernels say when the one behind them may start, and wait for the one ahead of them before they touch
// memory (cutlass/arch/grid_dependency_control.h). Both do nothing where the launch does not ask for it.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1

#include "pycutlass/cp_async_sm90.h"
#include "pycutlass/epilogue.h"
#include "pycutlass/epilogue_direct_sm90.h"
#include "pycutlass/epilogue_sm90.h"
#include "pycutlass/host.h"
#include "pycutlass/k_major_sm90.h"
#include "pycutlass/kernel_sm90.h"
#include "pycutlass/loads_sm90.h"
#include "pycutlass/prelude.h"
#include "pycutlass/promoted_sm90.h"
#include "pycutlass/sums_sm90.h"
#include "pycutlass/warp_groups_sm90.h"

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/gemm/kernel/tile_scheduler.hpp>

#include "pycutlass/tensor.h"
#include "pycutlass/transposed_b_sm90.h"

namespace pycutlass {

/// Tag of the scheduler that divides tiles among threadblocks along K (stream-K, or split-K).
struct StreamK {};
/// CUTLASS's, whose `is_last_tile` does not compile. It says when the kernel behind this one may start: not before this
/// one's end then.
template <typename TileShape, typename ClusterShape>
struct StreamKScheduler : cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamK<TileShape, ClusterShape> {
  using Base = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamK<TileShape, ClusterShape>;
  using Base::Base;

  CUTLASS_DEVICE bool is_last_tile(typename Base::WorkTileInfo const&, uint32_t = 1) const { return false; }
};

}  // namespace pycutlass

template <typename TileShape, typename ClusterShape, uint32_t kStages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<pycutlass::StreamK, cutlass::arch::Sm90, TileShape,
                                                            ClusterShape, kStages> {
  using Scheduler = pycutlass::StreamKScheduler<TileShape, ClusterShape>;
};

namespace pycutlass {

/// The kernel schedules, each with the one of cp.async and the epilogue schedule that belong to it, and the rows that
/// an epilogue stores at once. Fast accumulation leaves sums of 8-bit floats to the tensor cores, which keep fewer bits
/// of them.
struct Pingpong {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using CpAsync = cutlass::gemm::KernelCpAsyncWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
  template <int kTileRows>
  static constexpr int kStoredRows = 64;
};
struct PingpongFastAccumulation : Pingpong {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum;
};
struct Cooperative {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  using CpAsync = cutlass::gemm::KernelCpAsyncWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::TmaWarpSpecializedCooperative;
  template <int kTileRows>
  static constexpr int kStoredRows = kTileRows == kRowsOfThreeWarpGroups ? kRowsOfThreeWarpGroups : 128;
};
struct CooperativeFastAccumulation : Cooperative {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum;
};

/// What the mainloop is told of an operand's type: of f32 TMA makes tf32, rounded and not cut off.
template <typename Element>
struct LoadedAs {
  using Type = Element;
};
template <>
struct LoadedAs<cutlass::tfloat32_t> {
  using Type = float;
};

/// Number of mainloop stages: as many as fit beside the epilogue where `Stages` is 0. CUTLASS 4.2 asks a number of
/// stages for its `bytes` where A comes from registers, and takes them for that number.
template <int Stages, typename CollectiveEpilogue>
struct StageCount {
  struct Type : cutlass::gemm::collective::StageCount<Stages> {
    static constexpr int bytes = Stages;
  };
};
template <typename CollectiveEpilogue>
struct StageCount<0, CollectiveEpilogue> {
  using Type = cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
      sizeof(typename CollectiveEpilogue::SharedStorage))>;
};

/// The epilogue's schedule of a kernel that has tables of addresses for problems of one size.
template <typename Schedule>
struct OfArray {};
template <typename Schedule>
struct IsArray : cute::false_type {};
template <typename Schedule>
struct IsArray<OfArray<Schedule>> : cute::true_type {};

/// Whether the epilogue is an epilogue function (function_sm90.h).
template <typename Fusion>
struct IsFunction : cute::false_type {};

/// What the epilogue of a kernel computes: a fusion operation of CUTLASS's, ...
template <typename Fusion, typename TileShape, typename C, typename D, typename Schedule, typename = void>
struct FusionOf {
  static bool const kIsTree = false;
  static bool const kIsFunction = false;
  using Type = Fusion;
#if !PYCUTLASS_DEVICE_SIDE
  template <typename Arguments>
  using Launch = FusionEpilogue<Fusion, Arguments>;
#endif
};
/// ... or a tree of CUTLASS's visitors, which needs to know the kernel, and says what it takes for a launch.
template <typename Fusion, typename TileShape, typename C, typename D, typename Schedule>
struct FusionOf<Fusion, TileShape, C, D, Schedule,
                cute::void_t<typename Fusion::template Tree<TileShape, C, D, Schedule>>> {
  static bool const kIsTree = true;
  static bool const kIsFunction = IsFunction<Fusion>::value;
  using Type = typename Fusion::template Tree<TileShape, C, D, Schedule>::Type;
#if !PYCUTLASS_DEVICE_SIDE
  template <typename Arguments>
  using Launch = typename Fusion::template Launch<Arguments>;
#endif
};

/// Whether TMA can copy a matrix.
template <typename Tensor>
struct IsForTma : cute::bool_constant<Tensor::kAlignment * sizeof(typename Tensor::Element) == 16> {};

/// The epilogue of a kernel: with a `store` of our own where D lies as C does and nothing else is read or written, or
/// where it is a function; else as CUTLASS has it.
template <bool kIsDirect, typename Fused, typename TileShape, typename ClusterShape, typename EpilogueTile,
          typename ElementAccumulator, typename ElementCompute, typename C, typename D, typename Schedule>
struct EpilogueOf {
  static constexpr bool kAlike = cutlass::platform::is_same<typename C::Layout, typename D::Layout>::value;
  static_assert(kAlike || !Fused::kIsFunction);
  using Collective = typename BuiltEpilogue<TileShape, ClusterShape, EpilogueTile, ElementAccumulator, ElementCompute,
                                            C, D, Schedule, typename Fused::Type>::Type;
  using Type = cute::conditional_t<(kAlike && !Fused::kIsTree) || Fused::kIsFunction,
                                   EpilogueSm90<Collective, Fused::kIsFunction>, Collective>;
};
/// Or without TMA.
template <typename Fused, typename TileShape, typename ClusterShape, typename EpilogueTile, typename ElementAccumulator,
          typename ElementCompute, typename C, typename D, typename Schedule>
struct EpilogueOf<true, Fused, TileShape, ClusterShape, EpilogueTile, ElementAccumulator, ElementCompute, C, D,
                  Schedule> {
  static_assert(!Fused::kIsTree || Fused::kIsFunction, "CUTLASS's own visitors need TMA");
  using Type =
      DirectEpilogueSm90<typename Fused::Type, TileShape, EpilogueTile, ElementAccumulator, C, D, Fused::kIsFunction>;
};

/// The mainloop of a kernel as CUTLASS builds it for a schedule, ...
template <typename A, typename B, typename ElementAccumulator, typename TileShape, typename ClusterShape,
          typename Stages, typename Mainloop>
using BuiltMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename LoadedAs<typename A::Element>::Type,
    typename A::Layout, A::kAlignment, typename LoadedAs<typename B::Element>::Type, typename B::Layout, B::kAlignment,
    ElementAccumulator, TileShape, ClusterShape, Stages, Mainloop>::CollectiveOp;
/// ... by TMA or by cp.async.
template <bool kIsCpAsync, typename A, typename B, typename ElementAccumulator, typename TileShape,
          typename ClusterShape, typename Stages, typename Schedule>
struct MainloopOf {
  using Type = typename OwnMainloop<WithOwnLoads<typename WithWarpGroups<BuiltMainloop<
      A, B, ElementAccumulator, TileShape, ClusterShape, Stages, typename Schedule::Mainloop>>::Type>>::Type;
};
template <typename A, typename B, typename ElementAccumulator, typename TileShape, typename ClusterShape,
          typename Stages, typename Schedule>
struct MainloopOf<true, A, B, ElementAccumulator, TileShape, ClusterShape, Stages, Schedule> {
  static_assert(cute::size(ClusterShape{}) == 1, "cp.async brings tiles to one threadblock alone");
  using Type = CpAsyncMainloop<
      BuiltMainloop<A, B, ElementAccumulator, TileShape, ClusterShape, Stages, typename Schedule::CpAsync>>;
};

#if !PYCUTLASS_DEVICE_SIDE

/// Fills the one run-time entry of a rank-3 stride (leading dimension, 1, batch) or (1, leading dimension, batch).
template <typename Stride>
Stride stride_of(pycutlass_operand const& operand) {
  Stride result{};
  if constexpr (cute::is_static<cute::tuple_element_t<0, Stride>>::value) {
    cute::get<1>(result) = operand.stride[0];
  } else {
    cute::get<0>(result) = operand.stride[0];
  }
  cute::get<2>(result) = operand.stride[1];
  return result;
}

/// What comes by TMA as C. Without a source the tensor map of C still has to describe some memory: that of D, which
/// beta = 0 never reads.
template <typename C, typename D, bool kIsFunction, typename Epilogue>
pycutlass_operand source_of(pycutlass_gemm_call const& call) {
  pycutlass_operand source = source_or_target(call.common);
  if constexpr (kIsFunction) {
    return Epilogue::source(call.common, source);
  } else if constexpr (!cutlass::platform::is_same<C, D>::value) {
    if (!operand(call.common, PYCUTLASS_C).data) {
      bool const by_rows = cutlass::platform::is_same<typename C::Layout, cutlass::layout::RowMajor>::value;
      source.stride[0] = by_rows ? call.n : call.m;
      source.stride[1] = 0;
    }
  }
  return source;
}

/// Which reductions an epilogue has (ReducedAxes); none without a function.
template <typename Fusion>
struct AxesOf {
  static constexpr int kAxes = 0;
};

/// The order in which a kernel visits its tiles. Where the last tile of a line joins what an epilogue function reduces
/// along it, and lines end one after the other, the same threadblocks join them and are late each time. Tiles across
/// the lines come first then, so that all lines end with the kernel, where operands stay in the L2 cache in any order.
template <typename A, typename B, typename Fusion, bool kJoinsLater, typename Scheduler>
void order_tiles(Scheduler& arguments, pycutlass_gemm_call const& call) {
  constexpr int64_t kInAnyOrder = 32 << 20;  // of the 50 MB that an H100 has
  constexpr int kAxes = kJoinsLater ? 0 : AxesOf<Fusion>::kAxes & 3;
  int64_t const operand_bytes = int64_t(call.k) * (int64_t(call.m) * int64_t(sizeof(typename A::Element)) +
                                                   int64_t(call.n) * int64_t(sizeof(typename B::Element)));
  using RasterOrder = decltype(arguments.raster_order);
  arguments.max_swizzle_size = call.max_swizzle;
  arguments.raster_order = call.raster_order == 0   ? RasterOrder::AlongM
                           : call.raster_order == 1 ? RasterOrder::AlongN
                                                    : RasterOrder::Heuristic;
  if ((kAxes == 1 || kAxes == 2) && call.raster_order == 2 && operand_bytes <= kInAnyOrder) {
    arguments.max_swizzle_size = 1;
    arguments.raster_order = kAxes == 1 ? RasterOrder::AlongM : RasterOrder::AlongN;
  }
}

#endif

/// Clusters on so many multiprocessors, of those that not all parts of a GPU have room for; 0 leaves it to CUTLASS,
/// which knows how many others there may be. Of the former the extension has counted the multiprocessors that can have
/// one.
template <typename ClusterShape>
constexpr int most_clusters(int sm_count) {
  constexpr int kThreadblocks = cute::size(ClusterShape{});
  return kThreadblocks > 8 ? sm_count / kThreadblocks : 0;
}

/// D may be described apart from C. The scheduler is CUTLASS's for whole tiles, or for stream-K.
template <typename A, typename B, typename C, typename ElementAccumulator, typename TileShape, typename ClusterShape,
          typename Fusion, typename Schedule, int Stages, typename D = C,
          typename Scheduler = cutlass::gemm::PersistentScheduler>
struct GemmSm90 {
  static constexpr bool kIsStreamK = cutlass::platform::is_same<Scheduler, StreamK>::value;
  using Fused = FusionOf<Fusion, TileShape, C, D, typename Schedule::Epilogue>;
  /// TMA copies what is aligned to 16 bytes. A and B go by cp.async where either is not; C and D as well as these are
  /// moved by the threads that have the sums then, or where one of them is not aligned so.
  static constexpr bool kIsCpAsync = !IsForTma<A>::value || !IsForTma<B>::value;
  static constexpr bool kIsDirect = kIsCpAsync || !IsForTma<C>::value || !IsForTma<D>::value;

  static constexpr int kTileN = cute::size<1>(TileShape{}), kTileK = cute::size<2>(TileShape{});
  // CUTLASS would multiply B^T by A^T, and store the transposed tile as if it were none.
  static_assert((sizeof(typename A::Element) == 2 && sizeof(typename B::Element) == 2) ||
                    !(cutlass::gemm::detail::is_k_major_A<typename A::Layout>() &&
                      cutlass::gemm::detail::is_mn_major_B<typename B::Layout>()),
                "describe the transposed problem where A lies along K and B does not");
  /// What is stored at once: as CUTLASS chooses it, but 32 columns of 8-bit elements as well.
  using EpilogueTile =
      cute::conditional_t<kTileN % 16 == 0 || kIsDirect,
                          cute::Shape<cute::Int<Schedule::template kStoredRows<cute::size<0>(TileShape{})>>,
                                      cute::Int<cute::gcd(32, kTileN)>>,
                          cutlass::epilogue::collective::EpilogueTileAuto>;

  using CollectiveEpilogue =
      typename EpilogueOf<kIsDirect, Fused, TileShape, ClusterShape, EpilogueTile, ElementAccumulator,
                          typename Fusion::ElementCompute, C, D, typename Schedule::Epilogue>::Type;
  using CollectiveMainloop = typename MainloopOf<kIsCpAsync, A, B, ElementAccumulator, TileShape, ClusterShape,
                                                 typename StageCount<Stages, CollectiveEpilogue>::Type, Schedule>::Type;

  static_assert(Schedule::template kStoredRows<cute::size<0>(TileShape{})> != kRowsOfThreeWarpGroups ||
                    cute::size(typename CollectiveMainloop::TiledMma{}) == 3 * cutlass::NumThreadsPerWarpGroup,
                "WithWarpGroups does not match what this CUTLASS builds");

  using BuiltKernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                                           CollectiveEpilogue, Scheduler>;
  /// Whether ours was seen to spill: beside so many sums of a thread, where D has 32 bits.
  static constexpr bool kHasManySums = cute::size<0>(TileShape{}) * kTileN >
                                           128 * cute::size(typename CollectiveMainloop::TiledMma{}) &&
                                       sizeof(typename D::Element) == 4;
  /// Whether the device side is CUTLASS's, which gives registers to two warp groups.
  static constexpr bool kIsAsBuilt = kIsCpAsync || kIsStreamK || kHasManySums;
  static_assert(!kIsAsBuilt || BuiltKernel::MaxThreadsPerBlock == 3 * cutlass::NumThreadsPerWarpGroup);
  /// Whether the kernel may make partial sums of slices of K, of which the last may be shorter.
  static constexpr bool kTakesSlices =
      cutlass::platform::is_same<typename D::Element, ElementAccumulator>::value && !kIsAsBuilt;
  using Kernel = cute::conditional_t<kIsAsBuilt, BuiltKernel, PersistentKernel<BuiltKernel, kTakesSlices>>;

  using Params = typename Kernel::Params;
  using Call = pycutlass_gemm_call;
  static unsigned const kThreads = Kernel::MaxThreadsPerBlock;
  static unsigned const kMinBlocks = Kernel::MinBlocksPerMultiprocessor;
  static unsigned const kSharedBytes = Kernel::SharedStorageSize;
  static unsigned const kClusterM = cute::size<0>(ClusterShape{});
  static unsigned const kClusterN = cute::size<1>(ClusterShape{});

#if PYCUTLASS_DEVICE_SIDE

  // plan says that the kernel waits itself.
  static_assert(cutlass::arch::IsGdcGloballyEnabled, "this CUTLASS leaves out the waits of dependent launches");

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
    using EC = typename C::Element;
    pycutlass_operand a = operand(call.common, PYCUTLASS_A), b = operand(call.common, PYCUTLASS_B);
    pycutlass_operand target = operand(call.common, PYCUTLASS_D);
    pycutlass_operand source = source_of<C, D, Fused::kIsFunction, Epilogue>(call);
    if constexpr (kWritesTarget && !kIsDirect) {
      // TMA moves neither C nor D, whose tensor maps only have to be possible ones for the extents of the product.
      target.stride[0] = call.n;
      target.stride[1] = int64_t(call.m) * call.n;
      source = target;
    }

    typename Kernel::Arguments arguments{};
    arguments.mode = static_cast<cutlass::gemm::GemmUniversalMode>(call.mode);
    int k = call.k;
    // Slices of K are a batch, each with a plane of partial sums: of whole steps, or equal ones of fewer elements.
    bool const is_parallel = arguments.mode == cutlass::gemm::GemmUniversalMode::kGemmSplitKParallel;
    bool const in_steps = is_parallel && kTakesSlices && call.batch_count <= (k - 1) / kTileK + 1;
    if (is_parallel) {
      constexpr bool kLiesAlongK[] = {cutlass::gemm::detail::is_k_major_A<typename A::Layout>(),
                                      cutlass::gemm::detail::is_k_major_B<typename B::Layout>()};
      arguments.mode = cutlass::gemm::GemmUniversalMode::kBatched;
      source.stride[1] = target.stride[1] = int64_t(call.m) * call.n;
      if (in_steps) {  // the kernel begins in the midst of A and B; tensor maps have more of both, which nobody loads
        a.stride[1] = a.stride[0] * (kLiesAlongK[0] ? call.m : k);
        b.stride[1] = b.stride[0] * (kLiesAlongK[1] ? call.n : k);
      } else {
        k /= call.batch_count;
        a.stride[1] = k * (kLiesAlongK[0] ? 1 : a.stride[0]);
        b.stride[1] = k * (kLiesAlongK[1] ? 1 : b.stride[0]);
      }
    }
    bool const is_split = kIsStreamK && arguments.mode == cutlass::gemm::GemmUniversalMode::kGemm;
    arguments.problem_shape = {call.m, call.n, k, is_split ? 1 : call.batch_count};
    arguments.mainloop.ptr_A = static_cast<EA const*>(a.data);
    arguments.mainloop.dA = stride_of<typename Kernel::StrideA>(a);
    arguments.mainloop.ptr_B = static_cast<EB const*>(b.data);
    arguments.mainloop.dB = stride_of<typename Kernel::StrideB>(b);
    arguments.epilogue.ptr_C = static_cast<EC const*>(source.data);
    arguments.epilogue.dC = stride_of<typename Kernel::StrideC>(source);
    arguments.epilogue.ptr_D = static_cast<typename D::Element*>(target.data);
    arguments.epilogue.dD = stride_of<typename Kernel::StrideD>(target);
    Epilogue::fill(arguments.epilogue.thread, call.common);
    arguments.hw_info.device_id = call.common.device;
    arguments.hw_info.sm_count = call.common.sm_count;
    arguments.hw_info.max_active_clusters = most_clusters<ClusterShape>(call.common.sm_count);
    order_tiles<A, B, Fusion, !kIsAsBuilt && JoinsLater<typename Fused::Type>::value>(arguments.scheduler, call);
    if constexpr (kIsStreamK) {
      using Decomposition = decltype(arguments.scheduler.decomposition_mode);
      arguments.scheduler.splits = is_split ? call.batch_count : 1;
      if (arguments.scheduler.splits > 1) arguments.scheduler.decomposition_mode = Decomposition::SplitK;
    }

    if (!Kernel::can_implement(arguments)) return cutlass::Status::kErrorInvalidProblem;

    Params* params = new (storage) Params(Kernel::to_underlying_arguments(arguments, call.common.workspace));
    if (in_steps) params->mode = cutlass::gemm::GemmUniversalMode::kGemmSplitKParallel;
    dim3 grid = Kernel::get_grid_shape(*params);
    result = {{grid.x, grid.y, grid.z}, Kernel::get_workspace_size(arguments), 0, 0, 0};
    if constexpr (kIsCpAsync) {  // CUTLASS's kernel knows of no workspace but its scheduler's, which needs none, and
                                 // does not wait for the kernel ahead of it
      result.workspace_bytes = CollectiveEpilogue::get_workspace_size(arguments.problem_shape, arguments.epilogue);
    } else {
      result.supports_pdl = !Epilogue::reads_ahead(call.common);
    }
    if (kIsStreamK && call.common.workspace) {  // has the barriers be cleared before every launch
      cutlass::Status const status = Kernel::initialize_workspace(arguments, call.common.workspace);
      note_clear(call.common.workspace, result);
      return status;
    }
    return cutlass::Status::kSuccess;
  }

#endif
};

/// A GEMM that is computed as the transposed problem: `Gemm` is that, with the operands B and A of the caller,
/// who speaks of A, B, M and N as they were written.
template <typename Gemm>
struct TransposedSm90 : Gemm {
  using Call = pycutlass_gemm_call;

#if !PYCUTLASS_DEVICE_SIDE
  struct Operands {
    static constexpr auto& kCodesOfGemm = Gemm::Operands::kCodes;
    static constexpr uint8_t kCodes[PYCUTLASS_ROLES] = {kCodesOfGemm[PYCUTLASS_B], kCodesOfGemm[PYCUTLASS_A],
                                                        kCodesOfGemm[PYCUTLASS_C], kCodesOfGemm[PYCUTLASS_D]};
  };

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    Call transposed = call;
    transposed.m = call.n;
    transposed.n = call.m;
    transposed.common.operands[PYCUTLASS_A] = call.common.operands[PYCUTLASS_B];
    transposed.common.operands[PYCUTLASS_B] = call.common.operands[PYCUTLASS_A];
    if (call.raster_order == 0 || call.raster_order == 1) transposed.raster_order = 1 - call.raster_order;
    return Gemm::plan(transposed, storage, result);
  }
#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
