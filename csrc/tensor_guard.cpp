#include "tensor_guard.h"

#include <cstdio>

#include "bindings.h"
#include "driver.h"

namespace pycutlass {
namespace {

bool same(TorchReader::Place const& left, TorchReader::Place const& right) {
  return left.impl == right.impl && left.storage == right.storage && left.memory == right.memory &&
         left.bytes == right.bytes && left.offset == right.offset;
}

std::string in_words(TorchReader::Place const& place) {
  char text[128];
  std::snprintf(text, sizeof text, "%lld bytes at 0x%llx, of which the tensor began at element %lld",
                static_cast<long long>(place.bytes), static_cast<unsigned long long>(place.memory),
                static_cast<long long>(place.offset));
  return text;
}

bool is_torch(py::handle tensor) { return py::hasattr(tensor, "_cdata") && py::hasattr(tensor, "untyped_storage"); }

}  // namespace

void TensorGuard::watch(py::handle tensor, bool written) {
  clear();
  if (!is_torch(tensor)) return;
  tensor_ = py::reinterpret_borrow<py::object>(tensor);
  reader_ = TorchReader::for_type_of(tensor);
  place_ = TorchReader::ask_place(tensor);
  // The chain of addresses is compared from its beginning: none is followed that the tensor has not told itself.
  direct_ = reader_ && TorchReader::reads_places() && TorchReader::has_place(tensor, place_);
  written_ = written;
  counts_writes_ = written && !is_inference(tensor);
}

void TensorGuard::exchange(py::handle tensor) {
  if (!tensor_) return;
  tensor_ = py::reinterpret_borrow<py::object>(tensor);
  place_ = direct_ ? TorchReader::read_place(tensor) : TorchReader::ask_place(tensor);
  counts_writes_ = written_ && !is_inference(tensor);
}

bool TensorGuard::unmoved_by_python() const { return same(TorchReader::ask_place(tensor_), place_); }

void TensorGuard::raise_moved(std::string const& name) const {
  raise_error("ArgumentError",
              "the memory of operand " + name + " is not what these arguments were made with: its storage had " +
                  in_words(place_) + ", and has " + in_words(TorchReader::ask_place(tensor_)) +
                  ". Something like .data = ..., set_, resize_ or a conversion of its module has moved it. Pass the "
                  "tensor to update, or make new arguments.");
}

void TensorGuard::increment_version() const {
  if (reader_) {
    reader_->increment_version(tensor_);
  } else {
    py::module_::import("torch.autograd.graph").attr("increment_version")(tensor_);
  }
}

bool TensorGuard::requires_grad(py::handle tensor) const {
  return reader_ ? reader_->requires_grad(tensor) : tensor.attr("requires_grad").cast<bool>();
}

bool TensorGuard::is_inference(py::handle tensor) const {
  return reader_ ? reader_->is_inference(tensor) : tensor.attr("is_inference")().cast<bool>();
}

py::object TensorGuard::storage() const { return tensor_ ? tensor_.attr("untyped_storage")() : py::none(); }

void bind_tensor_guard(py::module_& m) {
  py::class_<TensorGuard>(m, "TensorGuard", "Where the memory of a tensor of torch was when a launch was prepared.")
      .def(py::init([](py::handle tensor, bool written) {
             TensorGuard guard;
             guard.watch(tensor, written);
             return guard;
           }),
           py::arg("tensor"), py::arg("written"))
      .def("allows", &TensorGuard::allows, py::arg("tensor"))
      .def("exchange", &TensorGuard::exchange, py::arg("tensor"))
      .def(
          "check",
          [](TensorGuard const& self, std::string const& name) {
            if (!self.unmoved()) self.raise_moved(name);
          },
          py::arg("name"), "Raise ArgumentError where the tensor, which messages call `name`, was moved.")
      .def_property_readonly("direct", &TensorGuard::direct)
      .def("count_write", &TensorGuard::count_write);
}

}  // namespace pycutlass
