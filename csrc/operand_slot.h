// One operand of a call: where the kernel finds its address, and what a tensor must look like to take its place.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "pycutlass/abi.h"
#include "tensor_signature.h"
#include "tensor_guard.h"

namespace pycutlass {

class OperandSlot {
 public:
  using Strides = std::array<int64_t, PYCUTLASS_MAX_STRIDES>;

  /// `address` is in a call's record, or in the arguments of its epilogue. `written`: launches write to the operand.
  OperandSlot(std::string name, void** address, bool written)
      : address_(address), written_(written), name_(std::move(name)) {}
  /// The address is there now, in the memory of another call.
  void attach(void** address) { address_ = address; }
  void** address() const { return address_; }
  std::string const& name() const { return name_; }
  bool written() const { return written_; }
  /// Points to memory of which no tensor is known.
  void set(uintptr_t pointer, Strides const& strides, uint64_t bytes, uint64_t alignment);
  /// Keeps the tensor alive that this points into; `name` is for messages.
  void remember(pybind11::object tensor, std::string name);
  /// The same of a tensor whose form is known, and that is like the one that `guard` knows. Throws ArgumentError where
  /// it no longer has that form, or is elsewhere than this points: others had their turn since it was read.
  void remember(pybind11::object tensor, TensorSignature const& form, TensorGuard const& guard);
  /// Whether `tensor` has the remembered form, and so may take the place of the present one.
  bool read(pybind11::handle tensor);
  /// Points to what was read; once more points back.
  void exchange() { next_ = reinterpret_cast<uintptr_t>(std::exchange(*address_, reinterpret_cast<void*>(next_))); }
  /// Keeps the tensor that was read in place of the present one. Nothing here can fail.
  void keep(pybind11::handle tensor) noexcept;
  /// Lets go of what was read, in place of that.
  void forget() { next_guard_.reset(); }
  /// Whether this points into a tensor.
  bool has_tensor() const { return tensor_.ptr() != nullptr; }
  /// Whether form and place of the tensor are read from its objects.
  bool direct() const { return form_.direct() && guard_.direct(); }
  /// Lets go of the tensor; what it looked like stays known, for `read`.
  void forget_tensor() noexcept;
  /// Throws ArgumentError where the tensor's memory was moved since it was given.
  void check_unmoved() const {
    if (!guard_.unmoved()) guard_.raise_moved(shown_name_);
  }
  TensorGuard const& guard() const { return guard_; }
  /// Whether the two are the same matrices in memory.
  bool same_place(OperandSlot const& other) const;
  /// Whether the bytes of the two may meet; strided operands that interleave count as meeting.
  bool overlaps(OperandSlot const& other) const;

 private:
  void** address_;
  Strides strides_{};
  uint64_t bytes_ = 0;
  uint64_t alignment_ = 1;
  bool written_;
  TensorSignature form_;
  TensorGuard guard_;
  std::string name_;
  std::string shown_name_;   // for messages
  pybind11::object tensor_;  // what the address points into; alive as long as that does
  // Of an exchange: the address, and a guard where the present one cannot simply go over to the tensor.
  uintptr_t next_ = 0;
  std::optional<TensorGuard> next_guard_;
};

}  // namespace pycutlass
