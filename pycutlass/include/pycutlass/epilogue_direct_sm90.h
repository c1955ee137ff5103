// The epilogue of Hopper-native kernels without TMA: the threads that have the sums read C and write D themselves, in
// pairs of columns or one by one, so that C and D may lie anywhere.
#pragma once

#include "pycutlass/epilogue_sm90.h"
#include "pycutlass/prelude.h"

#include <cute/tensor.hpp>
#include <cutlass/arch/grid_dependency_control.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/collective/detail.hpp>

namespace pycutlass {

/// A matrix like C or D, of which a thread has elements as wgmma leaves them in a subtile (subtile_sm90.h).
template <typename Tensor, typename Stride>
struct DirectMatrix {
  using Element = typename Tensor::Element;
  static constexpr bool kByRows = cutlass::gemm::detail::is_major<1>(Stride{});
  /// Columns that lie side by side, and are both inside or both outside.
  static constexpr int kVector = kByRows && Tensor::kAlignment % 2 == 0 ? 2 : 1;
  using Vector = cutlass::AlignedArray<Element, kVector>;

  Element* data;
  int64_t row_stride, column_stride;
  int rows, columns;

  /// One matrix of a batch.
  template <typename Size>
  CUTLASS_DEVICE DirectMatrix(Element* first, Stride const& stride, Size const& size, int batch)
      : data(first + batch * int64_t(cute::get<2>(stride))),
        row_stride(cute::get<0>(stride)),
        column_stride(cute::get<1>(stride)),
        rows(cute::get<0>(size)),
        columns(cute::get<1>(size)) {}

  /// Calls `move` with the address and the number in a fragment of what this thread has at (row, column) and beyond: in
  /// this row and the eighth behind it, two columns of each eight.
  template <int kFragment, typename Move>
  CUTLASS_DEVICE void each(int row, int column, Move move) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kFragment; i += kVector) {
      int const r = row + i / 2 % 2 * 8, c = column + i / 4 * 8 + i % 2;
      if (r < rows && c < columns) move(data + r * row_stride + c * column_stride, i);
    }
  }
  template <typename Fragment>
  CUTLASS_DEVICE void load(int row, int column, Fragment& fragment) const {
    constexpr int kFragment = Fragment::kElements;
    each<kFragment>(row, column, [&](Element const* from, int i) {
      Vector const vector = *reinterpret_cast<Vector const*>(from);
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kVector; ++v) fragment[i + v] = vector[v];
    });
  }
  template <typename Fragment>
  CUTLASS_DEVICE void store(int row, int column, Fragment const& fragment) const {
    constexpr int kFragment = Fragment::kElements;
    each<kFragment>(row, column, [&](Element* to, int i) {
      Vector vector;
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kVector; ++v) vector[v] = fragment[i + v];
      *reinterpret_cast<Vector*>(to) = vector;
    });
  }
};

/// What kernels know of an epilogue: its types and arguments.
template <typename Fusion, typename TileShape, typename EpilogueTile, typename ElementAccumulator_, typename C,
          typename D>
struct DirectEpilogueTypes {
  static constexpr int kRows = cute::size<0>(EpilogueTile{}), kColumns = cute::size<1>(EpilogueTile{});
  /// Elements of a thread in a subtile, of all threads that share it.
  static constexpr int kFragment = kColumns / 2;
  /// Names the callbacks alone: nothing goes by TMA.
  using DispatchPolicy = cutlass::epilogue::Sm90TmaWarpSpecialized<1, 1, kFragment, false, false>;
  using FusionCallbacks =
      typename cutlass::epilogue::collective::detail::CallbacksBuilder<DispatchPolicy, Fusion, TileShape, EpilogueTile,
                                                                       ElementAccumulator_>::Callbacks;
  using ElementAccumulator = ElementAccumulator_;
  using ElementC = typename C::Element;
  using ElementD = typename D::Element;
  using StrideC = cutlass::gemm::TagToStrideC_t<typename C::Layout>;
  using StrideD = cutlass::gemm::TagToStrideC_t<typename D::Layout>;
  struct SharedStorage {
    typename FusionCallbacks::SharedStorage thread;
  };
  struct Arguments {
    typename FusionCallbacks::Arguments thread{};
    ElementC const* ptr_C = nullptr;
    StrideC dC{};
    ElementD* ptr_D = nullptr;
    StrideD dD{};
  };
  struct Params {
    typename FusionCallbacks::Params thread{};
    ElementC const* ptr_C = nullptr;
    StrideC dC{};
    ElementD* ptr_D = nullptr;
    StrideD dD{};
  };

  template <typename Size>
  static Params to_underlying_arguments(Size const& size, Arguments const& arguments, void* workspace) {
    return {FusionCallbacks::to_underlying_arguments(size, arguments.thread, workspace), arguments.ptr_C, arguments.dC,
            arguments.ptr_D, arguments.dD};
  }
  template <typename Size>
  static bool can_implement(Size const& size, Arguments const& arguments) {
    return FusionCallbacks::can_implement(size, arguments.thread);
  }
  template <typename Size>
  static size_t get_workspace_size(Size const& size, Arguments const& arguments) {
    return FusionCallbacks::get_workspace_size(size, arguments.thread);
  }
  template <typename Size, typename Stream>
  static cutlass::Status initialize_workspace(Size const& size, Arguments const& arguments, void* workspace,
                                              Stream stream, cutlass::CudaHostAdapter* adapter = nullptr) {
    return FusionCallbacks::initialize_workspace(size, arguments.thread, workspace, stream, adapter);
  }

