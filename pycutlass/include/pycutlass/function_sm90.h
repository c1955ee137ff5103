// Epilogue functions in Hopper-native kernels: callbacks for the `store` of epilogue_sm90.h. C, or one tensor that
// takes its place, comes by TMA; all other tensors are read and written by the threads that have the sums, two columns
// at a time.
#pragma once

#include "pycutlass/function.h"
#include "pycutlass/gemm_sm90.h"

#include <cute/tensor.hpp>
#include <cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp>

namespace pycutlass {

/// Subtiles ahead of the present one of which tensors are read, so that what the memory takes passes unnoticed.
inline constexpr int kSubtilesAhead = 2;

/// What CUTLASS's collective knows as fusion callbacks.
template <typename Function>
struct FunctionCallbacks : cutlass::epilogue::fusion::Sm90VisitorImpl<> {
  using Number = typename Function::Number;
  using Arguments = typename Function::Arguments;
  using Params = Arguments;
  struct SharedStorage {};

  template <typename Size>
  static constexpr Params to_underlying_arguments(Size const&, Arguments const& arguments, void*) {
    return arguments;
  }
  template <typename Size>
  static bool can_implement(Size const&, Arguments const&) {
    return true;
  }
  template <typename Size>
  static size_t get_workspace_size(Size const&, Arguments const&) {
    return 0;
  }
  template <typename Size, typename Stream, typename Adapter>
  static cutlass::Status initialize_workspace(Size const&, Arguments const&, void*, Stream, Adapter) {
    return cutlass::Status::kSuccess;
  }

  Params const* params;

  CUTLASS_HOST_DEVICE FunctionCallbacks(Params const& params_, SharedStorage const&) : params(&params_) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return Function::kReadsSource; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return Function::kReadsSource; }
  template <typename Given>
  CUTLASS_DEVICE auto get_producer_load_callbacks(Given const&) {
    return cutlass::epilogue::fusion::EmptyProducerLoadCallbacks{};
  }

  /// Where the elements of a thread are in a subtile: those of two rows, in pairs of each 8 columns (epilogue_sm90.h).
  struct Where {
    int64_t first_row, first_column;
    int rows, columns;
    int64_t batch;

    CUTLASS_DEVICE int64_t row(int r) const { return first_row + 8 * r; }
    CUTLASS_DEVICE int64_t column(int g) const { return first_column + 8 * g; }
  };

  /// Callbacks of one tile, whose subtiles have `kRows` x `kColumns` elements, `kDown` of them one below the other.
  template <int kRows, int kColumns, int kDown, int kSubtiles, typename Source>
  struct TileCallbacks {
    static constexpr int kGroups = kColumns / 8;
    using AllReaders = Readers<typename Function::Inputs, Arguments, 2, kGroups, 2>;

    Arguments const& given;
    Source const& source;
    Where tile;
    Number scalars[Function::kScalars + 1];
    AllReaders readers[kSubtilesAhead + 1];

    CUTLASS_DEVICE Where where(int subtile) const {
      Where place = tile;
      place.first_row += subtile % kDown * kRows;
      place.first_column += subtile / kDown * kColumns;
      return place;
    }
    CUTLASS_DEVICE void load(int subtile) {
      if (subtile >= kSubtiles) return;
      AllReaders& each = readers[subtile % (kSubtilesAhead + 1)];
      each.load_columns(given, where(subtile));
      each.load_rows(given, where(subtile));
    }
    CUTLASS_DEVICE void begin() {
      Function::read_scalars(given, scalars);
      CUTLASS_PRAGMA_UNROLL
      for (int subtile = 0; subtile < kSubtilesAhead; ++subtile) load(subtile);
    }
    CUTLASS_DEVICE void begin_loop(int i, int j) { load(j * kDown + i + kSubtilesAhead); }
    CUTLASS_DEVICE void previsit(int, int, int, bool) {}

    template <typename Accumulator, int kFragment>
    CUTLASS_DEVICE auto visit(cutlass::Array<Accumulator, kFragment> const& sums, int, int i, int j) {
      static_assert(kFragment == 4 * kGroups);
      int const subtile = j * kDown + i;
      auto const& each = readers[subtile % (kSubtilesAhead + 1)];
      cutlass::Array<Number, kFragment> result;
      CUTLASS_PRAGMA_UNROLL
      for (int pair = 0; pair < kFragment / 2; ++pair) {
        int const r = pair % 2, g = pair / 2;
        Number out[1 + Function::Outputs::kSize][2];
        Accumulator const of_pair[2] = {sums[2 * pair], sums[2 * pair + 1]};
        auto const of_source = [&](int v) { return source(2 * pair + v); };
        compute_group<Function, 2>(scalars, of_pair, of_source, each, r, g, out);
        result[2 * pair] = out[0][0];
        result[2 * pair + 1] = out[0][1];
        Writers<typename Function::Outputs>::store(given, where(subtile), r, g, out + 1);
      }
      return result;
    }
    CUTLASS_DEVICE void end() {}
  };

  template <int kRows, int kColumns, typename TileShape, typename Size, typename Coord, typename Source>
  CUTLASS_DEVICE auto tile_callbacks(Size const& size, Coord const& coord, Source const& source, int thread) {
    constexpr int tile_rows = cute::size<0>(TileShape{}), tile_columns = cute::size<1>(TileShape{});
    constexpr int kDown = tile_rows / kRows, kSubtiles = kDown * (tile_columns / kColumns);
    int const lane = thread % 32;
    Where const where{int(cute::get<0>(coord)) * tile_rows + thread / 32 * 16 + lane / 4,
                      int(cute::get<1>(coord)) * tile_columns + 2 * (lane % 4), int(cute::get<0>(size)),
                      int(cute::get<1>(size)), int(cute::get<3>(coord))};
    return TileCallbacks<kRows, kColumns, kDown, kSubtiles, Source>{*params, source, where, {}, {}};
  }
};

/// What GemmSm90 takes.
template <typename Function>
struct FunctionSm90 {
  using ElementCompute = float;

  template <typename TileShape, typename C, typename D, typename Schedule>
  struct Tree {
    using Type = FunctionCallbacks<Function>;
  };

#if !PYCUTLASS_DEVICE_SIDE
  template <typename TreeArguments>
  struct Launch {
    using Arguments = typename Function::Arguments;

    static void describe(EpilogueFields<Arguments>& fields) { Arguments::describe(fields); }
    static Arguments const& of(pycutlass_call const& call) { return *static_cast<Arguments const*>(call.epilogue); }
    static bool reads_ahead(pycutlass_call const& call) { return Function::reads_device_scalars(of(call)); }
    static void fill(TreeArguments& tree, pycutlass_call const& call) { tree = of(call); }

    /// The tensor that comes by TMA: C, or the one that takes its place.
    static pycutlass_operand source(pycutlass_call const& call, pycutlass_operand operand) {
      return Function::source(of(call), operand);
    }
  };
#endif
};

template <typename Function>
struct IsFunction<FunctionSm90<Function>> : cute::true_type {};

}  // namespace pycutlass
