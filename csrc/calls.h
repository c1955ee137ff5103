// Calls that the extension refuses raise the exceptions of pycutlass.errors.
#pragma once

#include <pybind11/pybind11.h>

namespace py = pybind11;

/// Makes every function, method and property of the module raise our exceptions. Called when all of them are bound.
void guard_calls(py::module_& m);

/// Lets no class of the module change any more, and no object its class: pybind11 would read its value as what it is
/// not.
void seal_classes(py::module_ const& m);

/// The names of keywords as Python's own text: a class that is derived from it may raise where it is compared.
py::object plain_names(PyObject* keywords);

/// Turns the TypeError, ValueError or OverflowError that is set into ArgumentTypeError or ArgumentError.
void raise_ours(PyObject* const* arguments = nullptr, Py_ssize_t count = 0, PyObject* keywords = nullptr);
