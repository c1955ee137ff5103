#include "tensor_form.h"

namespace py = pybind11;

namespace pycutlass {

dlpack::ExchangeApi const* exchange_api(py::handle type) {
  PyObject* capsule = PyObject_GetAttrString(type.ptr(), "__dlpack_c_exchange_api__");
  if (!capsule) {
    PyErr_Clear();
    return nullptr;
  }
  void* pointer = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_DECREF(capsule);  // the table itself lives as long as the process
  if (!pointer) PyErr_Clear();
  auto const* api = static_cast<dlpack::ExchangeApi const*>(pointer);
  return api && api->header.version.major == 1 ? api : nullptr;
}

void TensorForm::remember(py::handle tensor) {
  *this = TensorForm();
  if (!remember_exchange_api(tensor)) remember_attributes(tensor);
  type_ = py::type::of(tensor);
}

bool TensorForm::remember_exchange_api(py::handle tensor) {
  dlpack::ExchangeApi const* api = exchange_api(py::type::handle_of(tensor));
  if (!api || !api->tensor_from_py_object) return false;
  dlpack::Tensor view{};
  if (api->tensor_from_py_object(tensor.ptr(), &view) != 0) {
    PyErr_Clear();
    return false;
  }
  if (view.ndim > kMaxRank) return false;
  tensor_from_py_object_ = api->tensor_from_py_object;
  device_ = view.device;
  dtype_ = view.dtype;
  rank_ = view.ndim;
  for (int i = 0; i < rank_; ++i) extents_[static_cast<size_t>(i)] = {view.shape[i], view.strides[i]};
  return true;
}

void TensorForm::remember_attributes(py::handle tensor) {
  if (!py::hasattr(tensor, "__cuda_array_interface__") || !py::hasattr(tensor, "data") ||
      !py::hasattr(tensor.attr("data"), "ptr")) {
    return;
  }
  attribute_dtype_ = tensor.attr("dtype");
  attribute_shape_ = tensor.attr("shape");
  attribute_strides_ = tensor.attr("strides");
  attribute_device_ = tensor.attr("data").attr("device_id");
}

bool TensorForm::read(py::handle tensor, uintptr_t& pointer) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) != type_.ptr()) return false;
  if (tensor_from_py_object_) return read_exchange_api(tensor, pointer);
  return attribute_shape_ && read_attributes(tensor, pointer);
}

bool TensorForm::read_exchange_api(py::handle tensor, uintptr_t& pointer) const {
  dlpack::Tensor view;
  if (tensor_from_py_object_(tensor.ptr(), &view) != 0) {
    PyErr_Clear();  // the slow path explains
    return false;
  }
  bool same = view.ndim == rank_ && view.device.type == device_.type && view.device.id == device_.id &&
              view.dtype.code == dtype_.code && view.dtype.bits == dtype_.bits && view.dtype.lanes == dtype_.lanes;
  for (int i = 0; same && i < rank_; ++i) {
    Extent const& extent = extents_[static_cast<size_t>(i)];
    same = view.shape[i] == extent.size && view.strides[i] == extent.stride;
  }
  pointer = reinterpret_cast<uintptr_t>(view.data) + view.byte_offset;
  return same;
}

bool TensorForm::read_attributes(py::handle tensor, uintptr_t& pointer) const {
  py::object data = tensor.attr("data");
  pointer = data.attr("ptr").cast<uintptr_t>();
  auto same = [](py::handle owner, char const* name, py::object const& remembered) {
    return remembered.equal(py::object(owner.attr(name)));
  };
  return same(tensor, "dtype", attribute_dtype_) && same(tensor, "shape", attribute_shape_) &&
         same(tensor, "strides", attribute_strides_) && same(data, "device_id", attribute_device_);
}

}  // namespace pycutlass
