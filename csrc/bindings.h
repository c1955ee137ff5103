// What each file of the extension binds, and the little that they share.
#pragma once

#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>

#include <string>

namespace py = pybind11;

void bind_types(py::module_& m);
void bind_coords(py::module_& m);
void bind_layouts(py::module_& m);
void bind_conv(py::module_& m);
void bind_swizzle(py::module_& m);
void bind_launch(py::module_& m);
void bind_files(py::module_& m);

// Where users find the classes; pickle looks there, and repr(type) shows it.
inline constexpr char kCutlass[] = "pycutlass.cutlass";
inline constexpr char kGemm[] = "pycutlass.cutlass.gemm";
inline constexpr char kConv[] = "pycutlass.cutlass.conv";

// What enumerations are made of: as enum.Enum, with an exception of ours for what is no member.
inline constexpr char kChoice[] = "pycutlass.enums.Choice";

// Declares a class under its public module. Local to this extension, so that another one that binds CUTLASS may be
// loaded beside it.
template <typename T>
py::class_<T> public_class(py::module_& m, char const* home, char const* name, char const* doc) {
  py::class_<T> cls(m, name, py::is_final(), py::module_local(), doc);
  cls.attr("__module__") = home;
  return cls;
}

// Gives an enumeration its public name and module; `name_here` is unique in the extension, `name` in its namespace.
inline void publish_enum(py::module_& m, char const* home, char const* name_here, char const* name) {
  py::object cls = m.attr(name_here);
  cls.attr("__module__") = home;
  cls.attr("__name__") = name;
  cls.attr("__qualname__") = name;
}

// A part of a module that has been imported; null where it has not, or lacks it, as while another thread imports it.
// None is imported for that.
inline py::object imported(char const* name, char const* part) {
  auto const key = py::str(name);
  auto const module = py::reinterpret_steal<py::object>(PyImport_GetModule(key.ptr()));
  auto found = py::reinterpret_steal<py::object>(module ? PyObject_GetAttrString(module.ptr(), part) : nullptr);
  if (!found && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();  // Ctrl-C
    PyErr_Clear();
  }
  return found;
}
