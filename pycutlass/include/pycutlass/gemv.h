// GEMV: a GEMM with few rows, D = epilogue(A x B, C), on CUDA cores, behind the call record. Its time is that of
// reading B, of which each element is read once for all rows of a tile: by 16 bytes, several of them on their way to
// each thread at a time. A is small, and stays in the caches.
//
// The elements of B that a thread loads at once lie along K, where B is column-major, or along N. Each thread adds up
// its part of K for some elements of D; threads of a warp add up theirs by shuffles, warps through shared memory,
// always in the same order. Then each thread takes elements of D, one at a time, through the epilogue.
#pragma once

#include "pycutlass/epilogue.h"
#include "pycutlass/function.h"
#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cutlass/array.h>
#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/epilogue/thread/linear_combination_clamp.h>
#include <cutlass/epilogue/thread/linear_combination_generic.h>
#include <cutlass/gemm/gemm.h>
#include <cutlass/layout/matrix.h>
#include <cutlass/numeric_conversion.h>

#include "pycutlass/gemv_product.h"
#include "pycutlass/tensor.h"

namespace pycutlass {

/// Where an element of D is.
struct GemvPlace {
  int first_row, first_column, rows, columns;
  int64_t batch;

  CUTLASS_HOST_DEVICE int row(int) const { return first_row; }
  CUTLASS_HOST_DEVICE int column(int) const { return first_column; }
};

/// The epilogue is a functor of CUTLASS's, of one element.
template <typename OutputOp>
struct GemvFunctor {
  static_assert(OutputOp::kCount == 1, "each thread writes single elements");
  using Params = typename OutputOp::Params;
#if !PYCUTLASS_DEVICE_SIDE
  using Epilogue = ThreadEpilogue<OutputOp>;
  static Params params(pycutlass_call const& call) { return Epilogue::params(call); }
#endif

  OutputOp op;

  CUTLASS_HOST_DEVICE explicit GemvFunctor(Params const& params) : op(params) {}

  /// Makes an element of D of a sum, and of an element of C where that is read.
  template <typename Sum, typename Element>
  CUTLASS_HOST_DEVICE void operator()(GemvPlace const&, Sum sum, Element const* source, Element* target) const {
    cutlass::Array<Sum, 1> sums;
    sums[0] = sum;
    cutlass::Array<Element, 1> made;
    if (op.is_source_needed()) {
      cutlass::Array<Element, 1> sources;
      sources[0] = *source;
      made = op(sums, sources);
    } else {
      made = op(sums);
    }
    *target = made[0];
  }
};

/// The epilogue is a function, which lowering.py writes (function.h).
template <typename Function>
struct GemvFunction {
  static_assert(Function::Reductions::kSize == 0 && !Function::kIsGated, "each thread has single elements");
  using Number = typename Function::Number;
  using Params = typename Function::Arguments;
#if !PYCUTLASS_DEVICE_SIDE
  struct Epilogue {
    using Arguments = Params;
    static void describe(EpilogueFields<Arguments>& fields) { Arguments::describe(fields); }
  };
  static Params params(pycutlass_call const& call) { return *static_cast<Params const*>(call.epilogue); }
#endif

  Params const& given;
  Number scalars[Function::kScalars + 1];

  CUTLASS_HOST_DEVICE explicit GemvFunction(Params const& params) : given(params) {
    Function::read_scalars(params, scalars);
  }

