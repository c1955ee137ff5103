#include "operand_slot.h"

#include <algorithm>

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

void OperandSlot::set(uintptr_t pointer, int64_t ld, int64_t batch_stride, uint64_t bytes, uint64_t alignment) {
  *record_ = {reinterpret_cast<void*>(pointer), ld, batch_stride};
  bytes_ = bytes;
  alignment_ = alignment;
}

void OperandSlot::remember(py::object tensor) {
  tensor_ = std::move(tensor);
  attribute_shape_ = py::object();
  api_ = exchange_api(py::type::handle_of(tensor_));
  dlpack::Tensor view{};
  if (api_ && api_->tensor_from_py_object && api_->tensor_from_py_object(tensor_.ptr(), &view) == 0) {
    rank_ = view.ndim;
    if (rank_ <= kMaxRank) {
      device_ = view.device;
      dtype_ = view.dtype;
      std::copy_n(view.shape, rank_, shape_.begin());
      std::copy_n(view.strides, rank_, strides_.begin());
      return;
    }
  }
  PyErr_Clear();
  api_ = nullptr;
  if (py::hasattr(tensor_, "__cuda_array_interface__") && py::hasattr(tensor_, "data") &&
      py::hasattr(tensor_.attr("data"), "ptr")) {  // cupy
    attribute_dtype_ = tensor_.attr("dtype");
    attribute_shape_ = tensor_.attr("shape");
    attribute_strides_ = tensor_.attr("strides");
    attribute_device_ = tensor_.attr("data").attr("device_id");
  }
}

bool OperandSlot::read_exchange_api(py::handle tensor, uintptr_t& pointer) const {
  dlpack::Tensor view{};
  if (api_->tensor_from_py_object(tensor.ptr(), &view) != 0) {
    PyErr_Clear();  // the slow path explains
    return false;
  }
  bool same = view.ndim == rank_ && view.device.type == device_.type && view.device.id == device_.id &&
              view.dtype.code == dtype_.code && view.dtype.bits == dtype_.bits && view.dtype.lanes == dtype_.lanes;
  for (int i = 0; same && i < rank_; ++i) same = view.shape[i] == shape_[i] && view.strides[i] == strides_[i];
  pointer = reinterpret_cast<uintptr_t>(view.data) + view.byte_offset;
  return same;
}

bool OperandSlot::read_attributes(py::handle tensor, uintptr_t& pointer) const {
  py::object data = tensor.attr("data");
  pointer = data.attr("ptr").cast<uintptr_t>();
  auto same = [](py::handle owner, char const* name, py::object const& remembered) {
    return remembered.equal(py::object(owner.attr(name)));
  };
  return same(tensor, "dtype", attribute_dtype_) && same(tensor, "shape", attribute_shape_) &&
         same(tensor, "strides", attribute_strides_) && same(data, "device_id", attribute_device_);
}

bool OperandSlot::read_pointer(py::handle tensor, uintptr_t& pointer) const {
  if (!tensor_ || Py_TYPE(tensor.ptr()) != Py_TYPE(tensor_.ptr())) return false;
  if (api_) return read_exchange_api(tensor, pointer);
  return attribute_shape_ && read_attributes(tensor, pointer);
}

bool OperandSlot::try_exchange(py::handle tensor) {
  uintptr_t pointer = 0;
  if (!read_pointer(tensor, pointer) || pointer % alignment_ != 0) return false;
  previous_pointer_ = reinterpret_cast<uintptr_t>(record_->data);
  previous_ = std::move(tensor_);
  tensor_ = py::reinterpret_borrow<py::object>(tensor);
  record_->data = reinterpret_cast<void*>(pointer);
  return true;
}

void OperandSlot::restore() {
  if (!previous_) return;
  tensor_ = std::move(previous_);
  record_->data = reinterpret_cast<void*>(previous_pointer_);
}

bool OperandSlot::overlaps(OperandSlot const& other) const {
  auto begin = reinterpret_cast<uintptr_t>(record_->data);
  auto other_begin = reinterpret_cast<uintptr_t>(other.record_->data);
  return begin && other_begin && begin < other_begin + other.bytes_ && other_begin < begin + bytes_;
}

}  // namespace pycutlass
