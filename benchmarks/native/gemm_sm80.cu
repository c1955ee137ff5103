// What one writes without PyCUTLASS: an f16 GEMM of CUTLASS's 2.x API, device and host in one translation unit.
// The template parameters are those of benchmarks/kernels.py's `ampere`.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/device/gemm_universal.h>

using Half = cutlass::half_t;
using Epilogue = cutlass::epilogue::thread::LinearCombination<Half, 8, float, float>;
using Gemm = cutlass::gemm::device::GemmUniversal<
    Half, cutlass::layout::RowMajor, Half, cutlass::layout::ColumnMajor, Half, cutlass::layout::RowMajor, float,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<128, 256, 64>,
    cutlass::gemm::GemmShape<64, 64, 64>, cutlass::gemm::GemmShape<16, 8, 16>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>, 3, 8, 8, cutlass::arch::OpMultiplyAdd>;

// D = A x B: A of m x k row-major, B of k x n column-major, D of m x n row-major, all packed. The last two numbers are
// for the Hopper kernel. Null where CUTLASS refuses the problem.
extern "C" void* gemm_create(int m, int n, int k, void const* a, void const* b, void* d, int, int) {
  typename Gemm::Arguments arguments(cutlass::gemm::GemmUniversalMode::kGemm, {m, n, k}, 1, {1.0f, 0.0f}, a, b, nullptr,
                                     d, 0, 0, 0, 0, k, k, n, n);
  Gemm* gemm = new Gemm();
  if (Gemm::can_implement(arguments) == cutlass::Status::kSuccess &&
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