  template <typename Sum, typename Element>
  CUTLASS_HOST_DEVICE void operator()(GemvPlace const& place, Sum sum, Element const* source, Element* target) const {
    Readers<typename Function::Inputs, Params, 1, 1, 1> readers;
    readers.load_columns(given, place);
    readers.load_rows(given, place);
    readers.load_elements(given, place);
    Number out[1 + Function::Outputs::kSize][1];
    auto const of_source = [&](int) { return function::widened<Number>(Element(*source)); };
    compute_group<Function, 1>(scalars, &sum, of_source, readers, 0, 0, out);
    *target = function::Stored<Element>::of(out[0][0]);
    Writers<typename Function::Outputs>::store(given, place, 0, 0, out + 1);
  }
};

/// `Tile` has M, N and K of what a threadblock adds up in a step, `Warps` how many divide each of them. `EpilogueOp` is
/// one of the above. `kIsDependent` says that the kernel may start before the one ahead of it has ended.
template <typename A, typename B, typename C, typename Sum, typename Tile, typename Warps, typename EpilogueOp,
          bool kIsDependent>
struct Gemv {
  static constexpr bool kTransposed = false;
  static constexpr int kTileM = Tile::kM, kTileN = Tile::kN, kWarps = Warps::kCount;
  using RowMajor = cutlass::layout::RowMajor;
  static_assert(cutlass::platform::is_same<typename A::Layout, RowMajor>::value, "the elements of A lie along K");
  using Threads =
      cutlass::platform::conditional_t<cutlass::platform::is_same<typename B::Layout, RowMajor>::value,
                                       GemvAlongN<A, B, Sum, Tile, Warps>, GemvAlongK<A, B, Sum, Tile, Warps>>;
  using ElementA = typename A::Element;
  using ElementB = typename B::Element;
  using ElementC = typename C::Element;

  /// A matrix, or a batch of them: their lines are as far apart as `ld` says, and they themselves as `batch` does.
  template <typename Element>
  struct Matrices {
    Element* data;
    int64_t ld, batch;
  };

  struct Params {
    Matrices<ElementA const> a;
    Matrices<ElementB const> b;
    Matrices<ElementC const> c;
    Matrices<ElementC> d;
    int m, n, k, batches;
    typename EpilogueOp::Params epilogue;
  };

  struct Kernel {
    using Params = typename Gemv::Params;
    struct SharedStorage {
      Sum sums[Warps::kK][kTileM][kTileN];
    };
    static int const kThreadCount = 32 * kWarps;

    CUTLASS_DEVICE static void invoke(Params const& params, SharedStorage& shared) {
      start_dependent();
      // There are no more threadblocks along y and z than a grid may have.
      for (int batch = blockIdx.z; batch < params.batches; batch += gridDim.z) {
        for (int64_t row = int64_t(blockIdx.y) * kTileM; row < params.m; row += int64_t(gridDim.y) * kTileM) {
          add_up(params, shared, batch, int(row));
          __syncthreads();
          finish(params, shared, batch, int(row));
          __syncthreads();
        }
      }
    }

   private:
    /// Lets the next kernel prepare itself, and waits for the one ahead of this, which may still write what is read.
    CUTLASS_DEVICE static void start_dependent() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      if constexpr (kIsDependent) {
        asm volatile("griddepcontrol.launch_dependents;");
        asm volatile("griddepcontrol.wait;" ::: "memory");
      }
#endif
    }

    /// Leaves the sums of each warp in shared memory.
    CUTLASS_DEVICE static void add_up(Params const& params, SharedStorage& shared, int64_t batch, int first_row) {
      int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      int const warp_n = warp % Warps::kN, warp_k = warp / Warps::kN;
      Threads threads(warp_n, warp_k, lane);
      int const first_column = int(blockIdx.x) * kTileN;
      GemvOperand<ElementA> const a{params.a.data + batch * params.a.batch + first_row * params.a.ld, params.a.ld,
                                    params.m - first_row};
      GemvOperand<ElementB> const b{params.b.data + batch * params.b.batch, params.b.ld, params.n - first_column};
      threads.add_up(a, b, first_column, params.k);
      threads.share([&](int row, int column, Sum sum) { shared.sums[warp_k][row][column] = sum; });
    }

