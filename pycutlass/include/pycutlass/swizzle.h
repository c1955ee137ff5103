// Threadblock swizzles that CUTLASS lacks. Kernels include prelude.h first; the extension binds them without it.
#pragma once

#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

namespace pycutlass {

/// Batches side by side along x, where a grid has 2^31 - 1 threadblocks, and not along z, where it has 65535.
///
/// The kernel hands get_log_tile's answer back to get_tile_offset. Here it carries the number of tiles along M, which
/// is what folds the batch into x.
struct BatchedIdentitySwizzle {
  using GemmCoord = cutlass::gemm::GemmCoord;

  CUTLASS_HOST_DEVICE
  static GemmCoord get_tiled_shape(GemmCoord problem_size, GemmCoord tile_size, int batch_count) {
    return GemmCoord((problem_size.m() + tile_size.m() - 1) / tile_size.m(),
                     (problem_size.n() + tile_size.n() - 1) / tile_size.n(), batch_count);
  }

  CUTLASS_HOST_DEVICE
  static dim3 get_grid_shape(GemmCoord tiled_shape) {
    return dim3(tiled_shape.m() * tiled_shape.k(), tiled_shape.n(), 1);
  }

  CUTLASS_HOST_DEVICE
  static int get_log_tile(GemmCoord tiled_shape) { return tiled_shape.m(); }

  CUTLASS_DEVICE
  static GemmCoord get_tile_offset(int tiles_m) {
    int x = cutlass::gemm::threadblock::RematerializeBlockIdxX();
    return GemmCoord{x % tiles_m, cutlass::gemm::threadblock::RematerializeBlockIdxY(), x / tiles_m};
  }
};

}  // namespace pycutlass
