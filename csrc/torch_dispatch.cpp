#include "torch_dispatch.h"

#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <utility>

namespace py = pybind11;

namespace pycutlass {
namespace {

/// Calls `body` within a context manager of Python's.
template <typename Body>
auto within(py::object const& context, Body body) {
  context.attr("__enter__")();
  auto const result = body();
  context.attr("__exit__")(py::none(), py::none(), py::none());
  return result;
}

template <typename Function>
bool look_up(void* library, char const* name, Function& function) {
  function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
  return function != nullptr;
}

}  // namespace

bool TorchDispatch::is_usual() {
  if (!found_ || function_modes_() || has_callbacks_() || may_be_dual()) return false;
  Keys const now = keys();
  return now == Keys{} || now == in_inference_mode_;
}

bool TorchDispatch::may_be_dual() {
  static PyObject* const name = PyUnicode_InternFromString("_current_level");
  PyObject* const level = PyDict_GetItem(forward_mode_, name);  // -1 outside of all
  return !level || !PyLong_CheckExact(level) || PyLong_AsLong(level) >= 0;
}

TorchDispatch::Keys TorchDispatch::keys() {
  static thread_local void const* const there = dlsym(library_, "_ZN3c104impl26raw_local_dispatch_key_setE");
  Keys found{~uint64_t{0}, ~uint64_t{0}};  // unlike any that is usual
  if (there) std::memcpy(&found, there, sizeof found);
  return found;
}

/// In a thread of its own, as TorchImpl::search, since modes may be on in this one. That thread imports nothing: who
/// imports us waits for it, and may have the lock of a module.
bool TorchDispatch::find() {
  if (found_) return true;
  library_ = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  bool const has_all = library_ && look_up(torch, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", function_modes_) &&
                       look_up(torch, "_ZN2at12hasCallbacksEv", has_callbacks_);
  if (!has_all) return false;
  auto is_found = std::make_shared<bool>(false);
  py::object const module = py::module_::import("torch");
  py::object const forward_mode = module.attr("autograd").attr("forward_ad").attr("__dict__");
  forward_mode_ = py::object(forward_mode).release().ptr();  // which lives as long as torch
  if (!PyDict_CheckExact(forward_mode_) || may_be_dual()) return false;
  py::cpp_function const look([is_found, module] {
    try {
      *is_found = is_there(module);
    } catch (py::error_already_set const&) {  // not this torch
    }
  });
  py::object const thread = py::module_::import("threading").attr("Thread")(py::arg("target") = look);
  try {
    thread.attr("start")();
    thread.attr("join")();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;  // no more threads: the dispatcher is called each time
  }
  return found_ = *is_found;
}

/// Whether what is read changes as it should where keys are added and left out.
bool TorchDispatch::is_there(py::object const& torch) {
  py::object const c = torch.attr("_C"), key = c.attr("DispatchKey").attr("FuncTorchDynamicLayerFrontMode");
  py::object const set = c.attr("DispatchKeySet")(key);
  uint64_t const bit = set.attr("raw_repr")().cast<uint64_t>();
  if (!(keys() == Keys{})) return false;
  Keys const added = within(c.attr("_IncludeDispatchKeyGuard")(key), keys);
  Keys const left_out = within(c.attr("_ExcludeDispatchKeyGuard")(set), keys);
  in_inference_mode_ = within(torch.attr("inference_mode")(), keys);
  return added == Keys{bit, 0} && left_out == Keys{0, bit} && keys() == Keys{} && !function_modes_();
}

}  // namespace pycutlass
