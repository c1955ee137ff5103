// The device side of CUTLASS's persistent kernels (cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_pingpong.hpp and
// _cooperative.hpp) with a shorter way to the first load. There, one warp makes all barriers, everybody waits for it
// and divides 64-bit numbers to find a tile, and only then is anything loaded: 3 000 clocks of an H100, a fifth of a
// product of 1024 x 1024 x 1024. Here the warp that loads finds its tile, in 32 bits, while two others make barriers,
// and loads after 1 200 clocks. What is multiplied and stored, and in which order, is the same.
#pragma once

#include "pycutlass/prelude.h"
#include "pycutlass/sums_sm90.h"

#include <cute/arch/cluster_sm90.hpp>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/grid_dependency_control.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/pipeline/pipeline.hpp>

namespace pycutlass {

/// Where a threadblock is in its cluster.
struct PlaceInCluster {
  CUTLASS_DEVICE static dim3 get() { return cute::block_id_in_cluster(); }
};

/// The tiles of a threadblock, one after the other, in the order of CUTLASS's persistent scheduler
/// (cutlass/gemm/kernel/sm90_tile_scheduler.hpp): numbers `first`, `first` + `step` and so on. There are fewer than
/// 2^31 (operation/support.py): CUTLASS's host side counts no more.
template <typename Params, typename ClusterShape, typename Place = PlaceInCluster>
class Tiles {
 public:
  CUTLASS_DEVICE Tiles(Params const& params, uint32_t first, uint32_t step)
      : params_(params), count_(uint32_t(params.blocks_per_problem_)), step_(step), number_(first) {}
#if PYCUTLASS_DEVICE_SIDE
  /// Those of this threadblock, which CUTLASS numbers as the grid lies.
  CUTLASS_DEVICE explicit Tiles(Params const& params)
      : params_(params), count_(uint32_t(params.blocks_per_problem_)), step_(gridDim.x * gridDim.y * gridDim.z) {
    number_ = is_along_n() ? blockIdx.x + blockIdx.y * gridDim.x : blockIdx.x * gridDim.y + blockIdx.y;
  }
#endif

  CUTLASS_DEVICE uint32_t number() const { return number_; }
  CUTLASS_DEVICE bool has_tile() const { return number_ < count_; }
  /// Whether there is another tile so many steps further on.
  CUTLASS_DEVICE bool has_another(uint32_t steps) const { return number_ + steps * step_ < count_; }
  CUTLASS_DEVICE void advance(uint32_t steps) { number_ += steps * step_; }

  /// Returns the tile's coordinates, in tiles and along K in whatever is asked.
  CUTLASS_DEVICE auto coord() const {
    constexpr uint32_t kM = cute::size<0>(ClusterShape{}), kN = cute::size<1>(ClusterShape{});
    uint32_t const minor_size = is_along_n() ? kM : kN, major_size = is_along_n() ? kN : kM;
    uint32_t const batch = divided(number_, params_.divmod_batch_);
    uint32_t const in_batch = number_ - batch * uint32_t(params_.divmod_batch_.divisor);
    uint32_t const along = in_batch / minor_size, cluster = along / major_size;
    uint32_t const log_swizzle = params_.log_swizzle_size_, swizzled = cluster >> log_swizzle;
    uint32_t const turn = divided(swizzled, params_.divmod_cluster_blk_major_);
    uint32_t const major_cluster = swizzled - turn * uint32_t(params_.divmod_cluster_blk_major_.divisor);
    uint32_t const minor_cluster = (turn << log_swizzle) + (cluster & ((1u << log_swizzle) - 1));
    uint32_t const major = major_cluster * major_size + along % major_size;
    uint32_t const minor = minor_cluster * minor_size + place_along_minor();
    return cute::make_coord(int(is_along_n() ? minor : major), int(is_along_n() ? major : minor), cute::_, int(batch));
  }

