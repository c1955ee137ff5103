// What a tensor must look like to take the place of another without being checked anew.
#pragma once

#include <pybind11/pybind11.h>

#include <array>

#include "dlpack.h"

namespace pycutlass {

/// The table of C functions that a tensor type offers, or null.
dlpack::ExchangeApi const* exchange_api(pybind11::handle type);

/// Type, device, dtype, shape and strides of a tensor.
class TensorForm {
 public:
  void remember(pybind11::handle tensor);
  /// Whether `tensor` has the remembered form; if so, `pointer` becomes its address.
  bool read(pybind11::handle tensor, uintptr_t& pointer) const;

 private:
  bool remember_exchange_api(pybind11::handle tensor);
  void remember_attributes(pybind11::handle tensor);
  bool read_exchange_api(pybind11::handle tensor, uintptr_t& pointer) const;
  bool read_attributes(pybind11::handle tensor, uintptr_t& pointer) const;

  struct Extent {
    int64_t size, stride;
  };
  static constexpr int kMaxRank = 6;

  pybind11::object type_;
  // The remembered form by the exchange interface: a matrix's is read with one line of the cache ...
  decltype(dlpack::ExchangeApi::tensor_from_py_object) tensor_from_py_object_ = nullptr;
  dlpack::Device device_{};
  dlpack::DataType dtype_{};
  int32_t rank_ = 0;
  std::array<Extent, kMaxRank> extents_{};
  // ... or by attributes, for cupy.
  pybind11::object attribute_dtype_, attribute_shape_, attribute_strides_, attribute_device_;
};

}  // namespace pycutlass
