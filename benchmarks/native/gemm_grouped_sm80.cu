// What one writes without PyCUTLASS: a grouped GEMM of CUTLASS's 2.x API, device and host in one translation unit.
// The template's arguments are macros, which benchmarks/builds.py takes from the operation that this is compared with.
#include <cstdint>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/device/gemm_grouped.h>
#include <cutlass/gemm/kernel/default_gemm_grouped.h>

using Kernel = typename cutlass::gemm::kernel::DefaultGemmGrouped<
    ELEMENT_A, LAYOUT_A, cutlass::ComplexTransform::kNone, ALIGNMENT_A, ELEMENT_B, LAYOUT_B,
    cutlass::ComplexTransform::kNone, ALIGNMENT_B, ELEMENT_C, LAYOUT_C, ACCUMULATOR, OP_CLASS, cutlass::arch::Sm80,
    TILE, WARP, INSTRUCTION, EPILOGUE, SWIZZLE, STAGES, cutlass::gemm::kernel::GroupScheduleMode::kDeviceOnly,
    MATH>::GemmKernel;
using Gemm = cutlass::gemm::device::GemmGrouped<Kernel>;

// D[i] = A[i] x B[i]. `sizes` are M, N and K of each problem, on the host and on the device; `pointers` and `lds` are
// tables on the device, `count` entries for each of A, B, C and D. Null where CUTLASS refuses the problem.
extern "C" void* gemm_create(int count, void* sizes, void* device_sizes, void** pointers, int64_t* lds) {
  using Scalar = typename EPILOGUE::ElementCompute;
  auto* problems = static_cast<cutlass::gemm::GemmCoord*>(sizes);
  int const blocks = Gemm::sufficient(problems, count);
  auto table = [&](int operand) { return pointers + operand * count; };
  typename Gemm::Arguments arguments(static_cast<cutlass::gemm::GemmCoord*>(device_sizes), count, blocks,
                                     {Scalar(1), Scalar(0)}, reinterpret_cast<ELEMENT_A**>(table(0)),
                                     reinterpret_cast<ELEMENT_B**>(table(1)), reinterpret_cast<ELEMENT_C**>(table(2)),
                                     reinterpret_cast<ELEMENT_C**>(table(3)), lds, lds + count, lds + 2 * count,
                                     lds + 3 * count, problems);
  Gemm* gemm = new Gemm();
  if (blocks > 0 && Gemm::can_implement(arguments) == cutlass::Status::kSuccess &&
      gemm->initialize(arguments) == cutlass::Status::kSuccess) {
    return gemm;
  }
  delete gemm;
  return nullptr;
}

extern "C" int gemm_launch(void* gemm, void* stream) {
  return static_cast<int>(static_cast<Gemm*>(gemm)->run(static_cast<cudaStream_t>(stream)));
}

extern "C" void gemm_destroy(void* gemm) { delete static_cast<Gemm*>(gemm); }
