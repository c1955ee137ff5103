// Tensor maps of CUTLASS's host code. A launch of other tensors of the same form has maps that differ in their address
// alone, and the driver exchanges that more quickly than it makes a map.
#pragma once

#include <cuda.h>

namespace pycutlass {

/// What the driver said of the last tensor map that it refused, since it was last cleared: CUTLASS prints that, and
/// goes on without the map.
extern thread_local CUresult refused_map;

/// cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col as CUTLASS asks for them; null for another symbol.
void* tensor_map_encoder(char const* symbol);

}  // namespace pycutlass
