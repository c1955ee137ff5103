#include "operand_slot.h"

namespace py = pybind11;

namespace pycutlass {

void OperandSlot::set(uintptr_t pointer, Strides const& strides, uint64_t bytes, uint64_t alignment) {
  *address_ = reinterpret_cast<void*>(pointer);
  strides_ = strides;
  bytes_ = bytes;
  alignment_ = alignment;
  form_ = TensorForm();
  guard_.clear();
  tensor_ = py::object();
}

void OperandSlot::remember(py::object tensor, std::string name) {
  form_.remember(tensor);
  guard_.watch(tensor, written_);
  shown_name_ = std::move(name);
  tensor_ = std::move(tensor);
}

bool OperandSlot::try_exchange(py::handle tensor) {
  uintptr_t pointer = 0;
  if (!form_.read(tensor, pointer) || pointer % alignment_ != 0 || !guard_.allows(tensor)) return false;
  TensorGuard guard = guard_;
  guard.exchange(tensor);
  previous_pointer_ = reinterpret_cast<uintptr_t>(*address_);
  previous_guard_ = std::exchange(guard_, std::move(guard));
  previous_ = std::move(tensor_);
  tensor_ = py::reinterpret_borrow<py::object>(tensor);
  *address_ = reinterpret_cast<void*>(pointer);
  return true;
}

void OperandSlot::restore() {
  if (!previous_) return;
  tensor_ = std::move(previous_);
  guard_ = std::move(previous_guard_);
  *address_ = reinterpret_cast<void*>(previous_pointer_);
}

bool OperandSlot::same_place(OperandSlot const& other) const {
  return *address_ == *other.address_ && strides_ == other.strides_;
}

bool OperandSlot::overlaps(OperandSlot const& other) const {
  auto begin = reinterpret_cast<uintptr_t>(*address_);
  auto other_begin = reinterpret_cast<uintptr_t>(*other.address_);
  return begin && other_begin && begin < other_begin + other.bytes_ && other_begin < begin + bytes_;
}

}  // namespace pycutlass
