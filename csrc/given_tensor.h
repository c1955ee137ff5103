// A tensor that was given for an operand, read without the adapters of pycutlass/tensor: those are asked once for each
// kind of tensors of torch, and decide on all that is not read here.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <optional>
#include <string>

#include "launch.h"
#include "operand_rule.h"
#include "torch_kind.h"

namespace pycutlass {

/// The element type of an operand.
struct ElementType {
  int code;                // a pycutlass_element
  std::string dtype_name;  // as tensors say it
  pybind11::object dtype;  // NumPy's, which is cupy's; None where NumPy has none
};

/// A tensor of torch or cupy on a GPU.
class GivenTensor {
 public:
  GivenTensor() = default;
  GivenTensor(GivenTensor const&) = delete;
  GivenTensor& operator=(GivenTensor const&) = delete;

  /// Reads a tensor; false where it is none of that type on that GPU, or needs a closer look. `wrap` is that of
  /// pycutlass/tensor. Throws what a tensor raises when it is asked.
  bool read(pybind11::handle tensor, ElementType const& type, int ordinal, pybind11::handle wrap);
  TensorView const& view() const { return view_; }
  /// Whether autograd follows what is done with the tensor.
  bool is_followed() const { return kind_ && kind_->is_followed(tensor_); }
  bool same_library(GivenTensor const& other) const { return !kind_ == !other.kind_; }
  bool of_torch() const { return kind_ != nullptr; }
  char const* library() const { return of_torch() ? "torch" : "cupy"; }
  pybind11::handle tensor() const { return tensor_; }

  /// Points operand `role` of a call at the tensor.
  void enter(Call& call, int role, OperandRule const& rule, int element, PlacedOperand const& placed) const;
  /// Has a form become that of the tensor, and a guard watch it; `written`: launches write to it.
  void watch(TensorSignature& form, TensorGuard& guard, bool written) const;
  /// Has launches of a call go to the current stream of the tensor's library. `stream_source` is that of
  /// pycutlass/tensor.
  void lead(Call& call, int ordinal, pybind11::handle stream_source) const;

 private:
  static constexpr size_t kMaxRank = 4;

  bool find_kind(ElementType const& type, int ordinal);
  bool read_cupy(ElementType const& type, int ordinal);

  pybind11::handle tensor_;
  TorchKind const* kind_ = nullptr;  // of a tensor of torch
  TensorView view_{};
  std::array<int64_t, kMaxRank> sizes_{}, strides_{};  // of an array of cupy
  TorchForm form_{};  // has the extents of a tensor of torch, which may change before it is entered
};

/// Adds gpu_of to the module.
void bind_given_tensor(pybind11::module_& m);

}  // namespace pycutlass
