// A library of kernels: the C interface of the shared object that `pycutlass.export_library` writes.
//
// The object has a few plans, each with its kernels for the ranges of M that it was exported for, and needs neither
// Python, a compiler nor the CUDA runtime: the driver is loaded when it is first needed. It exports two functions that
// return its one `pycutlass_library`: `pycutlass_get_library`, for those who open it by dlopen, and one that is called
// like its file, which the header beside it declares, for those who link it.
//
//   pycutlass_library const* library = kernels();  // of kernels.so
//   int32_t plan = library->find("linear");
//   pycutlass_tensor tensors[] = {...};  // as library->plans[plan].tensors lists them
//   pycutlass_launch launch = {sizeof(pycutlass_launch), 1, tensors, NULL, NULL, 0, stream};
//   uint64_t bytes;
//   if (library->workspace_size(plan, &launch, &bytes)) puts(library->message());
//   ...
//   if (library->run(plan, &launch)) puts(library->message());
//
// Plain C. Every function may be called by several threads at the same time. Versions only grow: a structure gets new
// members at its end, and says its size.
#ifndef PYCUTLASS_LIBRARY_H
#define PYCUTLASS_LIBRARY_H

#include <stdint.h>

#include "pycutlass/abi.h"

#define PYCUTLASS_LIBRARY_VERSION 1
#define PYCUTLASS_MAX_RANK 4

// Extents that the tensors of a launch choose.
#define PYCUTLASS_EXTENT_M (-1)  // M, or the number of images
#define PYCUTLASS_EXTENT_N (-2)  // of a group
#define PYCUTLASS_EXTENT_K (-3)  // of a group

#define PYCUTLASS_WORKSPACE_ALIGNMENT 256  // of the memory that a launch is given

