// Memory of the stand-in: where it is, and copies.
#include "driver.h"

#include <cstdio>
#include <cstring>

namespace fake {

bool reachable(uintptr_t address, size_t bytes, int ordinal) {
  auto found = state().blocks.upper_bound(address);
  if (found == state().blocks.begin()) return false;
  --found;
  Block const& block = found->second;
  return address + bytes <= found->first + block.bytes && (block.ordinal == ordinal || block.ordinal < 0);
}

}  // namespace fake

using namespace fake;

static bool page_locked(void const* memory) { return reachable(reinterpret_cast<uintptr_t>(memory), 1, -1); }

extern "C" {

/// While kernels run: they tell what they touch.
void fake_touch(void const* address, size_t bytes) {
  if (!reachable(reinterpret_cast<uintptr_t>(address), bytes, state().running_on)) {
    violation("a kernel touches memory that is not its GPU's");
    std::fprintf(stderr, "fake GPU %d: %zu bytes at %p\n", state().running_on, bytes, address);
    std::abort();
  }
}

/// Has memory of the host pass for some of a GPU; 0 bytes end that.
void fake_lend(CUdeviceptr address, size_t bytes, int ordinal) {
  Guard guard(state().lock);
  if (bytes) {
    state().blocks[address] = {bytes, ordinal};
  } else {
    state().blocks.erase(address);
  }
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  ENTER(cuMemGetInfo);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *total = size_t(8) << 30;
  *free = *total;
  for (auto const& [address, block] : state().blocks) {
    if (block.ordinal == current->ordinal) *free -= block.bytes;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* asked, void** answers, CUdeviceptr pointer) {
  ENTER(cuPointerGetAttributes);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  auto found = state().blocks.upper_bound(pointer);
  bool const known = found != state().blocks.begin() && pointer < (--found)->first + found->second.bytes;
  for (unsigned i = 0; i < count; ++i) {
    if (asked[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *static_cast<unsigned*>(answers[i]) = !known                      ? 0
                                            : found->second.ordinal < 0 ? CU_MEMORYTYPE_HOST
                                                                        : CU_MEMORYTYPE_DEVICE;
    } else if (asked[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      *static_cast<int*>(answers[i]) = known ? found->second.ordinal : -1;
    } else {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  ENTER(cuMemAlloc);
  REFUSED_UNDER_CAPTURE();
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0xA5, bytes);
  *address = reinterpret_cast<CUdeviceptr>(memory);
  state().blocks[*address] = {bytes, current->ordinal};
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  ENTER(cuMemFree);
  state().blocks.erase(address);  // the memory itself stays: what would touch it is found by its address
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  ENTER(cuMemHostAlloc);
  REFUSED_UNDER_CAPTURE();
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  state().blocks[reinterpret_cast<uintptr_t>(*memory)] = {bytes, -1};
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, void const* source, size_t bytes, CUstream handle) {
  ENTER(cuMemcpyHtoDAsync);
  STREAM(handle);
  if (!reachable(target, bytes, stream->context->ordinal)) return CUDA_ERROR_INVALID_VALUE;
  if (page_locked(source)) {
    push(stream, [=] { std::memcpy(reinterpret_cast<void*>(target), source, bytes); });
  } else {
    auto const* begin = static_cast<unsigned char const*>(source);
    std::vector<unsigned char> taken(begin, begin + bytes);
    push(stream, [=] { std::memcpy(reinterpret_cast<void*>(target), taken.data(), taken.size()); });
  }
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream handle) {
  ENTER(cuMemcpyDtoDAsync);
  STREAM(handle);
  int const ordinal = stream->context->ordinal;
  if (!reachable(target, bytes, ordinal) || !reachable(source, bytes, ordinal)) return CUDA_ERROR_INVALID_VALUE;
  push(stream, [=] { std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void const*>(source), bytes); });
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, size_t bytes, CUstream handle) {
  ENTER(cuMemcpyDtoHAsync);
  STREAM(handle);
  if (!reachable(source, bytes, stream->context->ordinal)) return CUDA_ERROR_INVALID_VALUE;
  push(stream, [=] { std::memcpy(target, reinterpret_cast<void const*>(source), bytes); });
  if (!page_locked(target)) drain(stream);
  return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t bytes, CUstream handle) {
  ENTER(cuMemsetD8Async);
  STREAM(handle);
  if (!reachable(target, bytes, stream->context->ordinal)) return CUDA_ERROR_INVALID_VALUE;
  push(stream, [=] {
    std::memset(reinterpret_cast<void*>(target), value, bytes);
    state().clock += 1e-6 * static_cast<double>(bytes);
  });
  return CUDA_SUCCESS;
}

/// Frees memory in the order of a stream of the current context, as a pool does.
int fake_free_on(CUdeviceptr address, CUstream handle) {
  Guard guard(state().lock);
  STREAM(handle);
  if (!reachable(address, 1, stream->context->ordinal)) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capturing) violation("memory is given back on a stream that is captured");
  push(stream, [address] { state().blocks.erase(address); });
  return CUDA_SUCCESS;
}

}  // extern "C"
