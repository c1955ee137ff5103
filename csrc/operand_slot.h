// One operand of a call: where it is in the record, and what a tensor must look like to take its place.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "pycutlass/abi.h"
#include "tensor_form.h"
#include "tensor_guard.h"

namespace pycutlass {

class OperandSlot {
 public:
  /// `written`: launches write to it.
  void attach(pycutlass_operand* record, bool written) {
    record_ = record;
    written_ = written;
  }
  /// Becomes what `other` is; the record stays this one's own.
  void adopt(OperandSlot& other) noexcept;
  /// Points the record at memory of which no tensor is known.
  void set(uintptr_t pointer, int64_t ld, int64_t batch_stride, uint64_t bytes, uint64_t alignment);
  void remember(pybind11::object tensor, std::string name);
  /// Points the record at `tensor` if it has the remembered form; false leaves everything as it was.
  bool try_exchange(pybind11::handle tensor);
  /// Takes an exchange back.
  void restore();
  void forget_previous() {
    previous_ = pybind11::object();
    previous_guard_.clear();
  }
  /// Throws ArgumentError where the tensor's memory was moved since it was given.
  void check_unmoved() const {
    if (!guard_.unmoved()) guard_.raise_moved(name_);
  }
  TensorGuard const& guard() const { return guard_; }
  /// Whether the two are the same matrices in memory.
  bool same_place(OperandSlot const& other) const;
  /// Whether the bytes of the two may meet; strided operands that interleave count as meeting.
  bool overlaps(OperandSlot const& other) const;

 private:
  pycutlass_operand* record_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t alignment_ = 1;
  bool written_ = false;
  TensorForm form_;
  TensorGuard guard_;
  std::string name_;           // for messages
  pybind11::object tensor_;    // what the record points into; alive as long as the record does
  pybind11::object previous_;  // the same, before an exchange that may still be taken back
  TensorGuard previous_guard_;
  uintptr_t previous_pointer_ = 0;
};

}  // namespace pycutlass
