#include "torch_tensor.h"

#include <dlfcn.h>

#include <cstring>
#include <type_traits>

#include "bindings.h"

namespace py = pybind11;

namespace pycutlass {

TorchReader::TorchReader() {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);  // the one that is there, where there is one
  if (!library) return;
  auto find = [library](auto& function, char const* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  complete_ = find(data_, "aoti_torch_get_data_ptr") && find(rank_, "aoti_torch_get_dim") &&
              find(sizes_, "aoti_torch_get_sizes") && find(strides_, "aoti_torch_get_strides") &&
              find(dtype_, "aoti_torch_get_dtype") && find(device_type_, "aoti_torch_get_device_type") &&
              find(device_index_, "aoti_torch_get_device_index");
  find(requires_grad_, "_ZNK3c1010TensorImpl13requires_gradEv");
  find(tangent_, "_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE");
  undefined_ = dlsym(library, "_ZN3c1019UndefinedTensorImpl10_singletonE");
  find(is_inference_, "_ZN2at6native12is_inferenceERKNS_6TensorE");
  find(is_view_, "_ZNK2at10TensorBase7is_viewEv");
  find(base_, "_ZNK2at10TensorBase5_baseEv");
  find(bump_version_, "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE");
}

TorchReader const* TorchReader::for_type_of(py::handle tensor) {
  if (!py::hasattr(tensor, "_cdata")) return nullptr;
  static TorchReader const reader;  // with a tensor of torch in hand, so that torch has been loaded
  known_ = &reader;
  if (!reader.complete_) return nullptr;
  size_t const needed = sizeof(PyObject) + sizeof(uintptr_t);
  if (static_cast<size_t>(Py_TYPE(tensor.ptr())->tp_basicsize) < needed) return nullptr;
  // A tensor tells the address of its implementation.
  return TorchImpl(tensor).address() == tensor.attr("_cdata").cast<uintptr_t>() ? &reader : nullptr;
}

TorchPlace TorchReader::ask_place(py::handle tensor) {
  py::object const storage = tensor.attr("untyped_storage")();
  return {tensor.attr("_cdata").cast<uintptr_t>(), storage.attr("_cdata").cast<uintptr_t>(),
          storage.attr("data_ptr")().cast<uintptr_t>(), storage.attr("nbytes")().cast<int64_t>(),
          tensor.attr("storage_offset")().cast<int64_t>()};
}

bool TorchReader::requires_grad(py::handle tensor) const {
  if (TorchImpl::found() && !TorchImpl(tensor).has_autograd()) return false;
  if (!requires_grad_) return tensor.attr("requires_grad").cast<bool>();
  return requires_grad_(reinterpret_cast<void const*>(TorchImpl(tensor).address()));
}

bool TorchReader::has_tangent(py::handle tensor) const {
  if (TorchImpl::found() && !TorchImpl(tensor).has_autograd()) return false;
  if (!tangent_ || !undefined_) return has_tangent_by_python(tensor);
  auto const* const impl = reinterpret_cast<void const*>(TorchImpl(tensor).address());
  return *tangent_(impl, 0, TorchImpl::handle_of(tensor)) != undefined_;  // torch has one level, 0
}

bool is_followed_now(py::handle tensor) {
  if (!TorchImpl(tensor).has_autograd()) return false;
  if (TorchReader::known().has_tangent(tensor)) return true;  // which no_grad does not turn off
  if (!TorchReader::known().requires_grad(tensor)) return false;
  py::object const is_enabled = imported("torch", "is_grad_enabled");
  return !is_enabled || is_enabled().ptr() != Py_False;
}

bool has_tangent_by_python(py::handle tensor) {
  return py::module_::import("pycutlass.tensor.tangents").attr("has_tangent")(tensor).cast<bool>();
}

uintptr_t TorchReader::base_of(py::handle tensor) const {
  void const* const handle = TorchImpl::handle_of(tensor);
  if (!is_view_ || !base_) {
    py::object const base = tensor.attr("_base");
    return base.is_none() ? 0 : base.attr("_cdata").cast<uintptr_t>();
  }
  if (!is_view_(handle)) return 0;
  uintptr_t impl = 0;
  std::memcpy(&impl, base_(handle), sizeof impl);
  return impl;
}

bool TorchReader::is_inference(py::handle tensor) const {
  return is_inference_ ? is_inference_(TorchImpl::handle_of(tensor)) : tensor.attr("is_inference")().cast<bool>();
}

bool TorchReader::read(py::handle tensor, View& view) const {
  Handle const handle = TorchImpl::handle_of(tensor);
  return !(rank_(handle, &view.rank) || dtype_(handle, &view.dtype) || device_type_(handle, &view.device_type) ||
           device_index_(handle, &view.device_index) || sizes_(handle, &view.sizes) ||
           strides_(handle, &view.strides) || data_(handle, &view.data));
}

}  // namespace pycutlass
