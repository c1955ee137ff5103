// Python integers of any size, turned into C++ integers with an error that says what did not fit.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace py = pybind11;

// A value as messages show it.
inline std::string shown(py::handle value) {
  return py::module_::import("pycutlass.calls").attr("shown")(value).cast<std::string>();
}

// The name of an object's type, without its module; nothing that a class of whoever defines is asked.
inline std::string type_name(py::handle object) {
  std::string const name = Py_TYPE(object.ptr())->tp_name;
  return name.substr(name.rfind('.') + 1);
}

// Throws ArgumentTypeError for what an object of whoever has just raised, which becomes the cause: `what` says what it
// was asked for, `remedy` ends the message. Ctrl-C stays what it is.
[[noreturn]] inline void raise_asked(py::handle source, std::string const& what, std::string const& remedy = {}) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
  py::error_already_set error;
  std::string const said = type_name(source) + " raised an exception where its " + what + " was asked for" + remedy;
  py::raise_from(error, py::module_::import("pycutlass.errors").attr("ArgumentTypeError").ptr(), said.c_str());
  throw py::error_already_set();
}

// Anything with __index__: int, numpy.int64, ... but no float and no truth value.
struct AnyInt {
  py::object object;
};

// Reads an integer; false where the object is none. What its own __index__ raises is the cause of an ArgumentTypeError.
inline bool read_integer(py::handle source, AnyInt& value) {
  if (!source || PyBool_Check(source.ptr()) || !PyIndex_Check(source.ptr())) return false;
  value.object = py::reinterpret_steal<py::object>(PyNumber_Index(source.ptr()));
  if (value.object) return true;
  if (PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    return false;
  }
  raise_asked(source, "integer");
}

// Reads what is a Python int itself, of 64 bits at most.
inline bool read_plain_integer(py::handle source, std::int64_t& value) {
  if (!PyLong_CheckExact(source.ptr())) return false;
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(source.ptr(), &overflow);
  return overflow == 0;
}

// A real number of any library: complex ones and text are none.
struct AnyReal {
  double value;
};

namespace pybind11::detail {
template <>
struct type_caster<AnyReal> {
  PYBIND11_TYPE_CASTER(AnyReal, const_name("float"));
  bool load(handle source, bool) {
    if (!source) return false;
    auto number = reinterpret_borrow<object>(source);
    if (!PyFloat_CheckExact(source.ptr())) number = module_::import("pycutlass.integers").attr("real")(source);
    if (number.is_none()) return false;
    value.value = PyFloat_AS_DOUBLE(number.ptr());
    return true;
  }
};

template <>
struct type_caster<AnyInt> {
  PYBIND11_TYPE_CASTER(AnyInt, const_name("int"));
  bool load(handle source, bool) { return read_integer(source, value); }
};
}  // namespace pybind11::detail

// Returns what a property is set to as an integer, or raises TypeError naming it.
inline AnyInt integer(py::handle value, std::string_view owner, std::string_view field = {}) {
  AnyInt number;
  if (!read_integer(value, number)) {
    throw py::type_error(std::string(owner) + (field.empty() ? "" : ": ") + std::string(field) +
                         " must be an integer, got " + shown(value));
  }
  return number;
}

// Returns the integer, or raises ValueError naming it by its class or function and, where there is one, its field.
template <typename T>
T checked(AnyInt const& number, std::string_view owner, std::string_view field = {},
          T least = std::numeric_limits<T>::lowest(), T greatest = std::numeric_limits<T>::max()) {
  static_assert(sizeof(T) < sizeof(long long), "compared as long long");
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(number.object.ptr(), &overflow);
  long long const most = greatest;
  if (overflow || value < static_cast<long long>(least) || value > most) {
    throw py::value_error(std::string(owner) + (field.empty() ? "" : ": ") + std::string(field) + " must be from " +
                          std::to_string(least) + " to " + std::to_string(most) + "; got " + shown(number.object));
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
