#include "fast_methods.h"

#include <structmember.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "bindings.h"
#include "calls.h"
#include "known_calls.h"
#include "known_products.h"
#include "served_call.h"
#include "torch_dispatch.h"

namespace {

struct Method;

/// Serves a call of METH_FASTCALL | METH_KEYWORDS; null without an exception where it is not the usual one.
using Serve = PyObject* (*)(Method const&, PyObject* const*, Py_ssize_t, PyObject*);

struct Method {
  PyObject_HEAD vectorcallfunc call;
  PyObject* function;  // what stands for it in Python, and takes what is not served
  PyObject* direct;    // what is called first, or has what is known; of an operator, a tuple
  PyObject* earlier;   // of a checked call, a tuple of keywords that `direct` is not called with; of an operator, what
                       // is called where nothing is known
  PyObject* owner;     // the class that it is a method of; null where it is a function
  PyObject* references;  // weak ones to it, as to functions
  Serve serve;
  bool is_traced;    // whether torch.compile may look into what it calls
  bool is_operator;  // of torch, which has nothing in Python that it stands for
};

Method& method_of(PyObject* self) { return *reinterpret_cast<Method*>(self); }

PyObject* interned(char const* name) { return PyUnicode_InternFromString(name); }

/// Whether it is called as a method is, with an object of its class first.
bool is_bound(Method const& method, PyObject* const* given, Py_ssize_t count) {
  auto* const owner = reinterpret_cast<PyTypeObject*>(method.owner);
  return !owner || (count && PyObject_TypeCheck(given[0], owner));
}

/// Where arguments have what is looked at in each launch: in slots of their class, which lie at the same place in every
/// object. The class is made once, and lives as long as the process.
struct {
  PyTypeObject* type = nullptr;
  Py_ssize_t operation = 0, run = 0, try_exchange = 0;
} slots;

/// What a slot holds, null where it is empty. Whoever calls it keeps it alive: others may fill the slot anew meanwhile.
py::object in_slot(PyObject* arguments, Py_ssize_t offset) {
  return py::reinterpret_borrow<py::object>(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(arguments) + offset));
}

bool are_arguments(PyObject* object) { return slots.type && PyObject_TypeCheck(object, slots.type); }

Py_ssize_t offset_of(py::handle type, char const* name) {
  py::object const slot = type.attr(name);
  if (Py_TYPE(slot.ptr()) != &PyMemberDescr_Type) throw py::type_error(std::string(name) + " is no slot");
  return reinterpret_cast<PyMemberDescrObject*>(slot.ptr())->d_member->offset;
}

void set_arguments_type(py::type const& type) {
  slots = {nullptr, offset_of(type, "operation"), offset_of(type, "_run"), offset_of(type, "_try_exchange")};
  slots.type = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());
}

/// operation.run(arguments) and operation.run(arguments, stream), of arguments that were made for that very operation.
PyObject* serve_run(Method const&, PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
  if (keywords || count < 2 || count > 3 || !are_arguments(given[1])) return nullptr;
  if (in_slot(given[1], slots.operation).ptr() != given[0]) return nullptr;
  py::object const launch = in_slot(given[1], slots.run);
  if (!launch) return nullptr;  // a reduction finds out first what it is to read
  PyObject* stream = count == 3 ? given[2] : Py_None;
  return PyObject_Vectorcall(launch.ptr(), &stream, 1, nullptr);
}

/// arguments.update(A=..., D=...) and the like, of tensors that simply take the place of others.
PyObject* serve_update(Method const&, PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
  static std::array<PyObject*, 4> const names = {interned("A"), interned("B"), interned("C"), interned("D")};
  static PyObject* const present = interned("_given");
  if (count != 1 || !keywords || !are_arguments(given[0])) return nullptr;
  std::array<PyObject*, 4> tensors = {Py_None, Py_None, Py_None, Py_None};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i) {
    auto const* found = std::find(names.begin(), names.end(), PyTuple_GET_ITEM(keywords, i));
    if (found == names.end()) return nullptr;
    tensors[static_cast<size_t>(found - names.begin())] = given[1 + i];
  }
  py::object const exchange = in_slot(given[0], slots.try_exchange);
  auto const kept = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(given[0], present));
  if (!kept) PyErr_Clear();  // the function asks again
  if (!exchange || !kept || !PyDict_CheckExact(kept.ptr())) return nullptr;
  auto const fits =
      py::reinterpret_steal<py::object>(PyObject_Vectorcall(exchange.ptr(), tensors.data(), tensors.size(), nullptr));
  if (fits.ptr() != Py_True) return nullptr;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] != Py_None && PyDict_SetItem(kept.ptr(), names[i], tensors[i]) != 0) return nullptr;
  }
  return py::none().release().ptr();
}

