// What a tensor must look like to take the place of another without being checked anew.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>

#include "dlpack.h"
#include "torch_tensor.h"

namespace pycutlass {

/// The table of C functions that a tensor type offers, or null.
dlpack::ExchangeApi const* exchange_api(pybind11::handle type);

/// Where a tensor is, and its extents, which lie in the tensor.
struct TensorView {
  uintptr_t pointer;
  int64_t rank;
  int64_t const *sizes, *strides;
};

/// Type, device, dtype, shape and strides of a tensor.
class TensorSignature {
 public:
  void remember(pybind11::handle tensor);
  /// Whether there is a form, and so a way to tell whether another tensor has it.
  bool known() const { return torch_ || tensor_from_py_object_ || attribute_shape_; }
  /// Whether `tensor` has the remembered form; if so, `pointer` becomes its address.
  bool read(pybind11::handle tensor, uintptr_t& pointer) const {
    return read_directly(tensor, pointer) || read_otherwise(tensor, pointer);
  }
  /// The same of most tensors of torch, in a third of the time; false says nothing of others.
  bool read_directly(pybind11::handle tensor, uintptr_t& pointer) const {
    if (!direct_ || reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) != type_.ptr()) return false;
    TorchImpl const impl(tensor);
    if (!torch_form_.is_like(impl) || !torch_form_.has_extents_of(impl)) return false;
    return find(impl, bytes_, pointer);
  }
  /// Whether `tensor` has the remembered type, device and dtype, and can be looked at without asking Python.
  bool view(pybind11::handle tensor, TensorView& view) const;
  /// The same of most tensors of torch, in memory of the same kind.
  bool view_plainly(pybind11::handle tensor, TensorView& view) const {
    if (!direct_ || reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) != type_.ptr()) return false;
    TorchImpl const impl(tensor);
    return torch_form_.is_like(impl) && view_directly(impl, view);
  }
  /// The form of a tensor that `view` has looked at.
  TensorSignature with_extents(TensorView const& view) const;
  /// Whether tensors of that form are read from their objects.
  bool direct() const { return direct_; }
  bool reads_torch() const { return torch_ != nullptr; }
  /// Whether `read_directly` takes tensors of that kind.
  bool is_like(TorchForm const& kind) const { return direct_ && torch_form_.is_like(kind); }

 private:
  bool remember_exchange_api(pybind11::handle tensor);
  void remember_torch(pybind11::handle tensor, uintptr_t expected);
  void remember_attributes(pybind11::handle tensor);
  bool view_torch(pybind11::handle tensor, TensorView& view) const;
  bool view_torch_by_functions(pybind11::handle tensor, TensorView& view) const;
  bool view_directly(TorchImpl impl, TensorView& view) const;
  bool read_otherwise(pybind11::handle tensor, uintptr_t& pointer) const;
  /// Whether a tensor like the remembered one, of so many bytes, lies in its memory, which may have been freed or made
  /// smaller below it; if so, `pointer` becomes its address: 0 of a tensor without elements, as PyTorch itself says.
  bool find(TorchImpl impl, uint64_t bytes, uintptr_t& pointer) const {
    uint64_t const begin = static_cast<uint64_t>(impl.offset()) * element_bytes_;
    pointer = bytes ? impl.memory() + begin : 0;
    return !bytes || begin + bytes <= static_cast<uint64_t>(impl.bytes());
  }
  bool view_exchange_api(pybind11::handle tensor, TensorView& view) const;
  bool read_attributes(pybind11::handle tensor, uintptr_t& pointer) const;
  bool has_extents(int64_t rank, int64_t const* shape, int64_t const* strides) const;

  struct Extent {
    int64_t size, stride;
  };
  static constexpr int kMaxRank = 6;

  // What `read_directly` looks at comes first, in two lines of the cache: a group has hundreds of these.
  alignas(64) pybind11::object type_;
  bool direct_ = false;  // whether tensors like this one can be read without PyTorch's functions
  uint64_t element_bytes_ = 0, bytes_ = 0;
  TorchForm torch_form_{};

  int64_t rank_ = 0;
  std::array<Extent, kMaxRank> extents_{};
  // By the exchange interface, ...
  decltype(dlpack::ExchangeApi::tensor_from_py_object) tensor_from_py_object_ = nullptr;
  dlpack::Device device_{};
  dlpack::DataType dtype_{};
  // ... by PyTorch's functions, where those give the same address, ...
  TorchReader const* torch_ = nullptr;
  int32_t torch_dtype_ = 0, torch_device_type_ = 0, torch_device_index_ = 0;
  // ... or by attributes, for cupy.
  pybind11::object attribute_dtype_, attribute_shape_, attribute_strides_, attribute_device_;
};

/// Adds the class to the module.
void bind_tensor_signature(pybind11::module_& m);

}  // namespace pycutlass
