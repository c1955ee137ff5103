// A torch tensor read through PyTorch's stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h). That takes about
// half the time of the DLPack exchange, which counts a reference and asks for the interpreter's lock to do so.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "torch_impl.h"

namespace pycutlass {

/// PyTorch's functions that read a tensor.
class TorchReader {
 public:
  /// Sizes and strides lie in the tensor.
  struct View {
    void* data;
    int64_t rank;
    int64_t* sizes;
    int64_t* strides;
    int32_t dtype, device_type, device_index;
  };

  /// The reader for tensors of the type of `tensor`; null where PyTorch has no such functions, or where such objects
  /// are not built as expected.
  static TorchReader const* for_type_of(pybind11::handle tensor);
  /// The one that there is, after it was returned once.
  static TorchReader const& known() { return *known_; }
  /// Whether `tensor` could be read.
  bool read(pybind11::handle tensor, View& view) const;

  /// What `tensor` says of its place when it is asked through Python.
  static TorchPlace ask_place(pybind11::handle tensor);

  /// Whether autograd follows what is done with the tensor.
  bool requires_grad(pybind11::handle tensor) const;
  /// Whether the tensor has a tangent: torch differentiates in forward mode what is computed from it.
  bool has_tangent(pybind11::handle tensor) const;
  /// The address of the implementation of what the tensor is a view of; 0 where it is none.
  uintptr_t base_of(pybind11::handle tensor) const;
  /// Whether the tensor was made in inference mode, and so has no version.
  bool is_inference(pybind11::handle tensor) const;
  /// Tells autograd that the tensor's memory was written to; false where this torch has no function for it.
  bool increment_version(pybind11::handle tensor) const {
    if (bump_version_) bump_version_(TorchImpl::handle_of(tensor));
    return bump_version_ != nullptr;
  }

 private:
  // To these functions a tensor is a pointer to an at::Tensor, and that is a pointer to the implementation.
  using Handle = void*;
  template <typename T>
  using Getter = int32_t (*)(Handle, T*);

  TorchReader();

  inline static TorchReader const* known_ = nullptr;
  bool complete_ = false;
  Getter<void*> data_ = nullptr;
  Getter<int64_t> rank_ = nullptr;
  Getter<int64_t*> sizes_ = nullptr, strides_ = nullptr;
  Getter<int32_t> dtype_ = nullptr, device_type_ = nullptr, device_index_ = nullptr;
  // Functions of C++ that take one reference to an object; null where this torch has none of that name.
  bool (*requires_grad_)(void const* impl) = nullptr;
  void* const* (*tangent_)(void const* impl, uint64_t level, void const* tensor) = nullptr;
  void const* undefined_ = nullptr;  // the implementation of a tensor that is none
  bool (*is_inference_)(void const* tensor) = nullptr;
  bool (*is_view_)(void const* tensor) = nullptr;
  void const* (*base_)(void const* tensor) = nullptr;  // a pointer to a tensor, too
  void (*bump_version_)(void const* tensor) = nullptr;
};

/// Whether autograd follows what is done with a tensor of torch that is read from its objects.
bool is_followed_now(pybind11::handle tensor);

/// Whether a tensor has a tangent, where it cannot be read: torch is asked through Python.
bool has_tangent_by_python(pybind11::handle tensor);

}  // namespace pycutlass
