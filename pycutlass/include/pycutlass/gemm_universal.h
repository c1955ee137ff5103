// Ampere-style GEMM: cutlass::gemm::kernel::GemmUniversal of CUTLASS's 2.x API, behind the call record.
//
// CUTLASS's epilogue writes row-major tiles. A column-major C is computed as the transposed problem, with A and B
// exchanged (cutlass/gemm/kernel/gemm_transpose_operands.h, MapArguments): that happens here and nowhere else, so
// Python speaks of A, B, M and N as the user wrote them. Interleaved layouts have an epilogue of their own.
#pragma once

#include "pycutlass/epilogue.h"
#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/epilogue/thread/linear_combination_clamp.h>
#include <cutlass/epilogue/thread/linear_combination_generic.h>
#include <cutlass/gemm/gemm.h>
#include <cutlass/gemm/kernel/default_gemm_universal.h>
#include <cutlass/gemm/kernel/gemm_transpose_operands.h>
#include <cutlass/gemm/kernel/gemm_universal.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

#include "pycutlass/loads.h"
#include "pycutlass/mixed_input.h"
#include "pycutlass/swizzle.h"
#include "pycutlass/tensor.h"

namespace pycutlass {

/// Whether a swizzle schedules by stream-K, which has a kernel of its own.
template <typename Swizzle, typename = void>
struct IsStreamK : cutlass::platform::false_type {};
template <typename Swizzle>
struct IsStreamK<Swizzle, typename Swizzle::StreamkFeature> : cutlass::platform::true_type {};

/// Returns how many threadblocks a multiprocessor should hold. CUDA cores are busy where 512 threads take turns, which
/// have 128 registers each. With 64 sums of 32 bits a thread takes some more if it may, and half as many run.
/// The number of threads is told where this matters (is_bounded, operation/gemm.py).
template <typename OpClass, typename ElementAccumulator, typename ThreadblockShape>
constexpr unsigned least_blocks(unsigned threads) {
  constexpr unsigned kBusyThreads = 512, kMostSums = 64;
  constexpr bool kIsSimt = cutlass::platform::is_same<OpClass, cutlass::arch::OpClassSimt>::value;
  bool const is_held = kIsSimt && sizeof(ElementAccumulator) == 4 && threads < kBusyThreads &&
                       unsigned(ThreadblockShape::kM * ThreadblockShape::kN) <= kMostSums * threads;
  return is_held ? kBusyThreads / threads : 1;
}

template <typename A, typename B, typename C, typename ElementAccumulator, typename OpClass, typename ArchTag,
          typename ThreadblockShape, typename WarpShape, typename InstructionShape, typename EpilogueOutputOp,
          typename ThreadblockSwizzle, int Stages, typename MathOperator>
struct GemmUniversal {
  static bool const kIsVisited = false;
  static bool const kTransposed = cutlass::platform::is_same<typename C::Layout, cutlass::layout::ColumnMajor>::value;

  using Map = cutlass::gemm::kernel::detail::MapArguments<
      typename A::Element, typename A::Layout, cutlass::ComplexTransform::kNone, A::kAlignment, typename B::Element,
      typename B::Layout, cutlass::ComplexTransform::kNone, B::kAlignment, typename C::Layout, kTransposed>;

  using Kernel = typename cutlass::gemm::kernel::DefaultGemmUniversal<
      typename Map::ElementA, typename Map::LayoutA, Map::kTransformA, Map::kAlignmentA, typename Map::ElementB,
      typename Map::LayoutB, Map::kTransformB, Map::kAlignmentB, typename C::Element, typename Map::LayoutC,
      ElementAccumulator, OpClass, ArchTag, ThreadblockShape, WarpShape, InstructionShape, EpilogueOutputOp,
      ThreadblockSwizzle, Stages, MathOperator>::GemmKernel;

  static_assert(LoadsWholeTiles<typename Kernel::Mma, OpClass>::value,
                "the threads do not share the tile of an operand evenly: use another warp_count or threadblock_shape");

  using Swizzle = ThreadblockSwizzle;
  using Params = typename Kernel::Params;
  using Call = pycutlass_gemm_call;
  static unsigned const kThreads = Kernel::kThreadCount;
  static unsigned const kMinBlocks = least_blocks<OpClass, ElementAccumulator, ThreadblockShape>(Kernel::kThreadCount);
  static unsigned const kSharedBytes = sizeof(typename Kernel::SharedStorage);
  static unsigned const kClusterM = 1;
  static unsigned const kClusterN = 1;

#if PYCUTLASS_DEVICE_SIDE

  CUTLASS_DEVICE static void run(Params const& params, char* shared) {
    Kernel::invoke(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
  }

#else

  using Operands = Elements<typename A::Element, typename B::Element, typename C::Element, typename C::Element>;
  using Epilogue = ThreadEpilogue<EpilogueOutputOp>;

  static cutlass::Status plan(Call const& call, void* storage, pycutlass_plan_result& result) {
    pycutlass_call const& common = call.common;
    auto mode = static_cast<cutlass::gemm::GemmUniversalMode>(call.mode);
    if (!has_form(common, mode)) return cutlass::Status::kErrorInvalidProblem;
    pycutlass_operand const &a = operand(common, PYCUTLASS_A), &b = operand(common, PYCUTLASS_B);
    pycutlass_operand const &c = source_or_target(common), &d = operand(common, PYCUTLASS_D);
    typename Kernel::Arguments arguments(mode, {call.m, call.n, call.k}, call.batch_count, Epilogue::params(common),
                                         a.data, b.data, c.data, d.data, a.stride[1], b.stride[1], c.stride[1],
                                         d.stride[1], a.stride[0], b.stride[0], c.stride[0], d.stride[0]);
    if (kTransposed) arguments = arguments.transposed_problem();

    cutlass::Status status = Kernel::can_implement(arguments);
    if (status != cutlass::Status::kSuccess) return status;

    Params* params = new (storage) Params(arguments, common.sm_count, common.sm_occupancy);
    dim3 grid = params->get_grid_dims();
    result = {{grid.x, grid.y, grid.z}, workspace_bytes(call, *params), 0, 0, 0};
    assign_workspace(*params, common.workspace, result);
    return cutlass::Status::kSuccess;
  }

 private:
  /// Whether there are tables of addresses in array mode, and tensors in every other.
  static bool has_form(pycutlass_call const& call, cutlass::gemm::GemmUniversalMode mode) {
    bool const listed = mode == cutlass::gemm::GemmUniversalMode::kArray;
    for (pycutlass_operand const& each : call.operands) {
      if (each.data && (each.form == PYCUTLASS_ADDRESSES) != listed) return false;
    }
    return true;
  }

  static uint64_t workspace_bytes(Call const& call, Params const& params) {
    // Parallel split-K writes its partials through D, which Python points at a workspace of its own.
    bool partials_in_d = call.mode == static_cast<int>(cutlass::gemm::GemmUniversalMode::kGemmSplitKParallel);
    return partials_in_d ? 0 : params.get_workspace_size();
  }

  static void assign_workspace(Params& params, void* workspace, pycutlass_plan_result& result) {
    if constexpr (IsStreamK<ThreadblockSwizzle>::value) {
      // Asks for its barriers to be zeroed, which host.h notes: it has to happen before every launch.
      if (workspace) params.init_workspace(workspace);
      note_clear(workspace, result);
    } else {
      params.semaphore = static_cast<int*>(workspace);  // zero once: the last slice leaves zeros behind
    }
  }

#endif
};

}  // namespace pycutlass

#include "pycutlass/kernel.h"
