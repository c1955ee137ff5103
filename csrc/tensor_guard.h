// Where the memory of a tensor of torch was when a launch was prepared, and how the tensor lay in it. A tensor can go
// over to other memory while it is alive (`.data = ...`, `set_`, `module.double()`), its memory can be moved below it
// (`resize_`), and its shape and strides can change in place (`t_`): a launch would then read or write what belongs to
// others, or take the tensor for what it no longer is. What a view belongs to can leave it behind: `weight.T` keeps the
// old memory when `weight.data` becomes another.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "tensor_signature.h"
#include "torch_tensor.h"

namespace pycutlass {

/// Whoever has one keeps the tensor alive.
class TensorGuard {
 public:
  /// Remembers where `tensor` is; nothing where it is no tensor of torch. `written`: launches write to it.
  void watch(pybind11::handle tensor, bool written);
  /// Whether a tensor of the type of the present one may take its place: not where launches would write to what
  /// autograd follows.
  bool allows(pybind11::handle tensor) const { return !written_ || !is_differentiated(tensor); }
  /// Watches a tensor that is allowed in place of the present one.
  void exchange(pybind11::handle tensor);
  /// Whether a tensor of the same extents and data type can be watched without asking Python: it is of the same kind,
  /// and autograd neither follows it nor knows it as a view.
  bool takes_plainly(pybind11::handle tensor) const {
    return direct_ && form_.is_like(TorchImpl(tensor)) && !TorchImpl(tensor).has_autograd();
  }
  /// Whether that is so of all tensors of the form that no autograd has noted anything for.
  bool takes_plainly(TensorSignature const& form) const { return direct_ && form.is_like(form_); }
  /// Watches such a tensor in place of the present one. Nothing here can fail.
  void exchange_plain(pybind11::handle tensor, TorchPlace const& place) noexcept {
    tensor_ = tensor;
    place_ = place;
    base_ = 0;
  }
  void exchange_plain(pybind11::handle tensor) noexcept { exchange_plain(tensor, TorchPlace::of(TorchImpl(tensor))); }
  /// Watches a tensor of the kind that `like` knows, perhaps of other extents.
  void watch_like(TensorGuard const& like, pybind11::handle tensor);
  /// Forgets the tensor, and keeps what is known of its kind for `watch_like`.
  void forget_tensor() {
    tensor_ = pybind11::handle();
    base_ = 0;
  }
  /// Whether autograd follows what is done with a tensor of the type of the present one.
  bool is_followed(pybind11::handle tensor) const { return is_differentiated(tensor); }
  void clear() { *this = TensorGuard(); }

  bool unmoved() const { return plainly_unmoved() || (!direct_ && unmoved_by_python()); }
  /// The same without a call of Python; false says nothing of tensors that have to be asked.
  bool plainly_unmoved() const {
    if (!direct_) return !tensor_;
    TorchImpl const now(tensor_);
    return place_.is_of(now) && form_.has_kind_of(now) && form_.has_extents_of(now) && !is_left_by_base(now) &&
           (!written_ || form_.is_written_like(now));
  }
  /// Whether that takes no call of Python, and so next to no time.
  bool direct() const { return direct_; }
  /// Throws ArgumentError: the tensor, which messages call `name`, was moved or changed.
  [[noreturn]] void raise_moved(std::string const& name) const;
  /// Tells autograd that a launch has written to the tensor: gradients that need what it held raise then.
  void count_write() const {
    if (!counts_writes_) return;
    if (!readable_ || !TorchReader::known().increment_version(tensor_)) increment_version_by_python();
  }
  /// What keeps the memory alive, whatever becomes of the tensor; None where nothing is watched.
  pybind11::object storage() const;

 private:
  bool unmoved_by_python() const;
  /// What to do about a tensor that is no longer of the data type that it had; nothing where it still is.
  std::string type_remedy(std::string const& name, pybind11::handle now) const;
  /// Whether the tensor is a view of another one that has gone over to other memory since.
  bool is_left_by_base(TorchImpl now) const {
    return base_ && (now.autograd() != autograd_ || TorchImpl::at(base_).storage() != place_.storage);
  }
  void watch_base(pybind11::handle tensor);
  void increment_version_by_python() const;
  bool is_differentiated(pybind11::handle tensor) const;
  bool is_inference(pybind11::handle tensor) const;

  // What `unmoved` looks at comes first, and of a matrix it takes two lines of the cache: a group has hundreds of
  // these.
  alignas(64) pybind11::handle tensor_;
  bool readable_ = false;  // whether TorchReader reads the tensor
  bool direct_ = false;    // whether place and form are read from the tensor's objects
  bool written_ = false, counts_writes_ = false;
  uintptr_t base_ = 0;  // the implementation of what the tensor is a view of, if anything
  TorchPlace place_{};
  TorchForm form_{};             // where they are read directly
  pybind11::object asked_form_;  // and where they are not
  uintptr_t autograd_ = 0;       // what keeps that alive
};

/// Adds the class to the module.
void bind_tensor_guard(pybind11::module_& m);

}  // namespace pycutlass