 private:
  CUTLASS_DEVICE bool is_along_n() const { return params_.raster_order_ == Params::RasterOrder::AlongN; }

  /// Returns the place of this threadblock in its cluster, along what its tiles are numbered along last.
  CUTLASS_DEVICE uint32_t place_along_minor() const {
    if constexpr (cute::size(ClusterShape{}) == 1) return 0;
    dim3 const place = Place::get();
    return is_along_n() ? place.x : place.y;
  }

  /// Divides as cutlass::FastDivmodU64 does, of which 32 bits need a third of the products.
  CUTLASS_DEVICE static uint32_t divided(uint32_t number, cutlass::FastDivmodU64 const& by) {
    if (by.multiplier == 0) return number >> by.shift_right;
    uint64_t const low = uint64_t(number + by.round_up) * uint32_t(by.multiplier);
    uint64_t const high = uint64_t(number + by.round_up) * uint32_t(by.multiplier >> 32);
    return uint32_t((high + (low >> 32)) >> 32) >> by.shift_right;
  }

  Params const& params_;
  uint32_t count_, step_, number_;
};

/// Steps along K, one after the other.
struct Steps {
  int first, count;

  /// Those of one of at most `total` slices, which differ by one step at most.
  CUTLASS_HOST_DEVICE static Steps of_slice(int total, int slices, int slice) {
    int const each = total / slices, longer = total - each * slices;
    return {slice * each + (slice < longer ? slice : longer), each + (slice < longer)};
  }
};

#if PYCUTLASS_DEVICE_SIDE

/// Two groups of threads that take turns, a number of times for each (cutlass::OrderedSequenceBarrier, whose barriers
/// the first warp would have to make). The first group begins.
template <typename Sequence>
class Turns {
 public:
  using Storage = typename Sequence::SharedStorage;
  static constexpr int kDepth = Sequence::SequenceDepth;

  CUTLASS_DEVICE Turns(Storage& storage, int group) : storage_(storage), group_(group), state_(0, group == 0, 0) {}

  /// Makes the barriers; to be called by one thread.
  CUTLASS_DEVICE static void make(Storage& storage, int threads) {
    for (int i = 0; i < kDepth; ++i) {
      for (int group = 0; group < 2; ++group) storage.barrier_[i][group].init(threads);
    }
  }

  CUTLASS_DEVICE void wait() { storage_.barrier_[state_.index()][group_].wait(state_.phase()); }
  CUTLASS_DEVICE void arrive() {
    storage_.barrier_[state_.index()][1 - group_].arrive();
    ++state_;
  }

 private:
  Storage& storage_;
  int group_;
  cutlass::PipelineState<kDepth> state_;
};

#endif

/// Whether a kernel of CUTLASS's is one whose two warp groups take turns, each with tiles of its own.
template <typename Kernel, typename = void>
struct IsPingpong : cute::false_type {};
template <typename Kernel>
struct IsPingpong<Kernel, cute::void_t<typename Kernel::MathWarpGroupOrderBarrier>> : cute::true_type {
#if PYCUTLASS_DEVICE_SIDE
  using MathTurns = Turns<typename Kernel::MathWarpGroupOrderBarrier>;
#endif
};

/// Whether the callbacks of a fusion join lines of tiles when the last tile has been stored.
template <typename Callbacks, typename = void>
struct JoinsLater : cute::false_type {};
template <typename Callbacks>
struct JoinsLater<Callbacks, cute::void_t<decltype(Callbacks::kJoinsLater)>>
    : cute::bool_constant<Callbacks::kJoinsLater> {};

/// A kernel that CUTLASS made, with a device side of our own. If it takes slices, its mode may be parallel split-K:
/// batches of D are sums over parts of K then, and A and B have none.
template <typename Kernel, bool kTakesSlices>
struct PersistentKernel : Kernel {
#if PYCUTLASS_DEVICE_SIDE

