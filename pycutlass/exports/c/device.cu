// Kernels that a program was compiled with, launched by the CUDA runtime: what kernel.c and memory.c do by the driver.
#include <cuda_runtime.h>

#include <cstring>

#include "compiled.h"
#include "kernel.h"
#include "memory.h"

namespace {

constexpr int kMostKernels = 64, kMostFields = 256;
loaded_kernel loaded[kMostKernels];
pycutlass_epilogue_field fields[kMostKernels][kMostFields];

int failed(cudaError_t code, char const* call) {
  bool const absent = code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice || code == cudaErrorStubLibrary;
  if (absent) {
    return refuse(PYCUTLASS_NO_DEVICE,
                  "the CUDA driver could not be loaded, or finds no GPU (%s). Install an NVIDIA driver of release 580 "
                  "or later for CUDA 13.",
                  cudaGetErrorString(code));
  }
  bool const is_other = code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction;
  return refuse(is_other ? PYCUTLASS_OTHER_DEVICE : PYCUTLASS_DRIVER_ERROR, "%s has failed: %s%s", call,
                cudaGetErrorString(code), is_other ? ": compile the program for this GPU" : "");
}

#define CUDA_CALL(name, arguments)                         \
  do {                                                     \
    cudaError_t const code_ = name arguments;              \
    if (code_ != cudaSuccess) return failed(code_, #name); \
  } while (0)

int get_device(int* ordinal) { return cudaGetDevice(ordinal); }

int get_attribute(int* value, int attribute, int ordinal) {
  return cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), ordinal);
}

using EncodeTiled = drv_result (*)(void*, int, uint32_t, void*, uint64_t const*, uint64_t const*, uint32_t const*,
                                   uint32_t const*, int, int, int, int);
EncodeTiled encode_of_driver = nullptr;
drv_result refused_map = DRV_SUCCESS;  // CUTLASS goes on without a tensor map that is refused

drv_result encode_tiled(void* map, int type, uint32_t rank, void* address, uint64_t const* extents,
                        uint64_t const* strides, uint32_t const* box, uint32_t const* steps, int interleave,
                        int swizzle, int promotion, int fill) {
  drv_result const code =
      encode_of_driver(map, type, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill);
  if (code != DRV_SUCCESS) refused_map = code;
  return code;
}

int get_entry_point(char const* symbol, void** function, unsigned version) {
  cudaDriverEntryPointQueryResult found;
  cudaError_t const code = cudaGetDriverEntryPointByVersion(symbol, function, version, cudaEnableDefault, &found);
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) return DRV_NOT_FOUND;
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0) {
    encode_of_driver = reinterpret_cast<EncodeTiled>(*function);
    *function = reinterpret_cast<void*>(&encode_tiled);
  }
  return DRV_SUCCESS;
}

