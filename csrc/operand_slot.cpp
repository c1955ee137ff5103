#include "operand_slot.h"

#include "driver.h"

namespace py = pybind11;

namespace pycutlass {

void OperandSlot::set(uintptr_t pointer, Strides const& strides, uint64_t bytes, uint64_t alignment) {
  *address_ = reinterpret_cast<void*>(pointer);
  strides_ = strides;
  bytes_ = bytes;
  alignment_ = alignment;
  form_ = TensorSignature();
  guard_.clear();
  tensor_ = py::object();
}

void OperandSlot::remember(py::object tensor, std::string name) {
  form_.remember(tensor);
  guard_.watch(tensor, written_);
  shown_name_ = std::move(name);
  tensor_ = std::move(tensor);
}

void OperandSlot::remember(py::object tensor, TensorSignature const& form, TensorGuard const& guard) {
  uintptr_t now = 0;
  if (!form.read_directly(tensor, now) || now != reinterpret_cast<uintptr_t>(*address_)) {
    raise_error("ArgumentError", "operand " + name_ + " was moved or changed while arguments were made of it");
  }
  form_ = form;
  guard_.watch_like(guard, tensor);
  shown_name_ = name_;
  tensor_ = std::move(tensor);
}

bool OperandSlot::read(py::handle tensor) {
  next_guard_.reset();
  if (!form_.read_directly(tensor, next_) || !guard_.takes_plainly(tensor)) {
    if (!form_.read(tensor, next_) || !guard_.allows(tensor)) return false;
    next_guard_.emplace(guard_).exchange(tensor);
  }
  return (next_ & (alignment_ - 1)) == 0;
}

void OperandSlot::keep(py::handle tensor) noexcept {
  // What goes away goes last: its end may call anything.
  py::object const former = std::exchange(tensor_, py::reinterpret_borrow<py::object>(tensor));
  if (next_guard_) {
    std::swap(guard_, *next_guard_);
    next_guard_.reset();
  } else {
    guard_.exchange_plain(tensor);
  }
}

void OperandSlot::forget_tensor() noexcept {
  guard_.forget_tensor();
  py::object const former = std::exchange(tensor_, py::object());  // goes last, as in `keep`
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