/// plan.run(a, b, out=...) of tensors like those of an earlier run.
PyObject* serve_plan_run(Method const& method, PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
  if (!is_bound(method, given, count)) return nullptr;
  return pycutlass::guarded([&] { return pycutlass::serve_plan(given, count, keywords); });
}

/// matmul(a, b, ...) of tensors and options like those of an earlier product.
PyObject* serve_product(Method const& method, PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
  return pycutlass::guarded(
      [&] { return py::handle(method.direct).cast<pycutlass::KnownProducts&>().serve(given, count, keywords); });
}

/// What torch's dispatcher calls for an operator, of whose calls some are known.
PyObject* serve_kernel(Method const& method, PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
  return pycutlass::guarded([&] {
    py::object const names = plain_names(keywords);
    return py::handle(method.direct).cast<pycutlass::KnownCalls&>().serve(given, count, names.ptr());
  });
}

/// An operator of torch, of whose calls some are known.
PyObject* serve_operator(Method const& method, PyObject* const* given, Py_ssize_t count, PyObject* given_keywords) {
  if (!pycutlass::TorchDispatch::is_usual()) return nullptr;
  return pycutlass::guarded([&]() -> PyObject* {
    py::object const names = plain_names(given_keywords);
    for (py::handle each : py::reinterpret_borrow<py::tuple>(method.direct)) {
      if (PyObject* const made = each.cast<pycutlass::KnownCalls&>().serve(given, count, names.ptr())) return made;
    }
    return PyObject_Vectorcall(method.earlier, given, static_cast<size_t>(count), names.ptr());
  });
}

/// A call that fits the parameters of a function. One that does not has entered no frame, so its exception comes
/// without a traceback.
PyObject* serve_checked(Method const& method, PyObject* const* given, Py_ssize_t count, PyObject* given_keywords) {
  if (!is_bound(method, given, count)) return nullptr;
  py::object const names = plain_names(given_keywords);
  PyObject* const keywords = names.ptr();
  for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); ++i) {
    int const is_earlier = PySequence_Contains(method.earlier, PyTuple_GET_ITEM(keywords, i));
    if (is_earlier) return nullptr;
  }
  PyObject* result = PyObject_Vectorcall(method.direct, given, static_cast<size_t>(count), keywords);
  if (result || !PyErr_ExceptionMatches(PyExc_TypeError)) return result;
  py::error_scope error;  // which raises it again
  if (!error.trace) {
    Py_CLEAR(error.type);
    Py_CLEAR(error.value);
  }
  return nullptr;
}

/// Raises for a method that was called without an object of its class.
PyObject* refuse_unbound(Method const& method, PyObject* const* given, Py_ssize_t count) {
  try {
    py::object const first = count ? py::reinterpret_borrow<py::object>(given[0]) : py::none();
    py::object const error = py::module_::import("pycutlass.calls")
                                 .attr("unbound")(py::handle(method.function), py::handle(method.owner), first);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
  return nullptr;
}

PyObject* call_now(PyObject* self, PyObject* const* given, size_t count, PyObject* keywords) {
  Method const& method = method_of(self);
  PyObject* result = method.serve(method, given, PyVectorcall_NARGS(count), keywords);
  if (result || PyErr_Occurred()) return result;
  if (!is_bound(method, given, PyVectorcall_NARGS(count))) {
    return refuse_unbound(method, given, PyVectorcall_NARGS(count));
  }
  return PyObject_Vectorcall(method.function, given, count, plain_names(keywords).ptr());
}

/// Whether something like torch.compile takes the frames of Python before they run.
bool frames_are_taken() {
  return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) != _PyEval_EvalFrameDefault;
}