  using typename Kernel::ClusterShape;
  using typename Kernel::CollectiveEpilogue;
  using typename Kernel::CollectiveMainloop;
  using typename Kernel::Params;
  using typename Kernel::SharedStorage;
  using typename Kernel::TiledMma;
  using typename Kernel::TileShape;
  using Walk = Tiles<typename Kernel::TileSchedulerParams, ClusterShape>;
  using Loads = typename CollectiveMainloop::MainloopPipeline;
  using SourceLoads = typename CollectiveEpilogue::LoadPipeline;
  using Stores = typename CollectiveEpilogue::StorePipeline;

  static constexpr bool kIsPingpong = IsPingpong<Kernel>::value;
  static constexpr int kGroup = cutlass::NumThreadsPerWarpGroup;
  /// Threads that have the sums of one tile.
  static constexpr int kSharers = cute::size(TiledMma{});
  /// Of the four warps that have no sums, the last has nothing to do.
  static constexpr int kLoadingWarp = 0, kBarrierWarp = 1, kSourceWarp = 2;
  static constexpr bool kIsCluster = cute::size(ClusterShape{}) > 1;
  static constexpr bool kJoinsLater = pycutlass::JoinsLater<typename CollectiveEpilogue::FusionCallbacks>::value;
  /// Warp groups that multiply: two, or three that share a tile. Then 65 536 registers leave 160 for each of their
  /// threads, if those that load have 32.
  static constexpr int kGroups = kSharers * (kIsPingpong ? 2 : 1) / kGroup;
  static constexpr int kLoadRegisters = kGroups == 3 ? 32 : Kernel::LoadRegisterRequirement;
  static constexpr int kSumRegisters = kGroups == 3 ? 160 : Kernel::MmaRegisterRequirement;
  static_assert(Kernel::MaxThreadsPerBlock == (1 + kGroups) * kGroup &&
                (kGroups == 2 || (kGroups == 3 && !kIsPingpong)));
  static_assert(!Kernel::IsSchedDynamicPersistent && !Kernel::IsMainloopAuxiliaryLoadNeeded);

  CUTLASS_DEVICE void operator()(Params const& params, char* memory) {
    auto& shared = *reinterpret_cast<SharedStorage*>(memory);
    int const warp = cutlass::canonical_warp_idx_sync();
    make_barriers(params, shared, warp);
    if (warp < 4) {
      cutlass::arch::warpgroup_reg_dealloc<kLoadRegisters>();
      if (warp == kLoadingWarp) {
        load(params, shared);
      } else if (warp == kSourceWarp) {
        load_source(params, shared);
      } else if (warp == kBarrierWarp || kIsCluster) {
        wait_for_barriers();
      }
    } else {
      cutlass::arch::warpgroup_reg_alloc<kSumRegisters>();
      if constexpr (kIsPingpong) {
        run_pingpong(params, shared, warp / 4 - 1);
      } else {
        run_cooperative(params, shared);
      }
    }
  }

 private:
  /// Makes the barriers, by two warps, while the one that loads finds its first tile.
  CUTLASS_DEVICE static void make_barriers(Params const& params, SharedStorage& shared, int warp) {
    if (warp == kLoadingWarp) {
      if (cute::elect_one_sync()) CollectiveMainloop::prefetch_tma_descriptors(params.mainloop);
    } else if (warp == kBarrierWarp) {
      Loads::init_barriers(shared.pipelines.mainloop, params_of_loads(params, kBarrierWarp), ClusterShape{});
    } else if (warp == kSourceWarp) {
      if (cute::elect_one_sync()) {
        loads_begun(shared).init(cutlass::NumThreadsPerWarp);
        if constexpr (kIsPingpong) IsPingpong<Kernel>::MathTurns::make(shared.pipelines.math_wg_order, kGroup);
      }
      SourceLoads::init_barriers(shared.pipelines.epi_load, params_of_source_loads(params, kSourceWarp));
      if (cute::elect_one_sync()) CollectiveEpilogue::prefetch_tma_descriptors(params.epilogue);
    }
    __syncwarp();
    if constexpr (kIsCluster) cute::cluster_arrive_relaxed();
  }

