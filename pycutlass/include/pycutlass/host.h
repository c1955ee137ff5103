// The host side of a kernel: what its exported functions share, and the few CUDA runtime functions that CUTLASS's host
// code calls, forwarded to the driver. So a host library needs no CUDA library and is compiled by plain g++.
#pragma once

#include "pycutlass/abi.h"
#include "pycutlass/prelude.h"

#if !PYCUTLASS_DEVICE_SIDE

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cutlass/bfloat16.h>
#include <cutlass/half.h>
#include <cutlass/tfloat32.h>

#include <cstring>

#define PYCUTLASS_EXPORT extern "C" __attribute__((visibility("default")))

// Where this shared object begins and ends: the linker's.
extern "C" __attribute__((visibility("hidden"))) char const __ehdr_start[], _end[];

namespace __gnu_cxx {
__attribute__((weak)) void __freeres();
}

namespace pycutlass {

/// Some compilers link the C++ library statically. Every host side then has one of its own, with 72 KB for exceptions
/// that are thrown when there is no memory, and nobody gives them back when the host side is unloaded.
struct ExceptionReserve {
  ~ExceptionReserve() {
    auto const* const free = reinterpret_cast<char const*>(&__gnu_cxx::__freeres);
    if (free && free >= __ehdr_start && free < _end) __gnu_cxx::__freeres();  // never that of the whole process
  }
};
inline ExceptionReserve exception_reserve;

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

/// The code of an element type; `void` stands for an operand that a kernel lacks.
template <typename Element>
inline constexpr uint8_t element_code = 0xff;
template <>
inline constexpr uint8_t element_code<void> = PYCUTLASS_NO_ELEMENT;
template <>
inline constexpr uint8_t element_code<double> = PYCUTLASS_F64;
template <>
inline constexpr uint8_t element_code<float> = PYCUTLASS_F32;
template <>
inline constexpr uint8_t element_code<cutlass::tfloat32_t> = PYCUTLASS_TF32;
template <>
inline constexpr uint8_t element_code<cutlass::half_t> = PYCUTLASS_F16;
template <>
inline constexpr uint8_t element_code<cutlass::bfloat16_t> = PYCUTLASS_BF16;
template <>
inline constexpr uint8_t element_code<int32_t> = PYCUTLASS_S32;
template <>
inline constexpr uint8_t element_code<int8_t> = PYCUTLASS_S8;
template <>
inline constexpr uint8_t element_code<uint8_t> = PYCUTLASS_U8;
template <>
inline constexpr uint8_t element_code<int64_t> = PYCUTLASS_S64;
template <>
inline constexpr uint8_t element_code<cutlass::float_e4m3_t> = PYCUTLASS_E4M3;
template <>
inline constexpr uint8_t element_code<cutlass::float_e5m2_t> = PYCUTLASS_E5M2;

/// Element types of a kernel's operands, in the order of pycutlass_role.
template <typename... Each>
struct Elements {
  static_assert(sizeof...(Each) <= PYCUTLASS_ROLES && ((element_code<Each> != 0xff) && ...), "an unknown operand");
  static constexpr uint8_t kCodes[PYCUTLASS_ROLES] = {element_code<Each>...};
};

inline pycutlass_operand const& operand(pycutlass_call const& call, pycutlass_role role) { return call.operands[role]; }

/// What is given as C, or D in its place: kernels look at C's address whether they read C or not.
inline pycutlass_operand const& source_or_target(pycutlass_call const& call) {
  return call.operands[operand(call, PYCUTLASS_C).data ? PYCUTLASS_C : PYCUTLASS_D];
}

/// What the driver has for tensor maps, asked once after it was bound: its function, and its version of CUDA, such as
/// 13010 for 13.1; 0 where it does not say, and -1 where it was not asked.
inline PFN_cuTensorMapEncodeTiled_v12000 driver_encode_tiled = nullptr;
inline int driver_version = -1;

inline int ask_version() {
  void* function = nullptr;
  int version = 0;
  if (driver.get_entry_point("cuDriverGetVersion", &function, 2020) != 0) return 0;
  return reinterpret_cast<PFN_cuDriverGetVersion_v2020>(function)(&version) == CUDA_SUCCESS ? version : 0;
}

inline int version_of_driver() {
  if (driver_version < 0) driver_version = ask_version();
  return driver_version;
}

/// Bytes of an element of a tensor map.
inline uint64_t bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 8;
    default:
      return 4;
  }
}

/// Makes a tensor map. Drivers up to CUDA 13.1 set a bit in that of a tensor of less than 128 KiB that must not be set:
/// CUTLASS clears it itself since 4.4 (cute/atom/copy_traits_sm90_tma.hpp), after which this changes nothing.
inline CUresult CUDAAPI encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                     cuuint64_t const* extents, cuuint64_t const* strides, cuuint32_t const* box,
                                     cuuint32_t const* steps, CUtensorMapInterleave interleave,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill) {
  CUresult const result =
      driver_encode_tiled(map, type, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill);
  uint64_t bytes = extents[0] * bytes_of(type);
  for (cuuint32_t i = 1; i < rank; ++i) bytes += (extents[i] - 1) * strides[i - 1];
  if (result == CUDA_SUCCESS && bytes < (128 << 10) && version_of_driver() <= 13010) {
    reinterpret_cast<uint64_t*>(map)[1] &= ~(uint64_t(1) << 21);
  }
  return result;
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
__attribute__((visibility("hidden"))) cudaError_t cudaDriverGetVersion(int* version) {  // since CUTLASS 4.4
  if (!pycutlass::driver.get_entry_point) return cudaErrorInsufficientDriver;
  *version = pycutlass::version_of_driver();
  return cudaSuccess;
}
__attribute__((visibility("hidden"))) cudaError_t
cudaGetDriverEntryPointByVersion(char const* symbol, void** function, unsigned int cuda_version, unsigned long long,
                                 cudaDriverEntryPointQueryResult* status) {
  bool found =
      pycutlass::driver.get_entry_point && pycutlass::driver.get_entry_point(symbol, function, cuda_version) == 0;
  if (found && std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0) {
    pycutlass::driver_encode_tiled = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(*function);
    *function = reinterpret_cast<void*>(&pycutlass::encode_tiled);
  }
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

PYCUTLASS_EXPORT void pycutlass_bind(pycutlass_driver const* driver) {
  pycutlass::driver = *driver;
  pycutlass::driver_version = -1;
}

#endif
