// Whether the mainloop of a kernel of CUTLASS's 2.x API loads all of its tiles.
#pragma once

#include <cutlass/arch/mma.h>

namespace pycutlass {

/// CUTLASS divides a tile among threads by integer division. Where that leaves a remainder, the thread maps of
/// tensor-core kernels round down, and a part of the tile is never loaded
/// (cutlass/transform/pitch_linear_thread_map.h). Python refuses such tiles (families/ampere/tensor_op.py); this is for
/// what it may not know of, and for another CUTLASS.
template <typename Iterator, int kElements>
struct LoadsAll {
  using Map = typename Iterator::ThreadMap;
  static bool const value = Map::Iterations::kCount * Map::kElementsPerAccess * Map::kThreads == kElements;
};

template <typename Mma, typename OpClass>
struct LoadsWholeTiles {
  using Shape = typename Mma::Shape;
  static bool const value = LoadsAll<typename Mma::IteratorA, Shape::kM * Shape::kK>::value &&
                            LoadsAll<typename Mma::IteratorB, Shape::kN * Shape::kK>::value;
};

/// Those of CUDA cores say themselves where they do not come out even.
template <typename Mma>
struct LoadsWholeTiles<Mma, cutlass::arch::OpClassSimt> {
  static bool const value = true;
};

}  // namespace pycutlass
