// What a library is made of, beneath its interface: kernels as they are stored, plans as tables that Python writes
// (plans.c), and the steps of one launch. driver.c, kernel.c, record.c and library.c are the same in every library.
#pragma once

#include <stdint.h>

#include "driver.h"
#include "library.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A compiled kernel: its two sides in memory, or the files that have them.
typedef struct {
  char const* name;    // of the kernel in the cubin
  char const* target;  // such as sm_90a
  unsigned char const *cubin, *cubin_end, *host, *host_end;
  uint32_t cubin_digest,
      host_digest;  // CRC-32, 0 where it is not known: damage is found; no stranger's library is safe
} stored_kernel;

typedef enum { FAMILY_GEMM, FAMILY_CONV2D, FAMILY_GROUP } kernel_family;

/// The kernel for a range of M, and how it is launched.
typedef struct {
  int64_t least, most;       // of M, or of images
  int32_t kernel;            // index into the stored kernels
  int32_t reduction;         // of the kernel that adds up partial sums; -1 without
  int32_t mode;              // of a GEMM: GemmUniversalMode; of a convolution: SplitKMode
  int32_t slices;            // of split-K
  int32_t max_swizzle;       // as a GEMM's record has it
  int32_t raster_order;      // the same
  int32_t m_step;            // what M must be a multiple of
  int32_t sum_bytes;         // of a partial sum
  uint8_t is_pdl;            // 1: may start while the kernel ahead ends
  uint8_t const* alignment;  // of each tensor of the plan, in elements
  uint64_t byte_limit;       // what a tensor must span less than; 0 sets no limit
} plan_variant;

/// What a plan is beside what its users see.
typedef struct {
  kernel_family family;
  int32_t n, k, batch;      // of a GEMM; `batch` is 0 without one
  int32_t conv[18];         // of a convolution: n to dilation_w as in its record, mode and groups
  int8_t roles[4];          // which tensors are A, B, C and D; -1 for none
  uint32_t first_port;      // tensors from here on are the epilogue's
  uint8_t const* in_place;  // of each tensor: 1 where it may be D itself
  uint8_t by_rows;          // of D: whether rows are contiguous
  uint8_t is_dgrad;         // of a convolution: whether D is the gradient of the activation
  uint8_t is_wgrad;         // or that of the filters
  int8_t beta;              // the scalar that says whether C is read; -1 without
  uint32_t variant_count;
  plan_variant const* variants;
} plan_table;

// Written by Python.
extern stored_kernel const stored_kernels[];
extern uint32_t const stored_kernel_count;
extern pycutlass_plan_info const plan_infos[];
extern plan_table const plan_tables[];
extern uint32_t const plan_count;

/// JSON. Every library exports it by this name.
extern __attribute__((visibility("default"))) char const pycutlass_library_manifest[];

/// A kernel, loaded for one context.
typedef struct loaded_kernel {
  struct loaded_kernel* next;
  stored_kernel const* stored;
  drv_context context;
  drv_library library;
  drv_function function;
  int device, sm_count, occupancy;
  void* host;  // of dlopen
  pycutlass_kernel_info info;
  pycutlass_epilogue_field* fields;
  uint32_t field_count;
  pycutlass_plan_function plan;
} loaded_kernel;

/// Finds a kernel that was loaded for the current context, or loads it.
int find_kernel(uint32_t index, loaded_kernel const** found);
void unload_kernels(void);

/// The current context and its device; an error where there is none.
int current_device(drv_context* context, int* device);

/// A tensor of a launch, checked.
typedef struct {
  void* data;
  int64_t ld, batch_stride;
  uint64_t bytes;  // from the first to the last
  uint8_t form;    // pycutlass_form
} placed_tensor;

enum { MOST_TENSORS = 64, MOST_SCALARS = 64 };

/// A launch, checked: which kernel, which problem, and where its tensors are.
typedef struct {
  pycutlass_plan_info const* info;
  plan_table const* table;
  plan_variant const* variant;
  int64_t extents[3];  // M, N and K, as far as a launch chooses them
  placed_tensor tensors[MOST_TENSORS];
  pycutlass_scalar scalars[MOST_SCALARS];
} checked_launch;

/// Checks everything but addresses where `is_sized` alone.
int check_launch(int32_t plan, pycutlass_launch const* launch, int is_sized, checked_launch* checked);

int element_bits(int element);

/// Any call record: `common` is the beginning of all of them.
typedef union {
  pycutlass_call common;
  pycutlass_gemm_call gemm;
  pycutlass_conv2d_call conv2d;
  pycutlass_reduction_call reduction;
  pycutlass_grouped_call grouped;
} any_record;

/// Fills in the record of the plan's kernel, but for its epilogue and its workspace.
int fill_record(checked_launch const* checked, loaded_kernel const* kernel, any_record* record);
/// Fills in the record of the reduction of `sums`.
int fill_reduction(checked_launch const* checked, loaded_kernel const* kernel, void* sums, any_record* record);
/// Fills in the arguments of a kernel's epilogue, of `info.epilogue_bytes`.
int fill_epilogue(checked_launch const* checked, loaded_kernel const* kernel, void* arguments);
/// Rows and columns of the product, and bytes of its partial sums.
void product_size(checked_launch const* checked, int64_t* rows, int64_t* columns);

/// One kernel's parameters and grid.
typedef struct {
  unsigned char params[PYCUTLASS_MAX_PARAMS + 4] __attribute__((aligned(PYCUTLASS_PARAMS_ALIGNMENT)));
  pycutlass_plan_result result;
} planned_kernel;

int plan_kernel(loaded_kernel const* kernel, any_record const* record, planned_kernel* planned);
int fill_zeros(void* memory, uint64_t bytes, drv_stream stream);
int launch_kernel(loaded_kernel const* kernel, planned_kernel const* planned, int is_pdl, drv_stream stream);

#ifdef __cplusplus
}
#endif
