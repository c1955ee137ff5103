// Extents and strides of tensors, which may have no memory, and so are any integers.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <vector>

#include "wide.h"

namespace pycutlass {

struct Dimension {
  Wide extent, step;

  bool operator==(Dimension const& other) const { return extent == other.extent && step == other.step; }
};

using Dimensions = std::vector<Dimension>;

/// Reads an integer. What no memory could have is as good as the largest that is told apart.
Wide read_wide(pybind11::handle given);
pybind11::int_ as_python(Wide value);
/// The dimensions of a tensor; nothing of an address alone.
std::optional<Dimensions> read_dimensions(pybind11::object const& shape, pybind11::object const& strides);

}  // namespace pycutlass