  CUTLASS_HOST_DEVICE explicit DirectEpilogueTypes(Params const&) {}
};

/// The collective epilogue. CUTLASS's adapter has the pipelines that kernels ask for, without stages.
template <typename Fusion, typename TileShape, typename EpilogueTile, typename ElementAccumulator, typename C,
          typename D, bool kIsFunction>
struct DirectEpilogueSm90 : cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
                                DirectEpilogueTypes<Fusion, TileShape, EpilogueTile, ElementAccumulator, C, D>> {
  using Types = DirectEpilogueTypes<Fusion, TileShape, EpilogueTile, ElementAccumulator, C, D>;
  using Adapter = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<Types>;
  using typename Adapter::LoadPipeline;
  using typename Adapter::LoadPipelineState;
  using typename Adapter::StorePipeline;
  using typename Adapter::StorePipelineState;
  using typename Adapter::TensorStorage;
  using typename Types::FusionCallbacks;
  using typename Types::Params;
  using Types::kColumns;
  using Types::kFragment;
  using Types::kRows;
  using Source = DirectMatrix<C, typename Types::StrideC>;
  using Target = DirectMatrix<D, typename Types::StrideD>;

  CUTLASS_DEVICE DirectEpilogueSm90(Params const& params, TensorStorage& shared)
      : Adapter(params, shared), params_(params), fusion_(params.thread, shared.thread) {}
  CUTLASS_DEVICE FusionCallbacks& fusion() { return fusion_; }

  /// Stores the tile `coord` of a GEMM, or of a batch of them. D may be C: each thread reads the elements of C that it
  /// writes, before it does.
  template <typename Size, typename Tile, typename Coord, typename Accumulators, typename Mma>
  CUTLASS_DEVICE auto store(LoadPipeline, LoadPipelineState loaded, StorePipeline, StorePipelineState stored,
                            Size const& size, Tile const&, Coord const& coord, Accumulators const& accumulators,
                            Mma const& mma, int thread, TensorStorage&, int = -1) {
    constexpr int tile_rows = cute::size<0>(TileShape{}), tile_columns = cute::size<1>(TileShape{});
    constexpr int down = tile_rows / kRows, subtiles = down * (tile_columns / kColumns);
    constexpr int fragments_of_mma = decltype(cute::size<0>(accumulators.layout()))::value / kFragment;
    auto const fragments =
        cute::recast<cutlass::Array<typename Accumulators::value_type, kFragment> const>(accumulators);
    int const batch = cute::get<3>(coord), lane = thread % 32;
    int const first_row = int(cute::get<0>(coord)) * tile_rows + thread / 32 * 16 + lane / 4;
    int const first_column = int(cute::get<1>(coord)) * tile_columns + lane % 4 * 2;
    Source const from(const_cast<typename Types::ElementC*>(params_.ptr_C), params_.dC, size, batch);
    Target const to(params_.ptr_D, params_.dD, size, batch);

    // C of the subtile that is stored, and of the next one: the memory takes its time.
    using SourceFragment = cutlass::Array<typename Types::ElementC, kFragment>;
    SourceFragment ahead;
    auto source = cute::make_tensor<typename Types::ElementC>(cute::Int<kFragment>{});
    auto callbacks = consumer_callbacks(size, coord, mma, source, thread);
    bool const has_source = fusion_.is_C_load_needed();
    auto const load = [&](int subtile) {
      ahead.clear();
      if (has_source && subtile < subtiles) {
        from.load(first_row + subtile % down * kRows, first_column + subtile / down * kColumns, ahead);
      }
    };

    if constexpr (!kIsFunction) {
      if (is_first_) cutlass::arch::wait_on_dependent_grids();  // those of a function wait themselves
      is_first_ = false;
    }
    callbacks.begin();
    load(0);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < tile_columns / kColumns; ++j) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < down; ++i) {
        *reinterpret_cast<SourceFragment*>(source.data()) = ahead;
        load(j * down + i + 1);
        callbacks.begin_loop(i, j);
        callbacks.previsit(i, j, 0, has_source);
        auto const& sums = fragments(j % fragments_of_mma, i, j / fragments_of_mma);
        if constexpr (WritesTarget<FusionCallbacks>::value) {
          callbacks.visit(sums, 0, i, j);
        } else {
          auto const computed = callbacks.visit(sums, 0, i, j);
          to.store(first_row + i * kRows, first_column + j * kColumns, converted<typename Types::ElementD>(computed));
        }
        share_columns<FusionCallbacks>(callbacks, i, j, mma);
      }
    }
    leave_tile<kIsFunction>(callbacks);
    callbacks.end();
    return cute::make_tuple(loaded, stored);
  }

 private:
  template <typename Size, typename Coord, typename Mma, typename Fragment>
  CUTLASS_DEVICE auto consumer_callbacks(Size const& size, Coord const& coord, Mma const& mma, Fragment& source,
                                         int thread) {
    if constexpr (kIsFunction) {
      return fusion_.template tile_callbacks<kRows, kColumns>(size, coord, source, thread);
    } else {
      return linear_callbacks<TileShape, EpilogueTile>(fusion_, size, coord, mma, source, thread);
    }
  }

  Params const& params_;
  FusionCallbacks fusion_;
  bool is_first_ = true;
};

}  // namespace pycutlass