  /// Waits for all barriers: of a cluster by all threads, else by those that use them.
  CUTLASS_DEVICE static void wait_for_barriers() {
    if constexpr (kIsCluster) {
      cute::cluster_wait();
    } else {
      constexpr uint32_t kUsers = Kernel::MaxThreadsPerBlock - cutlass::NumThreadsPerWarp, kFirstOfOurs = 0;
      cutlass::arch::NamedBarrier::sync(kUsers, kFirstOfOurs);
    }
  }

  /// Returns the barrier that says that the first tiles of A and B are being loaded.
  CUTLASS_DEVICE static auto& loads_begun(SharedStorage& shared) { return shared.pipelines.load_order.barrier_[0][1]; }

  CUTLASS_DEVICE static auto params_of_loads(Params const& params, int maker = 0) {
    typename Loads::Params result;
    result.role = threadIdx.x < kGroup ? Loads::ThreadCategory::Producer : Loads::ThreadCategory::Consumer;
    result.is_leader = threadIdx.x % kGroup == 0;
    result.num_consumers = kSharers;
    result.num_producers = Kernel::NumProducerThreads;
    result.initializing_warp = maker;
    result.transaction_bytes = params.mainloop.tma_transaction_bytes;
    return result;
  }

  CUTLASS_DEVICE static auto params_of_source_loads(Params const& params, int maker = 0) {
    typename SourceLoads::Params result;
    result.role = threadIdx.x < kGroup ? SourceLoads::ThreadCategory::Producer : SourceLoads::ThreadCategory::Consumer;
    result.dst_blockid = cute::block_rank_in_cluster();
    result.producer_arv_count = cutlass::NumThreadsPerWarp;
    result.consumer_arv_count = kSharers;
    result.initializing_warp = maker;
    if constexpr (CollectiveEpilogue::RequiresTransactionBytes) {
      result.transaction_bytes = params.epilogue.tma_transaction_bytes;
    }
    return result;
  }

  CUTLASS_DEVICE static auto stores() {
    typename Stores::Params params;
    params.always_wait = true;
    return Stores(params);
  }

  CUTLASS_DEVICE static auto problem_of(Params const& params) {
    return cute::append<4>(params.problem_shape, cute::Int<1>{});
  }

  /// Whether K is divided.
  CUTLASS_DEVICE static bool is_sliced(Params const& params) {
    return kTakesSlices && params.mode == cutlass::gemm::GemmUniversalMode::kGemmSplitKParallel;
  }

  /// Returns the steps along K of the tile that a walk is at.
  CUTLASS_DEVICE static Steps steps_of(Params const& params, Walk const& walk) {
    constexpr int kTileK = cute::size<2>(TileShape{});
    int const all = (int(cute::get<2>(params.problem_shape)) + kTileK - 1) / kTileK;
    if (!is_sliced(params)) return {0, all};
    return Steps::of_slice(all, int(cute::get<3>(params.problem_shape)), cute::get<3>(walk.coord()));
  }

