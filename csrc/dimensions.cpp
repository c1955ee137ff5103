#include "dimensions.h"

#include <cstdint>

#include "integers.h"

namespace pycutlass {

Wide read_wide(py::handle given) {
  Wide const most = Wide(1) << 64;
  AnyInt number;
  if (!read_integer(given, number)) throw py::type_error("an operand's extents, strides and address are integers");
  int overflow = 0;
  int64_t const value = PyLong_AsLongLongAndOverflow(number.object.ptr(), &overflow);
  if (!overflow) return value;
  if (overflow < 0) return -most;
  uint64_t const unsigned_value = PyLong_AsUnsignedLongLong(number.object.ptr());
  if (!PyErr_Occurred()) return unsigned_value;
  PyErr_Clear();
  return most;
}

py::int_ as_python(Wide value) {
  auto const high = static_cast<int64_t>(value >> 32);
  return py::reinterpret_steal<py::int_>(
      (py::int_(high).attr("__lshift__")(32) | py::int_(static_cast<uint32_t>(value))).release());
}

std::optional<Dimensions> read_dimensions(py::object const& shape, py::object const& strides) {
  if (shape.is_none() || strides.is_none()) return std::nullopt;
  Dimensions dimensions;
  for (py::handle extent : shape) dimensions.push_back({read_wide(extent), 0});
  size_t axis = 0;
  for (py::handle step : strides) dimensions.at(axis++).step = read_wide(step);
  return dimensions;
}

}  // namespace pycutlass
