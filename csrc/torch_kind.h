// What tensors of torch of one kind have in common, learnt of the first that is met, which Python looks at: others of
// that kind need no such look. A kind is a type, a data type, a device, and whether the tensor is dense, neither lazily
// negated nor conjugated, made in inference mode, and so on. So nothing has to be known of how PyTorch writes these
// down: what differs is another kind.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "tensor_signature.h"
#include "tensor_guard.h"

namespace pycutlass {

class TorchKind {
 public:
  /// Learns the kind of `tensor`, which was found to have elements of `element` (a pycutlass_element) on GPU `ordinal`.
  /// Nothing where its tensors cannot be read from their objects.
  static void learn(pybind11::handle tensor, int element, int ordinal);
  /// The kind of a tensor, and in `view` what it looks like; null where it has not been learnt, or is of another
  /// element type or GPU. It stays where it is until the process ends.
  static TorchKind const* find(pybind11::handle tensor, int element, int ordinal, TensorView& view);
  /// The GPU of a tensor whose kind has been learnt.
  static std::optional<int> gpu_of(pybind11::handle tensor);
  /// Whether a tensor is of one of torch's own types, whose tensors are what they say in their objects. A class of the
  /// user's may answer otherwise through Python.
  static bool is_of_torch(pybind11::handle tensor);
  /// Forgets all kinds. For tests.
  static void forget();

  TensorSignature form_of(TensorView const& view) const { return form_.with_extents(view); }
  /// What watches tensors of this kind.
  TensorGuard const& guard(bool written) const { return written ? written_ : read_; }
  bool is_followed(pybind11::handle tensor) const { return read_.is_followed(tensor); }
  dlpack::ExchangeApi const* api() const { return api_; }

 private:
  TensorSignature form_;
  TensorGuard read_, written_;
  dlpack::ExchangeApi const* api_ = nullptr;
  int element_ = 0, ordinal_ = 0;
};

/// Adds forget_tensors to the module.
void bind_torch_kind(pybind11::module_& m);

}  // namespace pycutlass
