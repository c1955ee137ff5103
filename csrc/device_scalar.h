// A scalar of an epilogue that kernels read from device memory: where the arguments of the epilogue have its address,
// and the tensor that it is the address of.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "tensor_guard.h"

namespace pycutlass {

class DeviceScalar {
 public:
  /// `address` is in the arguments of a call's epilogue. `find` returns where the tensor is, or raises what is wrong
  /// with it.
  DeviceScalar(std::string name, void** address, pybind11::object tensor, pybind11::object find);
  /// The address is there now, in the memory of another call.
  void attach(void** address) { address_ = address; }
  void** address() const { return address_; }
  std::string const& name() const { return name_; }
  /// Points to where the tensor is now; whether that is elsewhere than before.
  bool follow();
  /// Whether the tensor is one of torch whose place is read from its objects.
  bool direct() const { return guard_.direct(); }
  /// Whether autograd follows what is done with such a tensor.
  bool is_followed() const { return is_followed_now(tensor_); }
  /// What keeps the memory alive, whatever becomes of the tensor.
  pybind11::object storage() const { return guard_.storage(); }

 private:
  uintptr_t find() const { return find_().cast<uintptr_t>(); }

  std::string name_;
  void** address_;
  pybind11::object tensor_, find_;
  TensorGuard guard_;
};

}  // namespace pycutlass
