// What one writes without PyCUTLASS: a GEMM of CUTLASS's 2.x API, device and host in one translation unit.
// The template's arguments are macros, which benchmarks/builds.py takes from the operation that this is compared with.
#include <cstdint>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/epilogue/thread/linear_combination_clamp.h>
#include <cutlass/epilogue/thread/linear_combination_generic.h>
#include <cutlass/gemm/device/gemm_universal.h>

using Gemm = cutlass::gemm::device::GemmUniversal<ELEMENT_A, LAYOUT_A, ELEMENT_B, LAYOUT_B, ELEMENT_C, LAYOUT_C,
                                                  ACCUMULATOR, OP_CLASS, cutlass::arch::Sm80, TILE, WARP, INSTRUCTION,
                                                  EPILOGUE, SWIZZLE, STAGES, ALIGNMENT_A, ALIGNMENT_B, MATH>;

/// As NativeProblem in benchmarks/builds.py; the arrays are those of A, B, C and D.
struct Problem {
  int mode, m, n, k, count;
  double alpha, beta;
  void* pointers[4];
  int64_t batch_strides[4], lds[4];
};

struct Launch {
  Gemm gemm;
  void* workspace = nullptr;
  ~Launch() { cudaFree(workspace); }
};

// Null where CUTLASS refuses the problem, or there is no memory for it.
extern "C" void* gemm_create(Problem const* problem) {
  using Scalar = typename EPILOGUE::ElementCompute;
  void* const* pointers = problem->pointers;
  int64_t const *strides = problem->batch_strides, *lds = problem->lds;
  typename Gemm::Arguments arguments(
      static_cast<cutlass::gemm::GemmUniversalMode>(problem->mode), {problem->m, problem->n, problem->k},
      problem->count, {Scalar(problem->alpha), Scalar(problem->beta)}, pointers[0], pointers[1], pointers[2],
      pointers[3], strides[0], strides[1], strides[2], strides[3], lds[0], lds[1], lds[2], lds[3]);
  Launch* launch = new Launch();
  size_t const bytes = Gemm::get_workspace_size(arguments);
  if (Gemm::can_implement(arguments) == cutlass::Status::kSuccess &&
      (bytes == 0 || cudaMalloc(&launch->workspace, bytes) == cudaSuccess) &&
      launch->gemm.initialize(arguments, launch->workspace) == cutlass::Status::kSuccess) {
    return launch;
  }
  delete launch;
  return nullptr;
}

extern "C" int gemm_launch(void* launch, void* stream) {
  return static_cast<int>(static_cast<Launch*>(launch)->gemm.run(static_cast<cudaStream_t>(stream)));
}

extern "C" void gemm_destroy(void* launch) { delete static_cast<Launch*>(launch); }
