#include "tensor_maps.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "driver.h"

namespace pycutlass {

thread_local CUresult refused_map = CUDA_SUCCESS;

namespace {

constexpr cuuint32_t kMostRank = 5;

/// All that a tiled map depends on beside its address. Compared byte by byte, so that it begins as zeros.
struct Form {
  CUcontext context;  // the driver checks what its GPU can do
  std::array<cuuint64_t, kMostRank> extents, strides;
  std::array<cuuint32_t, kMostRank> box, steps;
  std::array<int32_t, 6> kinds;  // type, rank, interleave, swizzle, promotion and fill
};

struct Known {
  Form form;
  CUtensorMap map;
};

/// Maps that this thread has made last. A kernel has up to four, and few kernels take turns.
constexpr size_t kKnown = 16;
struct KnownMaps {
  std::array<Known, kKnown> items;
  size_t count, next;
};
thread_local KnownMaps known_maps{};

CUresult refusing(CUresult code) {
  if (code != CUDA_SUCCESS) refused_map = code;
  return code;
}

/// Whether the map of such a form was made before; then it is in `map`, with this address.
bool has_known(Form const& form, void* address, CUtensorMap* map) {
  auto const begin = known_maps.items.begin(), end = begin + static_cast<ptrdiff_t>(known_maps.count);
  auto const found =
      std::find_if(begin, end, [&](Known const& each) { return std::memcmp(&each.form, &form, sizeof(Form)) == 0; });
  if (found == end) return false;
  *map = found->map;
  return driver().cuTensorMapReplaceAddress(map, address) == CUDA_SUCCESS;
}

void keep(Form const& form, CUtensorMap const& map) {
  known_maps.items[known_maps.next] = {form, map};
  known_maps.next = (known_maps.next + 1) % kKnown;
  known_maps.count = std::min(known_maps.count + 1, kKnown);
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      cuuint64_t const* extents, cuuint64_t const* strides, cuuint32_t const* box,
                      cuuint32_t const* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  auto const encode = [&] {
    return refusing(driver().cuTensorMapEncodeTiled(map, type, rank, address, extents, strides, box, steps, interleave,
                                                    swizzle, promotion, fill));
  };
  bool const is_whole = map && rank && rank <= kMostRank && extents && strides && box && steps;
  Form form;
  std::memset(&form, 0, sizeof(form));
  if (!is_whole || driver().cuCtxGetCurrent(&form.context) != CUDA_SUCCESS) return encode();
  std::copy_n(extents, rank, form.extents.begin());
  std::copy_n(strides, rank - 1, form.strides.begin());
  std::copy_n(box, rank, form.box.begin());
  std::copy_n(steps, rank, form.steps.begin());
  form.kinds = {type, static_cast<int32_t>(rank), interleave, swizzle, promotion, fill};
  if (has_known(form, address, map)) return CUDA_SUCCESS;
  CUresult const code = encode();  // which says what is wrong with an address, too
  if (code == CUDA_SUCCESS) keep(form, *map);
  return code;
}

template <typename... Arguments>
CUresult encode_im2col(Arguments... arguments) {
  return refusing(driver().cuTensorMapEncodeIm2col(arguments...));
}

template <typename... Arguments>
void* im2col_encoder(CUresult (*Driver::*)(Arguments...)) {
  return reinterpret_cast<void*>(&encode_im2col<Arguments...>);
}

}  // namespace

void* tensor_map_encoder(char const* symbol) {
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0) return reinterpret_cast<void*>(&encode_tiled);
  if (std::strcmp(symbol, "cuTensorMapEncodeIm2col") == 0) return im2col_encoder(&Driver::cuTensorMapEncodeIm2col);
  return nullptr;
}

}  // namespace pycutlass