/// What torch.compile has of the functions that it calls, as `torch.compiler.disable` turns it off for a call. It would
/// compile what chooses and launches kernels, frame by frame, and take methods that are not written in Python for
/// functions.
class Untraced {
 public:
  Untraced() {
    py::object const dynamo = imported("torch._C._dynamo.eval_frame", "set_eval_frame");
    if (!dynamo) return;
    before_ = dynamo(py::none());
    set_ = dynamo;
  }
  ~Untraced() {
    if (!set_) return;
    py::error_scope const kept;
    try {
      set_(before_);
    } catch (py::error_already_set& failed) {
      failed.discard_as_unraisable("what torch.compile traces");
    }
  }
  Untraced(Untraced const&) = delete;
  Untraced& operator=(Untraced const&) = delete;

 private:
  py::object set_, before_;
};

PyObject* call(PyObject* self, PyObject* const* given, size_t count, PyObject* keywords) {
  if (method_of(self).is_traced || !frames_are_taken()) return call_now(self, given, count, keywords);
  return pycutlass::guarded([&] {
    Untraced const untraced;
    return call_now(self, given, count, keywords);
  });
}

PyObject* bind_to(PyObject* self, PyObject* instance, PyObject*) {
  if (instance) return PyMethod_New(self, instance);
  Py_INCREF(self);
  return self;
}

/// What is asked of the method, by help, inspect and whoever reads annotations, is asked of the function.
PyObject* attribute(PyObject* self, PyObject* name) {
  for (char const* own : {"__class__", "__reduce_ex__", "__set_name__"}) {
    if (PyUnicode_CompareWithASCIIString(name, own) == 0) return PyObject_GenericGetAttr(self, name);
  }
  PyObject* const function = method_of(self).function;
  bool const is_of_function = method_of(self).is_operator || PyUnicode_CompareWithASCIIString(name, "__wrapped__") != 0;
  if (is_of_function) return PyObject_GetAttr(function, name);
  Py_INCREF(function);
  return function;
}

/// For pydoc, which looks for a docstring past what `attribute` answers.
PyObject* docstring(PyObject* self, void*) { return PyObject_GetAttrString(method_of(self).function, "__doc__"); }

PyObject* show(PyObject* self) { return PyObject_Repr(method_of(self).function); }

/// That of the function, whose place it takes in dictionaries as well.
Py_hash_t hash(PyObject* self) { return PyObject_Hash(method_of(self).function); }

/// Copied and pickled by its name, as functions are.
PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(method_of(self).function, "__qualname__"); }

/// Whether a function was written in a class under that name: others are attributes of classes of users, as functions
/// may be.
bool is_method_of(PyObject* function, PyObject* owner, PyObject* name) {
  auto const called = py::reinterpret_steal<py::object>(PyObject_GetAttrString(function, "__qualname__"));
  auto const of = py::reinterpret_steal<py::object>(PyObject_GetAttrString(owner, "__qualname__"));
  if (!called || !of) PyErr_Clear();
  if (!called || !of || !PyUnicode_Check(called.ptr())) return false;
  auto const wanted = py::reinterpret_steal<py::object>(PyUnicode_FromFormat("%U.%U", of.ptr(), name));
  if (!wanted) PyErr_Clear();
  return wanted && PyUnicode_Compare(called.ptr(), wanted.ptr()) == 0;
}

/// Called where the method gets its name in a class, the one that it is a method of.
PyObject* set_name(PyObject* self, PyObject* arguments) {
  PyObject *owner = nullptr, *name = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!U:__set_name__", &PyType_Type, &owner, &name)) return nullptr;
  if (!is_method_of(method_of(self).function, owner, name)) return py::none().release().ptr();
  Py_INCREF(owner);
  PyObject* const before = std::exchange(method_of(self).owner, owner);
  Py_XDECREF(before);
  return py::none().release().ptr();
}

void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  if (method_of(self).references) PyObject_ClearWeakRefs(self);
  Py_XDECREF(method_of(self).function);
  Py_XDECREF(method_of(self).direct);
  Py_XDECREF(method_of(self).earlier);
  Py_XDECREF(method_of(self).owner);
  type->tp_free(self);
  Py_DECREF(type);
}

