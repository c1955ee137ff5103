// The CUDA driver, found at run time: nothing is linked, and CUDA's headers are not needed. What is declared here is a
// part of cuda.h, in its own words but for the names; tests compare the two.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int drv_result;  // CUresult
typedef uint64_t drv_address;
typedef struct drv_context_s* drv_context;
typedef struct drv_stream_s* drv_stream;
typedef struct drv_event_s* drv_event;
typedef struct drv_library_s* drv_library;
typedef struct drv_kernel_s* drv_kernel;
typedef struct drv_function_s* drv_function;

enum {
  DRV_SUCCESS = 0,
  DRV_NOT_FOUND = 500,
  DRV_CAPTURE_UNSUPPORTED = 900,
  DRV_INVALID_CLUSTER_SIZE = 912,
  DRV_MULTIPROCESSOR_COUNT = 16,  // attributes of a device
  DRV_COMPUTE_CAPABILITY_MAJOR = 75,
  DRV_COMPUTE_CAPABILITY_MINOR = 76,
  DRV_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  DRV_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,  // attributes of a function
  DRV_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
  DRV_CLUSTER_DIMENSION = 4,  // attributes of a launch
  DRV_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

typedef struct {
  int id;
  char pad[4];
  union {
    char pad[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int allowed;
  } value;
} drv_launch_attribute;

typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  drv_stream stream;
  drv_launch_attribute* attributes;
  unsigned attribute_count;
} drv_launch_config;

// Its functions: what each returns is a drv_result.
#define DRV_FUNCTIONS(X)                                                                                             \
  X(init, "cuInit", (unsigned))                                                                                      \
  X(driver_get_version, "cuDriverGetVersion", (int*))                                                                \
  X(get_error_string, "cuGetErrorString", (drv_result, char const**))                                                \
  X(device_get, "cuDeviceGet", (int*, int))                                                                          \
  X(device_get_count, "cuDeviceGetCount", (int*))                                                                    \
  X(device_get_name, "cuDeviceGetName", (char*, int, int))                                                           \
  X(device_get_attribute, "cuDeviceGetAttribute", (int*, int, int))                                                  \
  X(primary_context_retain, "cuDevicePrimaryCtxRetain", (drv_context*, int))                                         \
  X(context_get_current, "cuCtxGetCurrent", (drv_context*))                                                          \
  X(context_set_current, "cuCtxSetCurrent", (drv_context))                                                           \
  X(context_get_device, "cuCtxGetDevice", (int*))                                                                    \
  X(library_load_data, "cuLibraryLoadData",                                                                          \
    (drv_library*, void const*, void*, void**, unsigned, void*, void**, unsigned))                                   \
  X(library_unload, "cuLibraryUnload", (drv_library))                                                                \
  X(library_get_kernel, "cuLibraryGetKernel", (drv_kernel*, drv_library, char const*))                               \
  X(kernel_get_function, "cuKernelGetFunction", (drv_function*, drv_kernel))                                         \
  X(function_set_attribute, "cuFuncSetAttribute", (drv_function, int, int))                                          \
  X(function_get_param_info, "cuFuncGetParamInfo", (drv_function, size_t, size_t*, size_t*))                         \
  X(max_active_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int*, drv_function, int, size_t))             \
  X(max_active_clusters, "cuOccupancyMaxActiveClusters", (int*, drv_function, drv_launch_config const*))             \
  X(launch_kernel, "cuLaunchKernelEx", (drv_launch_config const*, drv_function, void**, void**))                     \
  X(mem_alloc, "cuMemAlloc_v2", (drv_address*, size_t))                                                              \
  X(mem_free, "cuMemFree_v2", (drv_address))                                                                         \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", (drv_address, void const*, size_t, drv_stream))                          \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", (void*, drv_address, size_t, drv_stream))                                  \
  X(fill, "cuMemsetD8Async", (drv_address, unsigned char, size_t, drv_stream))                                       \
  X(stream_synchronize, "cuStreamSynchronize", (drv_stream))                                                         \
  X(event_create, "cuEventCreate", (drv_event*, unsigned))                                                           \
  X(event_record, "cuEventRecord", (drv_event, drv_stream))                                                          \
  X(event_synchronize, "cuEventSynchronize", (drv_event))                                                            \
  X(event_elapsed_time, "cuEventElapsedTime_v2", (float*, drv_event, drv_event))                                     \
  X(encode_tiled, "cuTensorMapEncodeTiled",                                                                          \
    (void*, int, uint32_t, void*, uint64_t const*, uint64_t const*, uint32_t const*, uint32_t const*, int, int, int, \
     int))                                                                                                           \
  X(encode_im2col, "cuTensorMapEncodeIm2col",                                                                        \
    (void*, int, uint32_t, void*, uint64_t const*, uint64_t const*, int const*, int const*, uint32_t, uint32_t,      \
     uint32_t const*, int, int, int, int))

typedef struct {
#define DRV_MEMBER(name, symbol, arguments) drv_result(*name) arguments;
  DRV_FUNCTIONS(DRV_MEMBER)
#undef DRV_MEMBER
} drv_functions;

/// The driver, loaded and started once; null where that fails, and `kernel_message` says why.
drv_functions const* load_driver(void);

/// Has `kernel_message` say what a call of the driver returned.
int driver_failed(drv_result code, char const* call);

/// Has the next message be what printf would print, and returns `code`.
int refuse(int code, char const* format, ...) __attribute__((format(printf, 2, 3)));

/// What was refused last in this thread.
char const* kernel_message(void);

/// Leaves the calling function with an error where the driver returns one.
#define DRV_CALL(name, arguments)                                 \
  do {                                                            \
    drv_result const code_ = load_driver()->name arguments;       \
    if (code_ != DRV_SUCCESS) return driver_failed(code_, #name); \
  } while (0)

#ifdef __cplusplus
}
#endif