    /// Adds up what the warps have, and writes elements of D.
    CUTLASS_DEVICE static void finish(Params const& params, SharedStorage const& shared, int64_t batch, int first_row) {
      EpilogueOp const epilogue(params.epilogue);
      int const first_column = int(blockIdx.x) * kTileN;
      CUTLASS_PRAGMA_NO_UNROLL
      for (int i = threadIdx.x; i < kTileM * kTileN; i += kThreadCount) {
        int const r = i / kTileN, n = i % kTileN;
        GemvPlace const place{first_row + r, first_column + n, params.m, params.n, batch};
        if (r >= params.m - first_row || n >= params.n - first_column) continue;
        Sum sum = shared.sums[0][r][n];
        CUTLASS_PRAGMA_UNROLL
        for (int warp = 1; warp < Warps::kK; ++warp) sum += shared.sums[warp][r][n];
        epilogue(place, sum, element(params.c, place), element(params.d, place));
      }
    }

    template <typename Element>
    CUTLASS_DEVICE static Element* element(Matrices<Element> const& matrices, GemvPlace const& place) {
      constexpr bool kByRows = cutlass::platform::is_same<typename C::Layout, RowMajor>::value;
      int64_t const line = kByRows ? place.first_row : place.first_column;
      return matrices.data + place.batch * matrices.batch + line * matrices.ld +
             (kByRows ? place.first_column : place.first_row);
    }
  };

  using Call = pycutlass_gemm_call;
  static unsigned const kThreads = Kernel::kThreadCount;
  static unsigned const kMinBlocks = 1;
  static unsigned const kSharedBytes = sizeof(typename Kernel::SharedStorage);
  static unsigned const kClusterM = 1;
  static unsigned const kClusterN = 1;

#if PYCUTLASS_DEVICE_SIDE

  CUTLASS_DEVICE static void run(Params const& params, char* shared) {
    Kernel::invoke(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
  }

#else

  using Operands = Elements<ElementA, ElementB, ElementC, ElementC>;
  using Epilogue = typename EpilogueOp::Epilogue;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    pycutlass_call const& common = call.common;
    bool const is_batch = call.mode == static_cast<int>(cutlass::gemm::GemmUniversalMode::kBatched);
    int const batches = is_batch ? call.batch_count : 1;
    new (storage) Params{matrices<ElementA const>(operand(common, PYCUTLASS_A)),
                         matrices<ElementB const>(operand(common, PYCUTLASS_B)),
                         matrices<ElementC const>(source_or_target(common)),
                         matrices<ElementC>(operand(common, PYCUTLASS_D)),
                         call.m,
                         call.n,
                         call.k,
                         batches,
                         EpilogueOp::params(common)};
    auto const most = [](int64_t count) { return static_cast<uint32_t>(count < 65535 ? count : 65535); };
    result = {{static_cast<uint32_t>((int64_t(call.n) + kTileN - 1) / kTileN),
               most((int64_t(call.m) + kTileM - 1) / kTileM), most(batches)},
              0,
              0,
              0,
              0,
              kIsDependent};
    return cutlass::Status::kSuccess;
  }

 private:
  template <typename Element>
  static Matrices<Element> matrices(pycutlass_operand const& operand) {
    return {static_cast<Element*>(operand.data), operand.stride[0], operand.stride[1]};
  }

#endif
};

/// A GEMV with few columns in place of rows: `Problem` is the transposed one, with the operands B and A of the caller,
/// who speaks of A, B, M and N as they were written.
template <typename Problem>
struct TransposedGemv : Problem {
  static constexpr bool kTransposed = true;
  using Call = pycutlass_gemm_call;

#if !PYCUTLASS_DEVICE_SIDE
  using Operands = Elements<typename Problem::ElementB, typename Problem::ElementA, typename Problem::ElementC,
                            typename Problem::ElementC>;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    Call transposed = call;
    transposed.m = call.n;
    transposed.n = call.m;
    transposed.common.operands[PYCUTLASS_A] = call.common.operands[PYCUTLASS_B];
    transposed.common.operands[PYCUTLASS_B] = call.common.operands[PYCUTLASS_A];
    return Problem::plan(transposed, storage, result);
  }
#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