#ifdef __cplusplus
extern "C" {
#endif

/// What functions return. `message` has the sentence.
typedef enum {
  PYCUTLASS_SUCCESS,
  PYCUTLASS_INVALID_ARGUMENT,  // the problem or its tensors: nothing was launched
  PYCUTLASS_NO_DEVICE,         // no driver, no GPU, or no current context
  PYCUTLASS_OTHER_DEVICE,      // the kernels are for GPUs of another architecture
  PYCUTLASS_OTHER_VERSION,     // of the call record, or of this interface
  PYCUTLASS_DAMAGED,           // what was read is not what was written
  PYCUTLASS_DRIVER_ERROR,      // a call of the driver has failed
} pycutlass_code;

/// How the elements of a tensor lie in memory. What is no vector has adjacent elements along one dimension, and any
/// step between its lines.
typedef enum {
  PYCUTLASS_ROWS,     // (M, N), or (batch, M, N): the last dimension has a stride of 1
  PYCUTLASS_COLUMNS,  // the same, the last but one has
  PYCUTLASS_LINE,     // (N): one vector, or (batch, N)
  PYCUTLASS_PIXELS,   // (N, H, W, C): packed but for the step between pixels
} pycutlass_layout;

/// One tensor that a plan takes.
typedef struct {
  char const* name;   // a, b, c, bias, out, or as the epilogue calls it
  uint8_t element;    // pycutlass_element
  uint8_t layout;     // pycutlass_layout
  uint8_t rank;       // of PYCUTLASS_MAX_RANK at most
  uint8_t written;    // 1: the kernel writes it
  uint8_t shared;     // 1: in a batch, one of it may stand for all; it has a rank less then, or a stride of 0
  uint8_t alignment;  // in elements, of its address and its steps
  uint16_t reserved;
  int64_t extents[PYCUTLASS_MAX_RANK];  // those of a launch are negative, as above
} pycutlass_tensor_info;

/// A scalar that a plan takes, and its value where a launch gives none.
typedef struct {
  char const* name;
  double value;
  uint8_t on_device;  // 1: it may be in device memory
  uint8_t element;    // pycutlass_element, of what is there
  uint8_t reserved[6];
} pycutlass_scalar_info;

/// A plan: one kind of problem, for the ranges of M that it has kernels for.
typedef struct {
  char const* name;
  char const* description;  // in words
  char const* target;       // of its kernels, such as sm_90a
  uint32_t tensor_count;
  uint32_t scalar_count;
  pycutlass_tensor_info const* tensors;
  pycutlass_scalar_info const* scalars;
  int64_t most_extent;  // the largest M, or number of images, that it takes
  uint8_t is_group;     // 1: a launch has several problems; no plan of this version is one
  uint8_t reserved[7];
} pycutlass_plan_info;

/// A tensor of a launch. Strides count elements. An element type of PYCUTLASS_F32 may stand for tf32.
typedef struct {
  void* data;  // device memory, which is not looked at before the kernel runs
  int64_t shape[PYCUTLASS_MAX_RANK];
  int64_t strides[PYCUTLASS_MAX_RANK];
  uint8_t rank;
  uint8_t element;  // pycutlass_element
  uint8_t reserved[6];
} pycutlass_tensor;

/// A scalar of a launch: a number, or the address of one in device memory, where it is not null.
typedef struct {
  double value;
  void const* address;
} pycutlass_scalar;

typedef struct {
  uint32_t struct_size;             // sizeof(pycutlass_launch)
  uint32_t problems;                // of a group; else 1
  pycutlass_tensor const* tensors;  // those of the plan, in its order; of a group, those of each problem in turn
  pycutlass_scalar const* scalars;  // those of the plan; null for the values that it was exported with
  void* workspace;                  // device memory for this launch, as `workspace_size` says; null where it says 0
  uint64_t workspace_bytes;
  void* stream;  // CUstream or cudaStream_t
} pycutlass_launch;

typedef struct {
  uint32_t version;      // PYCUTLASS_LIBRARY_VERSION
  uint32_t struct_size;  // of this
  uint32_t abi_version;  // PYCUTLASS_ABI_VERSION that its kernels were built with
  uint32_t plan_count;
  pycutlass_plan_info const* plans;
  char const* manifest;  // JSON: what the kernels are, with digests, versions and the sources' names

  /// The index of the plan of that name; -1 where there is none.
  int32_t (*find)(char const* name);

  /// Loads the kernels of a plan for the GPU of the current context, which a launch does otherwise, when it needs one.
  /// While a stream is captured nothing can be loaded.
  int (*load)(int32_t plan);

  /// Bytes of memory that a launch needs beside its tensors. Those may lack addresses; the current context says for
  /// which GPU. It may change from one problem to the next.
  int (*workspace_size)(int32_t plan, pycutlass_launch const* launch, uint64_t* bytes);

  /// Checks the tensors and launches the kernels on the stream. What the workspace holds does not matter before, and
  /// until the stream has come past the launch it may not be used for anything else.
  int (*run)(int32_t plan, pycutlass_launch const* launch);

  /// What the last call of this thread that did not succeed has to say; valid until the next call.
  char const* (*message)(void);

  /// Unloads all kernels. No launch may be under way in another thread.
  void (*unload)(void);
} pycutlass_library;

/// Every library exports this function, for those who find it by dlsym.
pycutlass_library const* pycutlass_get_library(void);
typedef pycutlass_library const* (*pycutlass_get_library_function)(void);

/// The index of a tensor of a plan by name; -1 where there is none.
static inline int32_t pycutlass_tensor_index(pycutlass_plan_info const* plan, char const* name) {
  for (uint32_t i = 0; i < plan->tensor_count; ++i) {
    char const *left = plan->tensors[i].name, *right = name;
    while (*left && *left == *right) ++left, ++right;
    if (*left == *right) return (int32_t)i;
  }
  return -1;
}

/// Whether a library speaks this version of the interface; a program that was compiled with another header asks first.
static inline int pycutlass_is_compatible(pycutlass_library const* library) {
  return library->version == PYCUTLASS_LIBRARY_VERSION && library->struct_size >= sizeof(pycutlass_library);
}

#ifdef __cplusplus
}
#endif

#endif
