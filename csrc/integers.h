// Python integers of any size, turned into C++ integers with an error that says what did not fit.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace py = pybind11;

// Anything with __index__: int, numpy.int64, ... but not a float.
struct AnyInt {
  py::object object;
};

namespace pybind11::detail {
template <>
struct type_caster<AnyInt> {
  PYBIND11_TYPE_CASTER(AnyInt, const_name("int"));
  bool load(handle source, bool) {
    if (!source || !PyIndex_Check(source.ptr())) return false;
    value.object = reinterpret_steal<py::object>(PyNumber_Index(source.ptr()));
    if (!value.object) throw error_already_set();
    return true;
  }
};
}  // namespace pybind11::detail

// Returns the integer, or raises ValueError naming it by its class or function and, where there is one, its field.
template <typename T>
T checked(AnyInt const& number, std::string_view owner, std::string_view field = {},
          T least = std::numeric_limits<T>::lowest()) {
  static_assert(sizeof(T) < sizeof(long long), "compared as long long");
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(number.object.ptr(), &overflow);
  constexpr long long most = std::numeric_limits<T>::max();
  if (overflow || value < static_cast<long long>(least) || value > most) {
    throw py::value_error(std::string(owner) + (field.empty() ? "" : ": ") + std::string(field) + " must be from " +
                          std::to_string(least) + " to " + std::to_string(most) + "; got " +
                          std::string(py::str(number.object)));
  }
  return static_cast<T>(value);
}

// Returns the 64-bit result of an extent computation as CUTLASS's 32-bit index, or raises ValueError.
inline std::int32_t fits_index(std::int64_t value, std::string const& what) {
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) {
    throw py::value_error(what + " is " + std::to_string(value) +
                          ", which CUTLASS's 32-bit index cannot hold; split the problem into smaller ones");
  }
  return static_cast<std::int32_t>(value);
}
