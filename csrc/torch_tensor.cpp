#include "torch_tensor.h"

#include <dlfcn.h>

#include <cstring>
#include <type_traits>

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
}

/// Since torch 2.11 a Python tensor has its at::Tensor behind the head that all Python objects have.
TorchReader::Handle TorchReader::handle_of(py::handle tensor) {
  return reinterpret_cast<char*>(tensor.ptr()) + sizeof(PyObject);
}

TorchReader const* TorchReader::for_type_of(py::handle tensor) {
  if (!py::hasattr(tensor, "_cdata")) return nullptr;
  static TorchReader const reader;  // with a tensor of torch in hand, so that torch has been loaded
  if (!reader.complete_) return nullptr;
  size_t const needed = sizeof(PyObject) + sizeof(uintptr_t);
  if (static_cast<size_t>(Py_TYPE(tensor.ptr())->tp_basicsize) < needed) return nullptr;
  uintptr_t held = 0;
  std::memcpy(&held, handle_of(tensor), sizeof held);
  // A tensor tells the address of its implementation.
  return held == tensor.attr("_cdata").cast<uintptr_t>() ? &reader : nullptr;
}

bool TorchReader::read(py::handle tensor, View& view) const {
  Handle const handle = handle_of(tensor);
  return !(rank_(handle, &view.rank) || dtype_(handle, &view.dtype) || device_type_(handle, &view.device_type) ||
           device_index_(handle, &view.device_index) || sizes_(handle, &view.sizes) ||
           strides_(handle, &view.strides) || data_(handle, &view.data));
}

}  // namespace pycutlass
