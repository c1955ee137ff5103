// The coordinate classes as Python sees them.
#pragma once

#include <array>

#include "bindings.h"
#include "cutlass/coord.h"
#include "cutlass/gemm_coord.h"
#include "cutlass/matrix_coord.h"
#include "cutlass/tensor_coord.h"
#include "integers.h"

// CUTLASS describes the strides of a 4-D tensor by a Coord<3>; Python calls it Tensor3DCoord.
using Tensor3DCoord = cutlass::Coord<3>;

template <typename C, std::size_t... I>
py::tuple coord_tuple(C const& coord, std::index_sequence<I...>) {
  return py::make_tuple(coord[I]...);
}

template <typename C>
py::tuple coord_tuple(C const& coord) {
  return coord_tuple(coord, std::make_index_sequence<C::kRank>());
}