  /// Loads A and B, by one warp.
  CUTLASS_DEVICE static void load(Params const& params, SharedStorage& shared) {
    Walk walk(params.scheduler);
    Loads loads(shared.pipelines.mainloop, params_of_loads(params), ClusterShape{}, cute::false_type{},
                cute::false_type{});
    auto state = cutlass::make_producer_start_state<Loads>();
    CollectiveMainloop mainloop;
    auto const inputs = mainloop.load_init(problem_of(params), params.mainloop);
    Steps part = steps_of(params, walk);
    auto coord = walk.coord();
    uint32_t const rank = cute::block_rank_in_cluster();
    // Else the compiler would find the tile behind the barrier.
    asm volatile("" : : "r"(cute::get<0>(coord)), "r"(cute::get<1>(coord)), "r"(cute::get<3>(coord)));
    wait_for_barriers();
    cutlass::arch::wait_on_dependent_grids();  // what the kernel ahead has written must not be read before

    bool is_first = true;
    while (walk.has_tile()) {
      auto const all = cute::shape<3>(cute::get<0>(inputs));
      auto steps = cute::make_coord_iterator(cute::idx2crd(part.first, all), all);
      if (is_sliced(params)) cute::get<3>(coord) = 0;
      mainloop.load(params.mainloop, loads, state, inputs, coord, steps, part.count, cutlass::canonical_lane_idx(),
                    rank, shared.tensors.mainloop);
      state.advance(part.count);
      if (is_first) loads_begun(shared).arrive();
      is_first = false;
      walk.advance(1);
      coord = walk.coord();
      if constexpr (kTakesSlices) part = steps_of(params, walk);
    }
    mainloop.load_tail(loads, state);
  }

  /// Loads C, and what else an epilogue has brought by TMA, by one warp: not before the first tiles of A and B.
  CUTLASS_DEVICE static void load_source(Params const& params, SharedStorage& shared) {
    CollectiveEpilogue epilogue(params.epilogue, shared.tensors.epilogue);
    SourceLoads loads(shared.pipelines.epi_load, params_of_source_loads(params), cute::false_type{});
    auto state = cutlass::make_producer_start_state<SourceLoads>();
    Walk walk(params.scheduler);
    wait_for_barriers();
    if (!epilogue.is_producer_load_needed()) return;
    cutlass::arch::wait_on_dependent_grids();

    if (walk.has_tile()) loads_begun(shared).wait(0);
    for (; walk.has_tile(); walk.advance(1)) {
      state = epilogue.load(loads, state, problem_of(params), TileShape{}, walk.coord(), TiledMma{},
                            cutlass::canonical_lane_idx(), shared.tensors.epilogue);
    }
    epilogue.load_tail(loads, state);
  }

  /// Multiplies and stores tiles, by all warp groups together.
  CUTLASS_DEVICE static void run_cooperative(Params const& params, SharedStorage& shared) {
    int const thread = threadIdx.x - kGroup;
    Loads loads(shared.pipelines.mainloop, params_of_loads(params), ClusterShape{}, cute::false_type{});
    SourceLoads source_loads(shared.pipelines.epi_load, params_of_source_loads(params), cute::false_type{});
    CollectiveMainloop mainloop;
    CollectiveEpilogue epilogue(params.epilogue, shared.tensors.epilogue);
    typename CollectiveMainloop::PipelineState state;
    typename CollectiveEpilogue::LoadPipelineState loaded;
    auto stored = cutlass::make_producer_start_state<Stores>();
    Walk walk(params.scheduler);
    int count = steps_of(params, walk).count;
    wait_for_barriers();

    begin_joining(epilogue, thread);
    bool has_stored = false;
    while (walk.has_tile()) {
      auto sums = partition_fragment_C(TiledMma{}, cute::take<0, 2>(TileShape{}));
      mainloop.mma(loads, state, sums, count, thread, shared.tensors.mainloop, params.mainloop);
      mainloop.mma_tail(loads, state, count);
      state.advance(count);
      if (!walk.has_another(1)) cutlass::arch::launch_dependent_grids();

      auto const [next_loaded, next_stored] =
          epilogue.store(source_loads, loaded, stores(), stored, problem_of(params), TileShape{}, walk.coord(), sums,
                         TiledMma{}, thread, shared.tensors.epilogue);
      loaded = next_loaded;
      stored = next_stored;
      has_stored = true;
      walk.advance(1);
      if constexpr (kTakesSlices) count = steps_of(params, walk).count;
    }
    if (has_stored) epilogue.store_tail(source_loads, loaded, stores(), stored);
    end_lines(epilogue, params, 0, 1, thread);
  }

