#include "tensor_signature.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

namespace py = pybind11;

namespace pycutlass {

namespace {

/// Whether shape and strides can be read.
bool has_arrays(dlpack::Tensor const& tensor) {
  return tensor.ndim == 0 || (tensor.ndim > 0 && tensor.shape && tensor.strides);
}

bool is_empty(dlpack::Tensor const& tensor) {
  return std::find(tensor.shape, tensor.shape + tensor.ndim, 0) != tensor.shape + tensor.ndim;
}

}  // namespace

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

void TensorSignature::remember(py::handle tensor) {
  *this = TensorSignature();
  if (!remember_exchange_api(tensor)) remember_attributes(tensor);
  type_ = py::type::of(tensor);
}

bool TensorSignature::remember_exchange_api(py::handle tensor) {
  dlpack::ExchangeApi const* api = exchange_api(py::type::handle_of(tensor));
  if (!api || !api->tensor_from_py_object) return false;
  dlpack::Tensor view{};
  if (api->tensor_from_py_object(tensor.ptr(), &view) != 0) {
    PyErr_Clear();
    return false;
  }
  if (view.ndim > kMaxRank || !has_arrays(view)) return false;
  tensor_from_py_object_ = api->tensor_from_py_object;
  device_ = view.device;
  dtype_ = view.dtype;
  rank_ = view.ndim;
  for (int i = 0; i < view.ndim; ++i) extents_[static_cast<size_t>(i)] = {view.shape[i], view.strides[i]};
  remember_torch(tensor, reinterpret_cast<uintptr_t>(view.data) + view.byte_offset);
  return true;
}

void TensorSignature::remember_torch(py::handle tensor, uintptr_t expected) {
  TorchReader const* reader = TorchReader::for_type_of(tensor);
  TorchReader::View view{};
  if (!reader || !reader->read(tensor, view) || reinterpret_cast<uintptr_t>(view.data) != expected ||
      !has_extents(view.rank, view.sizes, view.strides)) {
    return;
  }
  torch_ = reader;
  torch_dtype_ = view.dtype;
  torch_device_type_ = view.device_type;
  torch_device_index_ = view.device_index;
  if (!TorchImpl::found()) return;
  torch_form_ = TorchForm::of(TorchImpl(tensor));
  element_bytes_ = dtype_.bits * uint64_t{dtype_.lanes} / 8;
  bytes_ = bytes_of_extents(view.rank, view.sizes, view.strides, element_bytes_);
  TensorView seen;
  direct_ = torch_form_.is_like(TorchImpl(tensor)) && view_directly(TorchImpl(tensor), seen) &&
            seen.pointer == expected && has_extents(seen.rank, seen.sizes, seen.strides);
}

void TensorSignature::remember_attributes(py::handle tensor) {
  if (!py::hasattr(tensor, "__cuda_array_interface__") || !py::hasattr(tensor, "data") ||
      !py::hasattr(tensor.attr("data"), "ptr")) {
    return;
  }
  attribute_dtype_ = tensor.attr("dtype");
  attribute_shape_ = tensor.attr("shape");
  attribute_strides_ = tensor.attr("strides");
  attribute_device_ = tensor.attr("data").attr("device_id");
}

bool TensorSignature::read_otherwise(py::handle tensor, uintptr_t& pointer) const {
  if (attribute_shape_) return py::type::handle_of(tensor).is(type_) && read_attributes(tensor, pointer);
  TensorView seen;
  if (!view(tensor, seen)) return false;
  pointer = seen.pointer;
  return has_extents(seen.rank, seen.sizes, seen.strides);
}

bool TensorSignature::view(py::handle tensor, TensorView& view) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) != type_.ptr()) return false;
  if (torch_) return view_torch(tensor, view);
  return tensor_from_py_object_ && view_exchange_api(tensor, view);
}

TensorSignature TensorSignature::with_extents(TensorView const& view) const {
  TensorSignature form = *this;
  form.rank_ = view.rank;
  for (int64_t i = 0; i < view.rank; ++i) form.extents_[static_cast<size_t>(i)] = {view.sizes[i], view.strides[i]};
  form.direct_ = direct_ && view.rank <= TorchImpl::kMaxRank;
  if (form.direct_) {
    form.torch_form_.set_extents(view.rank, view.sizes, view.strides);
    form.bytes_ = bytes_of_extents(view.rank, view.sizes, view.strides, element_bytes_);
  }
  return form;
}

