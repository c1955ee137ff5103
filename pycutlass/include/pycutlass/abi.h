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

#define PYCUTLASS_ABI_VERSION 4
#define PYCUTLASS_MAX_PARAMS 32764      // bytes, what CUDA takes since compute capability 7.0
#define PYCUTLASS_PARAMS_ALIGNMENT 128  // of the memory that a plan writes parameters to
#define PYCUTLASS_SCRATCH_ALIGNMENT 128
#define PYCUTLASS_MAX_STRIDES 4

#ifdef __cplusplus
extern "C" {
#endif

/// Element types, one for each row of pycutlass/types.py, and what else is in the arguments of an epilogue.
typedef enum {
  PYCUTLASS_NO_ELEMENT,
  PYCUTLASS_F64,
  PYCUTLASS_F32,
  PYCUTLASS_TF32,
  PYCUTLASS_F16,
  PYCUTLASS_BF16,
  PYCUTLASS_S32,
  PYCUTLASS_S8,
  PYCUTLASS_S64,
  PYCUTLASS_E4M3,
  PYCUTLASS_E5M2,
  PYCUTLASS_U8,
} pycutlass_element;

/// What an operand is to a kernel: its place in the table of operands. What an epilogue reads or writes beside C and D
/// is in its own arguments.
typedef enum {
  PYCUTLASS_A,
  PYCUTLASS_B,
  PYCUTLASS_C,
  PYCUTLASS_D,
  PYCUTLASS_SCALE_A,
  PYCUTLASS_SCALE_B,
  PYCUTLASS_ROLES,
} pycutlass_role;

typedef enum {
  PYCUTLASS_TENSOR,     // strides say where its elements are
  PYCUTLASS_VECTOR,     // one line, which stands for all
  PYCUTLASS_SCALAR,     // one element, which stands for all
  PYCUTLASS_ADDRESSES,  // a table of addresses of tensors, which share their strides
} pycutlass_form;

/// One operand; `data` is null where there is none. Strides count elements: the leading dimension of a matrix in its
/// own layout (the step between pixels of an NHWC tensor), then the step between the matrices of a batch.
typedef struct {
  void* data;
  int64_t stride[PYCUTLASS_MAX_STRIDES];
  uint8_t element;  // pycutlass_element
  uint8_t form;     // pycutlass_form
  uint16_t reserved[3];
} pycutlass_operand;

/// What every call record begins with. Sizes and operands are those of the described operation, in the words of the
/// user, before any exchange of A and B that a kernel makes for itself.
typedef struct {
  uint32_t struct_size;                         // of the whole record
  int32_t device;                               // ordinal
  int32_t sm_count;                             // multiprocessors of that device
  int32_t sm_occupancy;                         // resident threadblocks per multiprocessor
  pycutlass_operand operands[PYCUTLASS_ROLES];  // by pycutlass_role
  void const* epilogue;  // arguments of the epilogue, laid out as pycutlass_describe_epilogue says
  void* workspace;
} pycutlass_call;

/// One launch of a GEMM kernel.
typedef struct {
  pycutlass_call common;
  int32_t mode;  // cutlass::gemm::GemmUniversalMode
  int32_t m, n, k;
  int32_t batch_count;   // batches, or slices of split-K
  int32_t max_swizzle;   // Hopper: swizzle size of the tile scheduler, 1 is none
  int32_t raster_order;  // Hopper: 0 along M, 1 along N, 2 chosen by CUTLASS
} pycutlass_gemm_call;

/// One reduction of split-K partials: A is the workspace, C the source, D the destination.
typedef struct {
  pycutlass_call common;
  int32_t rows, columns;
  int32_t partitions;
} pycutlass_reduction_call;

/// One launch of a convolution kernel: the fields of cutlass::conv::Conv2dProblemSize. The first stride of an operand
/// is 0 for a vector of channels that stands for all pixels.
typedef struct {
  pycutlass_call common;
  int32_t n, h, w, c, k, r, s, p, q;
  int32_t pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w;
  int32_t mode;  // cutlass::conv::Mode
  int32_t split_k_slices;
  int32_t groups;
  int32_t split_k_mode;  // cutlass::conv::SplitKMode
} pycutlass_conv2d_call;

/// The problems of a group, in device memory: one entry each, in the words of the user.
typedef struct {
  int32_t const* sizes;      // M, N, K
  void* const* pointers[4];  // of A, B, C, D
  int64_t const* lds[4];     // of A, B, C, D
} pycutlass_group_tables;

/// One launch of a grouped GEMM kernel. The operands of `common` are unused: each problem has its own, in the tables.
typedef struct {
  pycutlass_call common;  // `workspace` is where the schedule will be in device memory
  int32_t problem_count;
  int32_t most_tiles;    // more output tiles there are not, where `sizes` is null; 0 sets no limit
  int32_t const* sizes;  // the sizes of the tables in host memory; null where only the device knows them
  void* schedule;        // host memory for the schedule, `workspace_bytes` of the plan; null to learn how many
  void* scratch;         // device memory, `scratch_bytes` of the plan; null to learn how many
  pycutlass_group_tables tables;
} pycutlass_grouped_call;

/// What a launch needs and only the kernel's own types can tell.
typedef struct {
  uint32_t grid[3];
  uint64_t workspace_bytes;  // zeroed once, when it is made
  uint64_t clear_offset;     // of these, the part that must be zeroed before every launch
  uint64_t clear_bytes;
  uint64_t scratch_bytes;  // memory that the kernel alone writes to, aligned to PYCUTLASS_SCRATCH_ALIGNMENT
  uint32_t supports_pdl;   // 1: until the kernel ahead of it has ended it touches no memory; it may start before that
} pycutlass_plan_result;

/// Constants of a kernel.
typedef struct {
  uint32_t abi_version;
  uint32_t params_bytes;
  uint32_t shared_bytes;
  uint32_t threads[2];  // along x and y
  uint32_t cluster[3];
  uint32_t call_bytes;                // sizeof of the call record that the kernel takes
  uint32_t epilogue_bytes;            // sizeof of the arguments of its epilogue
  uint8_t elements[PYCUTLASS_ROLES];  // what each operand is made of, as it was compiled; 0 for those that it lacks
} pycutlass_kernel_info;

typedef enum {
  PYCUTLASS_VALUE,    // a number
  PYCUTLASS_ADDRESS,  // of device memory: of a tensor, or of the number that a value would be
  PYCUTLASS_STRIDE,   // of a tensor, in elements
} pycutlass_field_kind;

/// One field in the arguments of an epilogue. A scalar that may be in device memory has a value and an address under
/// one name; where that is not null, the value is not read.
typedef struct {
  char name[24];
  uint16_t offset, bytes;
  uint8_t kind;     // pycutlass_field_kind
  uint8_t element;  // of the value, of what the address points to, or of the stride itself
  uint8_t index;    // which stride
  uint8_t written;  // 1: the kernel writes to what the address points to
} pycutlass_epilogue_field;

/// Functions of the driver that CUTLASS's host code calls; the extension hands them over once, after loading.
typedef struct {
  int (*get_device)(int* ordinal);
  int (*get_attribute)(int* value, int attribute, int ordinal);
  int (*get_entry_point)(char const* symbol, void** function, unsigned int cuda_version);
} pycutlass_driver;

// Exported by every host library:
//   int pycutlass_describe(pycutlass_kernel_info *info);
//   uint32_t pycutlass_describe_epilogue(pycutlass_epilogue_field *fields, uint32_t room);
//   int pycutlass_plan(void const *call, void *params, pycutlass_plan_result *result);
//   void pycutlass_bind(pycutlass_driver const *driver);
// `pycutlass_describe_epilogue` returns how many fields there are and writes as many as there is room for.
// `pycutlass_plan` writes `params_bytes` bytes and returns a cutlass::Status (0 is success).
typedef int (*pycutlass_describe_function)(pycutlass_kernel_info* info);
typedef uint32_t (*pycutlass_describe_epilogue_function)(pycutlass_epilogue_field* fields, uint32_t room);
typedef int (*pycutlass_plan_function)(void const* call, void* params, pycutlass_plan_result* result);
typedef void (*pycutlass_bind_function)(pycutlass_driver const* driver);

#ifdef __cplusplus
}
#endif
