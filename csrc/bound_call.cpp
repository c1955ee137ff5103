#include "bound_call.h"

#include "launch.h"
#include "served_call.h"

namespace py = pybind11;

namespace pycutlass {
namespace {

Call& call_of(PyObject* capsule) { return *static_cast<Call*>(PyCapsule_GetPointer(capsule, nullptr)); }

PyObject* run(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) {
  if (count > 1) return PyErr_Format(PyExc_TypeError, "run takes a stream or nothing, got %zd arguments", count);
  return guarded([&]() -> PyObject* {
    call_of(capsule).run(count ? arguments[0] : Py_None);
    return py::none().release().ptr();
  });
}

PyObject* update(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    bool const fits = call_of(capsule).update(arguments, static_cast<size_t>(count));
    return py::bool_(fits).release().ptr();
  });
}

py::object bind(PyMethodDef& definition, py::object call) {
  auto release_call = [](PyObject* capsule) { Py_XDECREF(static_cast<PyObject*>(PyCapsule_GetContext(capsule))); };
  auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(call.cast<Call*>(), nullptr, release_call));
  if (!capsule || PyCapsule_SetContext(capsule.ptr(), call.ptr()) != 0) throw py::error_already_set();
  call.release();  // to the capsule
  auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&definition, capsule.ptr()));
  if (!function) throw py::error_already_set();
  return function;
}

/// A definition in the form that Python keeps functions of all signatures in.
PyMethodDef define(char const* name, PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t), char const* doc) {
  auto* erased = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
  return {name, erased, METH_FASTCALL, doc};
}

}  // namespace

py::object bound_run(py::object call) {
  static PyMethodDef definition = define("run", run, "Launch on a stream, or on the current one.");
  return bind(definition, std::move(call));
}

py::object bound_update(py::object call) {
  static PyMethodDef definition = define(
      "update", update, "Take tensors of the remembered forms, A, B, C, D and further ones; False changes nothing.");
  return bind(definition, std::move(call));
}

}  // namespace pycutlass