  /// Multiplies and stores tiles, by one of two warp groups that take turns: one multiplies while the other stores.
  CUTLASS_DEVICE static void run_pingpong(Params const& params, SharedStorage& shared, int group) {
    int const thread = threadIdx.x % kGroup;
    int const loads_of_tile = CollectiveEpilogue::get_load_pipe_increment(TileShape{});
    int const stores_of_tile = CollectiveEpilogue::get_store_pipe_increment(TileShape{});
    Loads loads(shared.pipelines.mainloop, params_of_loads(params), ClusterShape{}, cute::false_type{});
    SourceLoads source_loads(shared.pipelines.epi_load, params_of_source_loads(params), cute::false_type{});
    CollectiveMainloop mainloop;
    CollectiveEpilogue epilogue(params.epilogue, shared.tensors.epilogue);
    typename CollectiveMainloop::PipelineState state;
    typename CollectiveEpilogue::LoadPipelineState loaded;
    auto stored = cutlass::make_producer_start_state<Stores>();
    typename IsPingpong<Kernel>::MathTurns turns(shared.pipelines.math_wg_order, group);
    Walk walk(params.scheduler);
    int count = steps_of(params, walk).count;
    if (group == 1) {  // the first tile is the other's
      walk.advance(1);
      state.advance(count);
      loaded.advance(loads_of_tile);
      stored.advance(stores_of_tile);
      if constexpr (kTakesSlices) count = steps_of(params, walk).count;
    }
    wait_for_barriers();
    if (!walk.has_tile()) cutlass::arch::launch_dependent_grids();

    begin_joining(epilogue, thread);
    while (walk.has_tile()) {
      auto sums = partition_fragment_C(TiledMma{}, cute::take<0, 2>(TileShape{}));
      turns.wait();
      mainloop.mma(loads, state, sums, count, thread, shared.tensors.mainloop, params.mainloop);
      turns.arrive();
      mainloop.mma_tail(loads, state, count);
      int of_other = count;
      if constexpr (kTakesSlices) {
        Walk other = walk;
        other.advance(1);
        of_other = steps_of(params, other).count;
      }
      state.advance(count + of_other);
      if (!walk.has_another(2)) cutlass::arch::launch_dependent_grids();

      turns.wait();
      auto const [next_loaded, next_stored] =
          epilogue.store(source_loads, loaded, stores(), stored, problem_of(params), TileShape{}, walk.coord(), sums,
                         TiledMma{}, thread, shared.tensors.epilogue);
      // The other group must not write shared memory that TMA still reads: all stores of this tile have ended here.
      auto const [last_loaded, last_stored] = epilogue.store_tail(source_loads, next_loaded, stores(), next_stored);
      loaded = last_loaded;
      stored = last_stored;
      loaded.advance(loads_of_tile);
      stored.advance(stores_of_tile);
      turns.arrive();
      walk.advance(2);
      if constexpr (kTakesSlices) count = steps_of(params, walk).count;
    }
    end_lines(epilogue, params, group, 2, thread);
  }

  /// Has the lines of tiles that an epilogue reduces be joined behind all tiles, by `end_lines`.
  CUTLASS_DEVICE static void begin_joining(CollectiveEpilogue& epilogue, int thread) {
    if constexpr (kJoinsLater) epilogue.fusion().begin_joining(thread);
  }
  /// Of one of so many groups of threads.
  CUTLASS_DEVICE static void end_lines(CollectiveEpilogue& epilogue, Params const& params, int group, int groups,
                                       int thread) {
    if constexpr (kJoinsLater) {
      int64_t const threadblocks = int64_t(gridDim.x) * gridDim.y * gridDim.z;
      int64_t const own = Walk(params.scheduler).number() + group * threadblocks;
      epilogue.fusion().end_lines(problem_of(params), own, groups * threadblocks, thread);
    }
  }

#endif
};

}  // namespace pycutlass