int count_clusters(loaded_kernel* kernel, void const* function) {
  uint32_t const* const shape = kernel->info.cluster;
  int const together = static_cast<int>(shape[0] * shape[1] * shape[2]);
  if (together <= 8) return PYCUTLASS_SUCCESS;  // which every GPU with clusters can run
  CUDA_CALL(cudaFuncSetAttribute, (function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {shape[0], shape[1], shape[2]};
  cudaLaunchConfig_t config{};
  config.gridDim = {shape[0], shape[1], shape[2]};
  config.blockDim = {kernel->info.threads[0], kernel->info.threads[1], 1};
  config.dynamicSmemBytes = kernel->info.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  CUDA_CALL(cudaOccupancyMaxActiveClusters, (&clusters, function, &config));
  if (clusters < 1) {
    return refuse(PYCUTLASS_OTHER_DEVICE, "kernel %s has clusters of %d threadblocks, and this GPU cannot hold one",
                  kernel->stored->name, together);
  }
  if (clusters * together < kernel->sm_count) kernel->sm_count = clusters * together;
  return PYCUTLASS_SUCCESS;
}

int load(uint32_t index, loaded_kernel* kernel) {
  static pycutlass_driver const functions = {get_device, get_attribute, get_entry_point};
  compiled_kernel const& compiled = compiled_kernels[index];
  kernel->stored = &stored_kernels[index];
  void const* const function = compiled.function();
  kernel->function = reinterpret_cast<drv_function>(const_cast<void*>(function));
  kernel->plan = compiled.plan;
  kernel->fields = fields[index];
  compiled.describe(&kernel->info);
  kernel->field_count = compiled.describe_epilogue(fields[index], kMostFields);
  if (kernel->info.abi_version != PYCUTLASS_ABI_VERSION || kernel->field_count > kMostFields) {
    return refuse(PYCUTLASS_OTHER_VERSION, "kernel %s was built for call record version %u, and this program has %d",
                  kernel->stored->name, kernel->info.abi_version, PYCUTLASS_ABI_VERSION);
  }
  compiled.bind(&functions);
  CUDA_CALL(cudaGetDevice, (&kernel->device));
  CUDA_CALL(cudaDeviceGetAttribute, (&kernel->sm_count, cudaDevAttrMultiProcessorCount, kernel->device));
  int const shared = static_cast<int>(kernel->info.shared_bytes);
  int const threads = static_cast<int>(kernel->info.threads[0] * kernel->info.threads[1]);
  CUDA_CALL(cudaFuncSetAttribute, (function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  CUDA_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor, (&kernel->occupancy, function, threads, shared));
  if (kernel->occupancy < 1) {
    return refuse(PYCUTLASS_OTHER_DEVICE, "kernel %s does not fit on this GPU: not one threadblock can be resident",
                  kernel->stored->name);
  }
  return count_clusters(kernel, function);
}

}  // namespace

int find_kernel(uint32_t index, loaded_kernel const** found) {
  loaded_kernel* const kernel = &loaded[index];
  *found = kernel;
  return kernel->stored ? PYCUTLASS_SUCCESS : load(index, kernel);
}

void unload_kernels() { std::memset(loaded, 0, sizeof loaded); }

int plan_kernel(loaded_kernel const* kernel, any_record const* record, planned_kernel* planned) {
  refused_map = DRV_SUCCESS;
  std::memset(planned->params, 0, kernel->info.params_bytes);  // CUTLASS leaves out what a kernel does not read
  int const status = kernel->plan(record, planned->params, &planned->result);
  if (refused_map != DRV_SUCCESS) {
    return refuse(PYCUTLASS_DRIVER_ERROR, "the CUDA driver has refused a tensor map: CUresult %d", refused_map);
  }
  if (!status) return PYCUTLASS_SUCCESS;
  return refuse(PYCUTLASS_INVALID_ARGUMENT, "CUTLASS cannot implement this problem with %s: cutlass::Status %d",
                kernel->stored->name, status);
}

int launch_kernel(loaded_kernel const* kernel, planned_kernel const* planned, int is_pdl, drv_stream stream) {
  pycutlass_kernel_info const& info = kernel->info;
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = {planned->result.grid[0], planned->result.grid[1], planned->result.grid[2]};
  config.blockDim = {info.threads[0], info.threads[1], 1};
  config.dynamicSmemBytes = info.shared_bytes;
  config.stream = reinterpret_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  if (info.cluster[0] * info.cluster[1] * info.cluster[2] > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {info.cluster[0], info.cluster[1], info.cluster[2]};
  }
  if (is_pdl && planned->result.supports_pdl) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {const_cast<unsigned char*>(planned->params)};
  CUDA_CALL(cudaLaunchKernelExC, (&config, reinterpret_cast<void const*>(kernel->function), arguments));
  return PYCUTLASS_SUCCESS;
}

int fill_zeros(void* memory, uint64_t bytes, drv_stream stream) {
  CUDA_CALL(cudaMemsetAsync, (memory, 0, bytes, reinterpret_cast<cudaStream_t>(stream)));
  return PYCUTLASS_SUCCESS;
}

int start_device(char* name, int room) {
  cudaDeviceProp properties;
  CUDA_CALL(cudaSetDevice, (0));
  CUDA_CALL(cudaGetDeviceProperties, (&properties, 0));
  std::strncpy(name, properties.name, static_cast<size_t>(room) - 1);
  return PYCUTLASS_SUCCESS;
}

int take_memory(void** memory, size_t bytes) {
  CUDA_CALL(cudaMalloc, (memory, bytes));
  return PYCUTLASS_SUCCESS;
}

int to_device(void* memory, void const* host, size_t bytes) {
  CUDA_CALL(cudaMemcpy, (memory, host, bytes, cudaMemcpyHostToDevice));
  return PYCUTLASS_SUCCESS;
}

int to_host(void* host, void const* memory, size_t bytes) {
  CUDA_CALL(cudaMemcpy, (host, memory, bytes, cudaMemcpyDeviceToHost));
  return PYCUTLASS_SUCCESS;
}

int milliseconds_since(double* milliseconds) {
  static cudaEvent_t last;
  cudaEvent_t now;
  float passed = 0;
  CUDA_CALL(cudaEventCreate, (&now));
  CUDA_CALL(cudaEventRecord, (now));
  CUDA_CALL(cudaEventSynchronize, (now));
  if (last) CUDA_CALL(cudaEventElapsedTime, (&passed, last, now));
  *milliseconds = passed;
  last = now;
  return PYCUTLASS_SUCCESS;
}