template <typename Function>
void* erased(Function function) {
  return reinterpret_cast<void*>(function);
}

PyTypeObject* method_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Method, call), READONLY, nullptr},
      {"__weaklistoffset__", T_PYSSIZET, offsetof(Method, references), READONLY, nullptr},
      {},
  };
  static PyMethodDef methods[] = {
      {"__reduce_ex__", reduce, METH_O, nullptr}, {"__set_name__", set_name, METH_VARARGS, nullptr}, {}};
  static PyGetSetDef properties[] = {{"__doc__", docstring, nullptr, nullptr, nullptr}, {}};
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, erased(destroy)},   {Py_tp_call, erased(PyVectorcall_Call)},
      {Py_tp_descr_get, erased(bind_to)}, {Py_tp_getattro, erased(attribute)},
      {Py_tp_repr, erased(show)},         {Py_tp_hash, erased(hash)},
      {Py_tp_members, members},           {Py_tp_methods, methods},
      {Py_tp_getset, properties},         {},
  };
  // As a method descriptor it is called with the instance, and nothing is made to bind the two. One that is made from
  // Python would have no function. Of a type that could change, Python would look for the method anew at each call.
  static PyType_Spec spec = {"pycutlass._core.Method", sizeof(Method), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
                                 Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
                             slots};
  static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  return type;
}

py::object make(py::handle function, Serve serve, py::handle direct = {}, py::handle earlier = {}) {
  PyObject* self = method_type()->tp_alloc(method_type(), 0);
  if (!self) throw py::error_already_set();
  method_of(self).call = call;
  method_of(self).function = function.inc_ref().ptr();
  method_of(self).direct = direct.inc_ref().ptr();
  method_of(self).earlier = earlier.inc_ref().ptr();
  method_of(self).serve = serve;
  py::object const module = py::getattr(function, "__module__", py::str(""));
  method_of(self).is_traced = py::str(module).cast<std::string>().rfind("pycutlass.pytorch", 0) == 0;
  return py::reinterpret_steal<py::object>(self);
}

}  // namespace

void bind_fast_methods(py::module_& m) {
  m.def(
      "fast_run", [](py::object const& function) { return make(function, serve_run); }, py::arg("function"),
      "Operation.run, written in Python as `function`.");
  m.def(
      "fast_update", [](py::object const& function) { return make(function, serve_update); }, py::arg("function"),
      "Arguments.update, written in Python as `function`.");
  m.def(
      "fast_plan_run", [](py::object const& function) { return make(function, serve_plan_run); }, py::arg("function"),
      "Gemm.run, written in Python as `function`.");
  m.def(
      "fast_product",
      [](py::object const& function, py::object const& known) { return make(function, serve_product, known); },
      py::arg("function"), py::arg("known"), "matmul, written in Python as `function`; `known` are KnownProducts.");
  m.def(
      "served_kernel",
      [](py::object const& function, py::object const& known) { return make(function, serve_kernel, known); },
      py::arg("function"), py::arg("known"),
      "A function, such as the kernel of an operator, whose calls that are `known`, KnownCalls, are launched at once.");
  m.def(
      "served_operator",
      [](py::object const& function, py::tuple const& known, py::object const& recorded) -> py::object {
        if (!pycutlass::TorchDispatch::find()) return function;
        py::object made = make(function, serve_operator, known, recorded);
        method_of(made.ptr()).is_operator = true;
        return made;
      },
      py::arg("function"), py::arg("known"), py::arg("recorded"),
      "The operator `function` of torch, whose calls that are `known`, a tuple of KnownCalls, are launched without "
      "torch's dispatcher where it would do nothing else; `recorded` is called for others then.");
  m.def(
      "checked_call",
      [](py::object const& direct, py::object const& function, py::tuple const& earlier) {
        return make(function, serve_checked, direct, earlier);
      },
      py::arg("direct"), py::arg("function"), py::arg("earlier"),
      "The function `direct`; `function` is called instead where it cannot be, and for keywords that are `earlier`.");
  m.def("set_arguments_type", set_arguments_type, py::arg("type"),
        "Say which class has the slots that launches look at.");
}
