// The epilogue of Hopper-native kernels: CUTLASS's (cutlass/epilogue/collective/sm90_epilogue*_tma_warpspecialized.hpp)
// with a `store` of our own. CUTLASS derives from layouts, for any instruction and any copy, which thread has which
// element, and a compiler takes a third of its time to follow that. Here the instruction is always wgmma, whose
// accumulators the PTX manual describes, so that a few integers say the same.
#pragma once

#include "pycutlass/prelude.h"
#include "pycutlass/source_sm90.h"
#include "pycutlass/subtile_sm90.h"

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>

namespace pycutlass {

/// Whether the callbacks of a fusion write D themselves, so that nothing leaves by TMA.
template <typename Callbacks, typename = void>
struct WritesTarget : cute::false_type {};
template <typename Callbacks>
struct WritesTarget<Callbacks, cute::void_t<decltype(Callbacks::kIsGated)>> : cute::bool_constant<Callbacks::kIsGated> {
};

/// Whether the callbacks are those of an epilogue function that leaves D to TMA and has nothing brought by it.
template <typename Callbacks, typename = void>
struct OnlyStores : cute::false_type {};
template <typename Callbacks>
struct OnlyStores<Callbacks, cute::void_t<decltype(Callbacks::kReadsSource)>>
    : cute::bool_constant<!Callbacks::kReadsSource && !Callbacks::kIsGated> {};

/// Whether a dispatch policy is that of a group, whose problems have tensor maps of their own, made by the first warp.
template <typename Policy>
struct IsOfGroup : cute::false_type {};
template <int kStagesC, int kStagesD, int kFragment, bool kReuse, bool kDelay, int kGroups>
struct IsOfGroup<
    cutlass::epilogue::Sm90PtrArrayTmaWarpSpecialized<kStagesC, kStagesD, kFragment, kReuse, kDelay, kGroups>>
    : cute::true_type {};

/// Callbacks of one of CUTLASS's fusions that computes alpha and beta, and an activation. They are not told which
/// elements a thread has, since only fusions with vectors or other matrices than C ask for that.
template <typename CtaTile, typename EpilogueTile, typename Callbacks, typename Size, typename Coord, typename Mma,
          typename Source>
CUTLASS_DEVICE auto linear_callbacks(Callbacks& callbacks, Size const& size, Coord const& coord, Mma const& mma,
                                     Source& source, int thread) {
  using Fusion = typename cutlass::epilogue::fusion::FusionCallbacksTraits<Callbacks>::Operation;
  static_assert(!Fusion::IsPerRowScaleSupported && !Fusion::IsPerColScaleSupported && !Fusion::IsPerRowBiasSupported &&
                !Fusion::IsPerColBiasSupported && !Fusion::IsAuxInSupported && !Fusion::IsAuxOutSupported &&
                !Fusion::IsAbsMaxSupported && !Fusion::IsBlockScaleSupported);
  cute::tuple<> const untold{};
  return callbacks.template get_consumer_store_callbacks<true>(cutlass::epilogue::fusion::detail::ConsumerStoreArgs(
      size, CtaTile{}, coord, mma, EpilogueTile{}, untold, untold, untold, untold, untold, source, thread));
}

/// Whether the threads of a tile pass what columns come to through shared memory.
template <typename Callbacks, typename = void>
struct SharesColumns : cute::false_type {};
template <typename Callbacks>
struct SharesColumns<Callbacks, cute::void_t<decltype(Callbacks::kReducesColumns)>>
    : cute::bool_constant<Callbacks::kReducesColumns> {};
template <typename Callbacks>
CUTLASS_DEVICE constexpr bool shares_columns() {
  return SharesColumns<Callbacks>::value;
}

/// Ends the visits of a tile's elements, of which only an epilogue function is told.
template <bool kIsFunction, typename Callbacks>
CUTLASS_DEVICE void leave_tile(Callbacks& callbacks) {
  if constexpr (kIsFunction) callbacks.leave();
}

/// Waits for all threads that store a tile.
template <typename Mma>
CUTLASS_DEVICE void synchronize(Mma const&) {
  cutlass::arch::NamedBarrier::sync(cute::size(Mma{}), cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
}

/// Has them pass each other what the columns of a subtile come to, where the fusion says so. Its callbacks of a tile do
/// not: asked of them, no kernel would share anything.
template <typename Fusion, typename Callbacks, typename Mma>
CUTLASS_DEVICE void share_columns(Callbacks& callbacks, int i, int j, Mma const& mma) {
  static_assert(!cute::is_same_v<Fusion, Callbacks>);
  if constexpr (shares_columns<Fusion>()) {
    synchronize(mma);
    callbacks.synchronized(i, j);
    synchronize(mma);
  }
}

/// M, N, K and the number of batches, also of an array of problems.
template <typename Size>
constexpr Size const& sizes_of(Size const& size) {
  return size;
}
template <typename Size>
constexpr Size sizes_of(cutlass::gemm::ArrayProblemShape<Size> const& size) {
  return size.get_host_problem_shape();
}

/// The collective epilogue that a builder made, with another `store`. Kernels pass `subtile` to that; values other than
/// the default belong to separate reductions of stream-K, which CUTLASS has switched off.
///
/// Each warp sends its own rows of D by TMA, as soon as it has them: waiting for the other warps, twice for each
/// subtile, took as long as an activation does.
template <typename Collective, bool kIsFunction = false>
struct EpilogueSm90 : Collective {
  using typename Collective::CtaTileMNK;
  using typename Collective::ElementC;
  using typename Collective::ElementD;
  using typename Collective::EpilogueTile;
  using typename Collective::FusionCallbacks;
  using typename Collective::LoadPipeline;
  using typename Collective::LoadPipelineState;
  using typename Collective::Params;
  using typename Collective::StorePipeline;
  using typename Collective::StorePipelineState;
  using typename Collective::TensorStorage;
  using Policy = typename Collective::DispatchPolicy;

  static constexpr int kRows = cute::size<0>(EpilogueTile{});
  static constexpr int kColumns = cute::size<1>(EpilogueTile{});
  static constexpr int kFragment = Policy::FragmentSize;
  static constexpr bool kByColumns = cutlass::gemm::detail::is_major<0>(typename Collective::StrideD{});
  using Loader = Subtile<ElementC, kRows, kColumns, kFragment, kByColumns>;
  using Storer = Subtile<ElementD, kRows, kColumns, kFragment, kByColumns>;

  /// C and D, which lie in one order, share their buffers where CUTLASS says so: of one size, and more than 8 bits.
  static constexpr bool kShared = Policy::ReuseSmemC;
  static_assert(kByColumns == cutlass::gemm::detail::is_major<0>(typename Collective::StrideC{}));
  static_assert(kShared == (sizeof(ElementC) == sizeof(ElementD) && sizeof(ElementD) > 1) && !Policy::DelayTmaStore);
  using BoxOrder = cute::conditional_t<kByColumns, cute::Step<cute::_2, cute::_1>, cute::Step<cute::_1, cute::_2>>;
  using Order = cute::conditional_t<kByColumns, cute::Step<cute::_2, cute::_1, cute::_3>,
                                    cute::Step<cute::_1, cute::_2, cute::_3>>;
  template <typename Atom, int kStages>
  using Buffers = decltype(cute::tile_to_shape(
      Atom{}, cute::make_shape(cute::Int<kRows>{}, cute::Int<kColumns>{}, cute::Int<kStages>{}), Order{}));
  static constexpr int kBuffersD = kShared ? Policy::StagesC : Policy::StagesD;
  using LayoutC = Buffers<typename Collective::SmemLayoutAtomC, Policy::StagesC>;
  using LayoutD = Buffers<typename Collective::SmemLayoutAtomD, kBuffersD>;
  /// Whether each warp has TMA take its own rows, which is possible where D lies row by row, and how many rows TMA
  /// takes at a time: column by column those that lie side by side in shared memory.
  static constexpr bool kOfGroup = IsOfGroup<Policy>::value, kByWarps = !kOfGroup && !kByColumns;
  /// Whether the problems of a group differ in their addresses alone, so that the host makes the tensor maps.
  static constexpr bool kOfArray = kOfGroup && !cute::is_pointer<typename Collective::StrideD>::value;
  static constexpr int kWarpRows = 16;
  static constexpr int kRowsAtOnce = kByWarps     ? kWarpRows
                                     : kByColumns ? int(cute::size<0>(typename Collective::SmemLayoutAtomD{}))
                                                  : kRows;
  static_assert(kOfArray || !(kOfGroup && kByColumns));
  /// Whether each of two warp groups that take turns has half of the buffers: one that has stored a tile does not wait
  /// for TMA then, which keeps the other waiting, but when it stores the next.
  static constexpr bool kHalves = kByWarps && kShared && OnlyStores<FusionCallbacks>::value && kBuffersD % 2 == 0;

#if !PYCUTLASS_DEVICE_SIDE
  /// As the collective has them, but for the tensor map of D, whose box is what is sent at a time.
  template <typename Size>
  static Params to_underlying_arguments(Size const& size, typename Collective::Arguments const& arguments,
                                        void* workspace) {
    Params params = Collective::to_underlying_arguments(size, arguments, workspace);
    if constexpr (!kOfGroup || kOfArray) {
      auto const [m, n, k, batches] = sizes_of(size);
      auto const whole =
          cute::make_tensor(cute::make_gmem_ptr(first_of(arguments.ptr_D)),
                            cute::make_layout(cute::make_shape(m, n, kOfArray ? 1 : batches), arguments.dD));
      using Box = cute::Shape<cute::Int<kRowsAtOnce>, cute::Int<kColumns>>;
      auto const of_box = cute::make_tma_copy_C_sm90(
          cute::SM90_TMA_STORE{}, whole, cute::tile_to_shape(typename Collective::SmemLayoutAtomD{}, Box{}, BoxOrder{}),
          Box{});
      const_cast<cute::TmaDescriptor&>(*params.tma_store_d.get_tma_descriptor()) = *of_box.get_tma_descriptor();
    }
    return params;
  }

 private:
  /// Where D begins. Of an array, the table of addresses stands for a D of which only the device knows the address.
  static ElementD* first_of(ElementD* target) { return target; }
  static ElementD* first_of(ElementD** table) {
    return reinterpret_cast<ElementD*>(reinterpret_cast<uintptr_t>(table) & ~uintptr_t(15));
  }

 public:
#endif

  CUTLASS_DEVICE EpilogueSm90(Params const& params, TensorStorage& shared)
      : Collective(params, shared), params_(params), fusion_(params.thread, shared.thread) {}
  CUTLASS_DEVICE FusionCallbacks& fusion() { return fusion_; }
  CUTLASS_DEVICE ~EpilogueSm90() {
    if constexpr (kHalves) cute::tma_store_wait<0>();  // shared memory is there until TMA has read it
  }

  /// Loads what a tile needs of C. Where two warp groups take turns, it is CUTLASS's `load` that does: with another
  /// one, a compiler arranges the whole kernel in another way.
  template <typename Size, typename Tile, typename Coord, typename Mma, typename... Given>
  CUTLASS_DEVICE auto load(LoadPipeline loads, LoadPipelineState state, Size const& size, Tile const& tile,
                           Coord const& coord, Mma const& mma, int thread, TensorStorage& shared, Given&&... given) {
    if constexpr (!kOfGroup && LoadsBoxes<Collective>::value && cute::size(Mma{}) > cutlass::NumThreadsPerWarpGroup) {
      return load_boxes<Collective>(fusion_, params_.tma_load_c.get_tma_descriptor(), loads, state, size, coord, mma,
                                    thread, shared.collective.smem_C.begin(), given...);
    } else {
      return Collective::load(loads, state, size, tile, coord, mma, thread, shared, given...);
    }
  }

  /// Stores the tile `coord` of a GEMM, or of a batch of them.
  template <typename Size, typename Tile, typename Coord, typename Accumulators, typename Mma>
  CUTLASS_DEVICE auto store(LoadPipeline loads, LoadPipelineState loaded, StorePipeline stores,
                            StorePipelineState stored, Size size, Tile tile, Coord coord, Accumulators accumulators,
                            Mma mma, int thread, TensorStorage& shared, int subtile = -1) {
    return store_tile(loads, loaded, stores, stored, size, coord, accumulators, mma, thread, shared,
                      params_.tma_store_d.get_tma_descriptor(), cute::get<3>(coord));
  }

  /// The same for one problem of a group, which has a tensor map of its own.
  template <typename Size, typename Tile, typename Coord, typename Accumulators, typename Mma>
  CUTLASS_DEVICE auto store(LoadPipeline loads, LoadPipelineState loaded, StorePipeline stores,
                            StorePipelineState stored, Size size, Tile tile, Coord coord, Accumulators accumulators,
                            Mma mma, int thread, TensorStorage& shared, cute::TmaDescriptor* const& map,
                            int subtile = -1) {
    return store_tile(loads, loaded, stores, stored, size, coord, accumulators, mma, thread, shared, map, 0);
  }

  /// The same since CUTLASS 4.6, which has the tensor maps of the fusion beside it: that of a plain epilogue or of an
  /// epilogue function has none.
  template <typename Size, typename Tile, typename Coord, typename Accumulators, typename Mma, typename OfFusion>
  CUTLASS_DEVICE auto store(LoadPipeline loads, LoadPipelineState loaded, StorePipeline stores,
                            StorePipelineState stored, Size size, Tile tile, Coord coord, Accumulators accumulators,
                            Mma mma, int thread, TensorStorage& shared,
                            cute::tuple<cute::TmaDescriptor*, OfFusion> const& maps, int subtile = -1) {
    return store_tile(loads, loaded, stores, stored, size, coord, accumulators, mma, thread, shared, cute::get<0>(maps),
                      0);
  }

  CUTLASS_DEVICE auto store_tail(LoadPipeline loads, LoadPipelineState loaded, StorePipeline stores,
                                 StorePipelineState stored) {
    issued_ = 0;
    if constexpr (kHalves) {
      return cute::make_tuple(loaded, stored);
    } else {
      return Collective::store_tail(loads, loaded, stores, stored);
    }
  }

 private:
  template <typename Size, typename Coord, typename Accumulators, typename Mma>
  CUTLASS_DEVICE auto store_tile(LoadPipeline& loads, LoadPipelineState loaded, StorePipeline& stores,
                                 StorePipelineState stored, Size const& size, Coord const& coord,
                                 Accumulators& accumulators, Mma const& mma, int thread, TensorStorage& shared,
                                 cute::TmaDescriptor const* map, int batch) {
    constexpr int tile_rows = cute::size<0>(CtaTileMNK{}), tile_columns = cute::size<1>(CtaTileMNK{});
    constexpr int fragments_of_mma = decltype(cute::size<0>(accumulators.layout()))::value / kFragment;
    using Sum = typename Accumulators::value_type;
    constexpr bool kShares = shares_columns<FusionCallbacks>();
    auto fragments = cute::recast<cutlass::Array<Sum, kFragment>>(accumulators);
    auto const loaded_to = cute::make_tensor(cute::make_smem_ptr(shared.collective.smem_C.begin()), LayoutC{});
    auto const stored_from = cute::make_tensor(cute::make_smem_ptr(shared.collective.smem_D.begin()), LayoutD{});
    Loader const loader(thread);
    Storer const storer(thread);

    auto source = cute::make_tensor<ElementC>(cute::Int<kFragment>{});
    auto callbacks = consumer_callbacks(size, coord, mma, source, thread);
    bool const has_load = fusion_.is_producer_load_needed(), has_source = fusion_.is_C_load_needed();
    LoadPipelineState waited = loaded;
    if constexpr (kShared) {  // C comes into the buffer that D leaves from: D's turn round the buffers, one phase ahead
      waited = stored;
      waited.phase_ ^= 1;
    }

    constexpr int kBuffers = kHalves && cute::size(Mma{}) == 128 ? kBuffersD / 2 : kBuffersD;
    int const first_buffer = kBuffers < kBuffersD ? cutlass::canonical_warp_group_idx() % 2 * kBuffers : 0;
    if constexpr (kHalves) cute::tma_store_wait<0>();

    callbacks.begin();
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < tile_columns / kColumns; ++j) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < tile_rows / kRows; ++i) {
        callbacks.begin_loop(i, j);
        if (has_load) {
          loads.consumer_wait(waited);
          if (has_source) {
            loader.load(loaded_to(cute::_, cute::_, waited.index()),
                        *reinterpret_cast<typename Loader::Fragment*>(source.data()));
          }
        }
        callbacks.previsit(i, j, waited.count(), has_load);
        if (has_load) {
          if constexpr (!kShared) {
            cutlass::arch::fence_view_async_shared();  // what was read may be written by TMA
            loads.consumer_release(loaded);
            ++loaded;
          }
          ++waited;
        }

        auto const& sums = fragments(j % fragments_of_mma, i, j / fragments_of_mma);
        if constexpr (WritesTarget<FusionCallbacks>::value) {
          callbacks.visit(sums, 0, i, j);
          share_columns<FusionCallbacks>(callbacks, i, j, mma);
        } else {
          auto result = converted<ElementD>(callbacks.visit(sums, 0, i, j));
          int const turn = kHalves ? first_buffer + (j * (tile_rows / kRows) + i) % kBuffers : stored.index();
          auto const buffer = stored_from(cute::_, cute::_, turn);
          int const row = int(cute::get<0>(coord)) * tile_rows + i * kRows;
          int const column = int(cute::get<1>(coord)) * tile_columns + j * kColumns;
          auto const between = [&] {
            if constexpr (kIsFunction) callbacks.synchronized(i, j);
          };
          if constexpr (kByWarps) {
            leave_by_warps<kBuffers, kShares>(result, storer, buffer, stores, stored, map, row, column, batch, mma,
                                              between);
          } else {
            leave_together(result, storer, buffer, stores, stored, map, row, column, batch, mma, between);
          }
          if constexpr (kByWarps && kShared) {
            if (has_load) {
              stores.producer_acquire(stored);
              __syncwarp();
            }
          }
          if constexpr (kShared) {
            if (issued_ > StorePipeline::UnacquiredStages) {  // an earlier store has left its buffer
              if (has_load) loads.consumer_release(loaded);
              ++loaded;
            }
          }
        }
      }
    }
    leave_tile<kIsFunction>(callbacks);
    callbacks.end();
    return cute::make_tuple(loaded, stored);
  }

  /// Writes a subtile to its buffer, from which each warp has TMA take its own rows to D, where the subtile begins at
  /// (row, column). `between` is called between two barriers of all threads where they share columns meanwhile.
  template <int kBuffers, bool kShares, typename Buffer, typename Mma, typename Between>
  CUTLASS_DEVICE void leave_by_warps(typename Storer::Fragment& result, Storer const& storer, Buffer const& buffer,
                                     StorePipeline& stores, StorePipelineState& stored, cute::TmaDescriptor const* map,
                                     int row, int column, int batch, Mma const& mma, Between const& between) {
    int const first_row = kWarpRows * storer.warp;
    cute::tma_store_wait<kBuffers - 1>();  // what this warp wrote there before has left
    __syncwarp();
    storer.store(result, buffer);
    cutlass::arch::fence_view_async_shared();  // what was written is seen by TMA
    __syncwarp();
    send(&buffer(first_row, 0), map, row + first_row, column, batch);
    stores.producer_commit(stored);
    if constexpr (kShares) {
      synchronize(mma);
      between();
      synchronize(mma);
    }
    ++stored;
    ++issued_;
  }

  /// The same by the first warp for all: in a group it makes the tensor map of a problem, and where columns are stored
  /// the rows of several warps lie side by side.
  template <typename Buffer, typename Mma, typename Between>
  CUTLASS_DEVICE void leave_together(typename Storer::Fragment& result, Storer const& storer, Buffer const& buffer,
                                     StorePipeline& stores, StorePipelineState& stored, cute::TmaDescriptor const* map,
                                     int row, int column, int batch, Mma const& mma, Between const& between) {
    storer.store(result, buffer);
    cutlass::arch::fence_view_async_shared();  // what was written is seen by TMA
    synchronize(mma);
    between();
    if (storer.warp == 0) {
      CUTLASS_PRAGMA_UNROLL
      for (int first = 0; first < kRows; first += kRowsAtOnce) {
        send(&buffer(first, 0), map, row + first, column, batch);
      }
      stores.producer_commit(stored);
    }
    ++stored;
    ++issued_;
    if (storer.warp == 0) stores.producer_acquire(stored);
    synchronize(mma);
  }

  /// Has TMA take rows of a subtile to D, where they begin at (row, column); to be called by a whole warp.
  CUTLASS_DEVICE void send(ElementD const* buffer, cute::TmaDescriptor const* map, int row, int column, int batch) {
    // Only coordinates are asked of this tensor: how many the map has, and in which order. Its shape does not matter.
    auto const whole = params_.tma_store_d.get_tma_tensor(cute::make_shape(1, 1, 1));
    if (!cute::elect_one_sync()) return;
    cute::apply(whole(row, column, batch),
                [&](auto... place) { cute::SM90_TMA_STORE::copy(map, buffer, int(place)...); });
  }

  /// Callbacks of the fusion. Those of CUTLASS are not told which elements a thread has, since only fusions with
  /// vectors or other matrices than C ask for that; epilogue functions derive it from their own few integers.
  template <typename Size, typename Coord, typename Mma, typename Source>
  CUTLASS_DEVICE auto consumer_callbacks(Size const& size, Coord const& coord, Mma const& mma, Source& source,
                                         int thread) {
    if constexpr (kIsFunction) {
      return fusion_.template tile_callbacks<kRows, kColumns>(size, coord, source, thread);
    } else {
      return linear_callbacks<CtaTileMNK, EpilogueTile>(fusion_, size, coord, mma, source, thread);
    }
  }

  // CUTLASS keeps the same three to itself.
  Params const& params_;
  FusionCallbacks fusion_;
  int issued_ = 0;
};

}  // namespace pycutlass
