#include "calls.h"

#include <set>
#include <string_view>
#include <utility>

namespace {

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

// pybind11's own function, which every function that it makes calls.
Function dispatch = nullptr;

// The type of pybind11's classes, and how it makes an object without a value.
PyTypeObject* metaclass = nullptr;
newfunc make_object = nullptr;

// Whether it is an object of pybind11's that `__new__` alone has made: it has no value, and pybind11 would take memory
// that nobody has written for one.
bool is_unfinished(PyObject* object) {
  if (Py_TYPE(Py_TYPE(object)) != metaclass) return false;
  auto const* const instance = reinterpret_cast<py::detail::instance const*>(object);
  return instance->simple_layout && !instance->simple_value_holder[0];
}

// Makes an object; pybind11's own function throws where a class has no value, as the base of its classes has none.
PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  try {
    return make_object(type, arguments, keywords);
  } catch (std::exception const&) {
    return PyErr_Format(PyExc_TypeError, "cannot create '%s' instances", type->tp_name);
  }
}

// Takes the place of `dispatch`: a call that succeeds is not looked at.
PyObject* guarded_constructor(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  py::object const names = plain_names(keywords);
  PyObject* result = dispatch(self, arguments, count, names.ptr());
  if (!result) raise_ours(arguments, count + (keywords ? PyTuple_GET_SIZE(keywords) : 0), names.ptr());
  return result;
}

// Takes the place of `dispatch` for whatever needs objects that have a value.
PyObject* guarded(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  Py_ssize_t const all = count + (keywords ? PyTuple_GET_SIZE(keywords) : 0);
  for (Py_ssize_t i = 0; i < all; ++i) {
    if (!is_unfinished(arguments[i])) continue;
    PyErr_Format(PyExc_TypeError, "%s was never made: call %s(...) and use the result", Py_TYPE(arguments[i])->tp_name,
                 Py_TYPE(arguments[i])->tp_name);
    raise_ours();
    return nullptr;
  }
  return guarded_constructor(self, arguments, count, keywords);
}

void guard(py::handle object) {
  PyObject* function = object.ptr();
  if (PyInstanceMethod_Check(function)) function = PyInstanceMethod_GET_FUNCTION(function);
  if (!PyCFunction_Check(function)) return;
  PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  if (definition->ml_flags != (METH_FASTCALL | METH_KEYWORDS)) return;  // of Python itself
  auto present = reinterpret_cast<Function>(reinterpret_cast<void (*)()>(definition->ml_meth));
  if (present == guarded || present == guarded_constructor) return;
  if (!dispatch) dispatch = present;
  if (present != dispatch) throw std::logic_error("pybind11 has more than one dispatcher");
  std::string_view const name = definition->ml_name;
  bool const makes = name == "__init__" || name == "__setstate__";
  definition->ml_meth =
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(makes ? guarded_constructor : guarded));
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
  py::detail::with_internals([](py::detail::internals& internals) {
    metaclass = internals.default_metaclass;
    auto* const base = reinterpret_cast<PyTypeObject*>(internals.instance_base);
    if (base->tp_new != make) make_object = std::exchange(base->tp_new, make);
  });
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

void seal_classes(py::module_ const& m) {
  for (auto [name, member] : py::dict(m.attr("__dict__"))) {
    if (PyType_Check(member.ptr()) && Py_TYPE(member.ptr()) == metaclass) {
      reinterpret_cast<PyTypeObject*>(member.ptr())->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
    }
  }
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
