// The call record: what Python and a compiled kernel's host side say to each other.
//
// Plain C, so that the extension, a generated host library and a test in any language agree on it. Whoever changes
// it raises PYCUTLASS_ABI_VERSION: loading refuses a host library that was built against another version.
#pragma once

#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>  // NVRTC has no C library
#else
#include <stdint.h>
#endif

#define PYCUTLASS_ABI_VERSION 1
#define PYCUTLASS_MAX_SCALARS 4
#define PYCUTLASS_MAX_PARAMS 4096

#ifdef __cplusplus
extern "C" {
#endif

/// One operand. `ld` and `batch_stride` count elements; the leading dimension is that of the operand's own layout.
typedef struct {
  void *data;
  int64_t ld;
  int64_t batch_stride;
} pycutlass_operand;

/// Scalars of an epilogue. Slot 0 is alpha, slot 1 is beta, the rest belong to the activation.
/// Where `pointer[i]` is set the scalar is read from device memory (as the epilogue's compute type), else `value[i]`.
/// A double holds every f16, bf16, f32, f64 and int32 value exactly.
typedef struct {
  double value[PYCUTLASS_MAX_SCALARS];
  void const *pointer[PYCUTLASS_MAX_SCALARS];
} pycutlass_scalars;

/// Everything that a GEMM kernel needs to know about one launch, in the words of the user: sizes and operands are
/// those of the described operation, before any exchange of A and B that a kernel makes for itself.
typedef struct {
  uint32_t struct_size;
  int32_t mode;  // cutlass::gemm::GemmUniversalMode
  int32_t m, n, k;
  int32_t batch_count;  // batches, or slices of split-K
  pycutlass_operand A, B, C, D;
  pycutlass_scalars scalars;
  void *workspace;
  int32_t device;         // ordinal
  int32_t sm_count;       // multiprocessors of that device
  int32_t sm_occupancy;   // resident threadblocks per multiprocessor
  int32_t max_swizzle;    // Hopper: log-free swizzle size of the tile scheduler, 1 is none
  int32_t raster_order;   // Hopper: 0 along M, 1 along N, 2 chosen by CUTLASS
} pycutlass_gemm_call;

/// What a launch needs and only the kernel's own types can tell.
typedef struct {
  uint32_t grid[3];
  uint64_t workspace_bytes;
} pycutlass_plan_result;

/// Constants of a kernel.
typedef struct {
  uint32_t abi_version;
  uint32_t params_bytes;
  uint32_t shared_bytes;
  uint32_t threads;
  uint32_t cluster[3];
  uint32_t call_bytes;  // sizeof of the call record that the kernel takes
} pycutlass_kernel_info;

/// Functions of the driver that CUTLASS's host code calls; the extension hands them over once, after loading.
typedef struct {
  int (*get_device)(int *ordinal);
  int (*get_attribute)(int *value, int attribute, int ordinal);
  int (*get_entry_point)(char const *symbol, void **function, unsigned int cuda_version);
} pycutlass_driver;

// Exported by every host library:
//   int pycutlass_describe(pycutlass_kernel_info *info);
//   int pycutlass_plan(void const *call, void *params, pycutlass_plan_result *result);
//   void pycutlass_bind(pycutlass_driver const *driver);
// `pycutlass_plan` writes `params_bytes` bytes and returns a cutlass::Status (0 is success).
typedef int (*pycutlass_describe_function)(pycutlass_kernel_info *info);
typedef int (*pycutlass_plan_function)(void const *call, void *params, pycutlass_plan_result *result);
typedef void (*pycutlass_bind_function)(pycutlass_driver const *driver);

#ifdef __cplusplus
}
#endif
