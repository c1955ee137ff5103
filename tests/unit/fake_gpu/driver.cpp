// A stand-in for libcuda.so.1 with several GPUs, for tests of what is asked of the driver: GPUs and their contexts.
#include "driver.h"

#include <cstring>

namespace fake {

State& state() {
  static auto* instance = new State;
  return *instance;
}

thread_local CUctx_st* current = nullptr;

}  // namespace fake

using namespace fake;

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, char const** text) {
  *text = "an error of the stand-in";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  ENTER(cuDeviceGet);
  if (ordinal < 0 || ordinal >= static_cast<int>(state().contexts.size())) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = static_cast<int>(state().contexts.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  std::strncpy(name, "stand-in", static_cast<size_t>(bytes));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  ENTER(cuDeviceGetAttribute);
  char const* const given = std::getenv("FAKE_CAPABILITY");
  int const capability = given ? std::atoi(given) : 80;
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR            ? capability / 10
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR          ? capability % 10
           : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT              ? 4
           : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? (capability < 90 ? 163 : 227) << 10
           : attribute == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE                     ? 1 << 10
                                                                                : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER(cuDevicePrimaryCtxRetain);
  *context = &state().contexts.at(static_cast<size_t>(device));
  (*context)->active = true;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  ENTER(cuDevicePrimaryCtxGetState);
  *flags = 0;
  *active = state().contexts.at(static_cast<size_t>(device)).active;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = nullptr;
  ENTER(cuCtxGetCurrent);
  *context = current;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER(cuCtxSetCurrent);
  current = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  ENTER(cuCtxGetDevice);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER(cuCtxGetStreamPriorityRange);
  *least = 0;
  *greatest = -5;
  return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/// A map holds what it is made of, so that two that differ can be told apart.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                cuuint64_t const* extents, cuuint64_t const* strides, cuuint32_t const* box,
                                cuuint32_t const* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  ENTER(cuTensorMapEncodeTiled);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  if (!map) return CUDA_SUCCESS;
  cuuint64_t hash = 14695981039346656037u;
  auto const add = [&](cuuint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  for (cuuint64_t value :
       {cuuint64_t(type), cuuint64_t(interleave), cuuint64_t(swizzle), cuuint64_t(promotion), cuuint64_t(fill)}) {
    add(value);
  }
  for (cuuint32_t i = 0; i < rank; ++i) {
    add(extents[i]);
    add(i ? strides[i - 1] : 0);
    add(box[i]);
    add(steps[i]);
  }
  std::memset(map, 0, sizeof *map);
  map->opaque[0] = reinterpret_cast<cuuint64_t>(address);
  map->opaque[2] = hash;
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, cuuint64_t const*,
                                 cuuint64_t const*, int const*, int const*, cuuint32_t, cuuint32_t, cuuint32_t const*,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill) {
  return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // extern "C"
