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
}  // namespace pycutlass

extern "C" {
__attribute__((visibility("hidden"))) cudaError_t cudaGetDevice(int *ordinal) {
  return pycutlass::driver.get_device ? static_cast<cudaError_t>(pycutlass::driver.get_device(ordinal))
                                      : cudaErrorInsufficientDriver;
}
__attribute__((visibility("hidden"))) cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute,
                                                                         int ordinal) {
  return pycutlass::driver.get_attribute
             ? static_cast<cudaError_t>(pycutlass::driver.get_attribute(value, static_cast<int>(attribute), ordinal))
             : cudaErrorInsufficientDriver;
}
__attribute__((visibility("hidden"))) cudaError_t cudaGetDriverEntryPointByVersion(
    char const *symbol, void **function, unsigned int cuda_version, unsigned long long,
    cudaDriverEntryPointQueryResult *status) {
  bool found = pycutlass::driver.get_entry_point &&
               pycutlass::driver.get_entry_point(symbol, function, cuda_version) == 0;
  if (status) *status = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return found ? cudaSuccess : cudaErrorInsufficientDriver;
}
}

PYCUTLASS_EXPORT void pycutlass_bind(pycutlass_driver const *driver) { pycutlass::driver = *driver; }

#endif