bool TensorSignature::has_extents(int64_t rank, int64_t const* shape, int64_t const* strides) const {
  bool same = rank == rank_;
  for (int64_t i = 0; same && i < rank; ++i) {
    Extent const& extent = extents_[static_cast<size_t>(i)];
    same = shape[i] == extent.size && strides[i] == extent.stride;
  }
  return same;
}

bool TensorSignature::view_torch(py::handle tensor, TensorView& view) const {
  if (!direct_ || !torch_form_.is_like(TorchImpl(tensor))) return view_torch_by_functions(tensor, view);
  return view_directly(TorchImpl(tensor), view);
}

bool TensorSignature::view_directly(TorchImpl impl, TensorView& view) const {
  view = {0, impl.rank(), impl.sizes(), impl.strides()};
  return find(impl, bytes_of_extents(view.rank, view.sizes, view.strides, element_bytes_), view.pointer);
}

bool TensorSignature::view_torch_by_functions(py::handle tensor, TensorView& view) const {
  // Its memory does not have its values, and PyTorch's functions do not say so.
  if (tensor.attr("is_neg")().cast<bool>() || tensor.attr("is_conj")().cast<bool>()) return false;
  TorchReader::View seen;
  if (!torch_->read(tensor, seen)) return false;  // the slow path explains
  view = {reinterpret_cast<uintptr_t>(seen.data), seen.rank, seen.sizes, seen.strides};
  uint64_t const element_bytes = dtype_.bits * uint64_t{dtype_.lanes} / 8;
  uint64_t const bytes = bytes_of_extents(seen.rank, seen.sizes, seen.strides, element_bytes);
  uint64_t const begin = tensor.attr("storage_offset")().cast<uint64_t>() * element_bytes;
  if (bytes && (!seen.data || begin + bytes > tensor.attr("untyped_storage")().attr("nbytes")().cast<uint64_t>())) {
    return false;
  }
  return seen.dtype == torch_dtype_ && seen.device_type == torch_device_type_ &&
         seen.device_index == torch_device_index_;
}

bool TensorSignature::view_exchange_api(py::handle tensor, TensorView& view) const {
  dlpack::Tensor seen;
  if (tensor_from_py_object_(tensor.ptr(), &seen) != 0) {
    PyErr_Clear();  // the slow path explains
    return false;
  }
  if (!has_arrays(seen) || (!seen.data && !is_empty(seen))) return false;
  view = {reinterpret_cast<uintptr_t>(seen.data) + seen.byte_offset, seen.ndim, seen.shape, seen.strides};
  return seen.device.type == device_.type && seen.device.id == device_.id && seen.dtype.code == dtype_.code &&
         seen.dtype.bits == dtype_.bits && seen.dtype.lanes == dtype_.lanes;
}

bool TensorSignature::read_attributes(py::handle tensor, uintptr_t& pointer) const {
  py::object data = tensor.attr("data");
  try {
    pointer = data.attr("ptr").cast<uintptr_t>();
  } catch (py::cast_error const&) {
    return false;  // it says something else than a number: the slow path explains
  }
  auto same = [](py::handle owner, char const* name, py::object const& remembered) {
    return remembered.equal(py::object(owner.attr(name)));
  };
  return same(tensor, "dtype", attribute_dtype_) && same(tensor, "shape", attribute_shape_) &&
         same(tensor, "strides", attribute_strides_) && same(data, "device_id", attribute_device_);
}

void bind_tensor_signature(py::module_& m) {
  py::class_<TensorSignature>(m, "TensorSignature", "What a tensor must look like to take the place of another.")
      .def(py::init([](py::handle tensor) {
             TensorSignature form;
             form.remember(tensor);
             return form;
           }),
           py::arg("tensor"))
      .def(
          "read",
          [](TensorSignature const& self, py::handle tensor) {
            uintptr_t pointer = 0;
            return self.read(tensor, pointer) ? std::optional(pointer) : std::nullopt;
          },
          py::arg("tensor"), "The address of a tensor of this form, or None.")
      .def_property_readonly("reads_torch", &TensorSignature::reads_torch);
}

}  // namespace pycutlass
