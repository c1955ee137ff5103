// Calls of Python functions that are served in C++: their arguments at the places of their parameters, and exceptions
// of C++ as Python's.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "calls.h"

namespace pycutlass {

/// Names of parameters, as the keywords of calls have them.
template <typename... Names>
std::array<PyObject*, sizeof...(Names)> interned(Names... names) {
  return {PyUnicode_InternFromString(names)...};
}

/// Puts the arguments of a call of METH_FASTCALL | METH_KEYWORDS at the places of their parameters, of which the first
/// `positional` may be given without a name. False where a call does not fit, or has keywords that are no constants of
/// a program: whoever can explain decides then.
template <size_t kCount>
bool arrange(std::array<PyObject*, kCount> const& names, PyObject* const* given, Py_ssize_t count, size_t positional,
             PyObject* keywords, std::array<PyObject*, kCount>& values) {
  if (count < 0 || static_cast<size_t>(count) > positional) return false;
  std::copy_n(given, count, values.begin());
  for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); ++i) {
    auto const* const found = std::find(names.begin(), names.end(), PyTuple_GET_ITEM(keywords, i));
    if (found == names.end() || found - names.begin() < count) return false;
    values[static_cast<size_t>(found - names.begin())] = given[count + i];
  }
  return true;
}

/// Whether two values are the same object, or numbers of one type and value. 0.0 and -0.0 are two, and a NaN is one.
inline bool is_same(pybind11::handle left, pybind11::handle right) {
  if (left.is(right)) return true;
  if (PyFloat_CheckExact(left.ptr()) && PyFloat_CheckExact(right.ptr())) {
    double const x = PyFloat_AS_DOUBLE(left.ptr()), y = PyFloat_AS_DOUBLE(right.ptr());
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  bool const texts = PyUnicode_CheckExact(left.ptr()) && PyUnicode_CheckExact(right.ptr());
  bool const integers = PyLong_CheckExact(left.ptr()) && PyLong_CheckExact(right.ptr());
  return (texts || integers) && PyObject_RichCompareBool(left.ptr(), right.ptr(), Py_EQ) == 1;
}

/// What `body` returns, or null and a Python exception where it throws.
template <typename Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (pybind11::builtin_exception const& error) {
    error.set_error();
    raise_ours();
  } catch (std::bad_alloc const&) {
    PyErr_NoMemory();
  } catch (std::exception const& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace pycutlass
