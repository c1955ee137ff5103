// The host side of a kernel: three exported functions, and the few CUDA runtime functions that CUTLASS's host code
// calls, forwarded to the driver. So a host library needs no CUDA library and is compiled by plain g++.
#pragma once

#include "pycutlass/abi.h"
#include "pycutlass/prelude.h"

#if !PYCUTLASS_DEVICE_SIDE

#define PYCUTLASS_EXPORT extern "C" __attribute__((visibility("default")))

namespace pycutlass {

/// Set by pycutlass_bind before the first plan. Global because the functions below have CUDA's own signatures.
inline pycutlass_driver driver = {nullptr, nullptr, nullptr};

/// What CUTLASS asked to be zeroed since the last look.
struct ClearRequest {
  char* begin = nullptr;
  size_t bytes = 0;
};
inline thread_local ClearRequest clear_request;

/// Moves the request into the plan: the extension zeroes the memory, on the stream of each launch.
inline void note_clear(void* workspace, pycutlass_plan_result& result) {
  if (workspace && clear_request.bytes) {
    result.clear_offset = static_cast<uint64_t>(clear_request.begin - static_cast<char*>(workspace));
    result.clear_bytes = clear_request.bytes;
  }
  clear_request = ClearRequest{};
}

}  // namespace pycutlass

extern "C" {
__attribute__((visibility("hidden"))) cudaError_t cudaGetDevice(int* ordinal) {
  return pycutlass::driver.get_device ? static_cast<cudaError_t>(pycutlass::driver.get_device(ordinal))
                                      : cudaErrorInsufficientDriver;
}
__attribute__((visibility("hidden"))) cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                                                         int ordinal) {
  return pycutlass::driver.get_attribute
             ? static_cast<cudaError_t>(pycutlass::driver.get_attribute(value, static_cast<int>(attribute), ordinal))
             : cudaErrorInsufficientDriver;
}
__attribute__((visibility("hidden"))) cudaError_t
cudaGetDriverEntryPointByVersion(char const* symbol, void** function, unsigned int cuda_version, unsigned long long,
                                 cudaDriverEntryPointQueryResult* status) {
  bool found =
      pycutlass::driver.get_entry_point && pycutlass::driver.get_entry_point(symbol, function, cuda_version) == 0;
  if (status) *status = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return found ? cudaSuccess : cudaErrorInsufficientDriver;
}
}

extern "C" __attribute__((visibility("hidden"))) cudaError_t cudaMemsetAsync(void* begin, int value, size_t bytes,
                                                                             cudaStream_t) {
  if (value != 0) return cudaErrorInvalidValue;
  pycutlass::clear_request = {static_cast<char*>(begin), bytes};
  return cudaSuccess;
}

PYCUTLASS_EXPORT void pycutlass_bind(pycutlass_driver const* driver) { pycutlass::driver = *driver; }

#endif
