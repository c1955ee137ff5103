#include "calls.h"

#include <set>

namespace {

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

// pybind11's own function, which every function that it makes calls.
Function dispatch = nullptr;

// Takes the place of `dispatch`: a call that succeeds is not looked at.
PyObject* guarded(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  py::object const names = plain_names(keywords);
  PyObject* result = dispatch(self, arguments, count, names.ptr());
  if (!result) raise_ours(arguments, count + (keywords ? PyTuple_GET_SIZE(keywords) : 0), names.ptr());
  return result;
}

void guard(py::handle object) {
  PyObject* function = object.ptr();
  if (PyInstanceMethod_Check(function)) function = PyInstanceMethod_GET_FUNCTION(function);
  if (!PyCFunction_Check(function)) return;
  PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  if (definition->ml_flags != (METH_FASTCALL | METH_KEYWORDS)) return;  // of Python itself
  auto present = reinterpret_cast<Function>(reinterpret_cast<void (*)()>(definition->ml_meth));
  if (present == guarded) return;
  if (!dispatch) dispatch = present;
  if (present != dispatch) throw std::logic_error("pybind11 has more than one dispatcher");
  definition->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guarded));
}

void guard_class(py::handle cls) {
  for (auto [name, member] : py::dict(cls.attr("__dict__"))) {
    if (py::isinstance<py::staticmethod>(member)) {
      guard(member.attr("__func__"));
    } else if (PyObject_TypeCheck(member.ptr(), &PyProperty_Type)) {
      guard(member.attr("fget"));
      guard(member.attr("fset"));
    } else {
      guard(member);
    }
  }
}

}  // namespace

void guard_calls(py::module_& m) {
  py::object const enumeration = py::module_::import("enum").attr("Enum");
  for (auto [name, member] : py::dict(m.attr("__dict__"))) {
    if (!PyType_Check(member.ptr())) {
      guard(member);
    } else if (!PyObject_IsSubclass(member.ptr(), enumeration.ptr())) {
      guard_class(member);
    }
  }
}

py::object plain_names(PyObject* keywords) {
  Py_ssize_t const count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  Py_ssize_t plain = 0;
  while (plain < count && PyUnicode_CheckExact(PyTuple_GET_ITEM(keywords, plain))) ++plain;
  if (plain == count) return py::reinterpret_borrow<py::object>(keywords);
  py::tuple names(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    names[i] = py::reinterpret_steal<py::object>(PyUnicode_FromObject(PyTuple_GET_ITEM(keywords, i)));
  }
  return names;
}

void raise_ours(PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  PyObject* kind = PyErr_Occurred();
  if (kind != PyExc_TypeError && kind != PyExc_ValueError && kind != PyExc_OverflowError) return;
  py::error_already_set error;
  try {
    py::tuple given(count);
    for (Py_ssize_t i = 0; i < count; ++i) given[i] = py::handle(arguments[i]);
    py::object names = keywords ? py::reinterpret_borrow<py::object>(keywords) : py::tuple();
    py::object ours = py::module_::import("pycutlass.calls").attr("refused")(error.value(), given, names);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(ours.ptr())), ours.ptr());
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
}
