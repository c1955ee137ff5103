// The launch fast path: a call record, the kernel parameters made from it, and one cuLaunchKernelEx.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <memory>

#include "dlpack.h"
#include "kernel.h"

namespace pycutlass {

/// The stream to launch on when the caller names none: a fixed one, or what the tensors' library calls current.
class StreamSource {
 public:
  void follow_library(dlpack::ExchangeApi const *api, int ordinal);
  void follow_callable(pybind11::object callable);
  CUstream current() const;

 private:
  dlpack::ExchangeApi const *api_ = nullptr;
  int ordinal_ = 0;
  pybind11::object callable_;
};

/// The table of C functions that a tensor type offers, or null.
dlpack::ExchangeApi const *exchange_api(pybind11::handle type);

/// One operand of a call: where it is in the record, and what a tensor must look like to take its place.
class OperandSlot {
 public:
  void attach(pycutlass_operand *record) { record_ = record; }
  void set(uintptr_t pointer, int64_t ld, int64_t batch_stride, uint64_t bytes, uint64_t alignment);
  void remember(pybind11::object tensor);
  /// Points the record at `tensor` if it has the remembered form; false leaves everything as it was.
  bool try_exchange(pybind11::handle tensor);
  bool overlaps(OperandSlot const &other) const;
  void restore();
  void forget_previous() { previous_ = pybind11::object(); }

 private:
  bool read_pointer(pybind11::handle tensor, uintptr_t &pointer) const;
  bool read_exchange_api(pybind11::handle tensor, uintptr_t &pointer) const;
  bool read_attributes(pybind11::handle tensor, uintptr_t &pointer) const;

  static constexpr int kMaxRank = 6;
  pycutlass_operand *record_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t alignment_ = 1;
  pybind11::object tensor_;    // what the record points into; alive as long as the record does
  pybind11::object previous_;  // the same, before an exchange that may still be taken back
  uintptr_t previous_pointer_ = 0;
  // The remembered form: by the exchange interface ...
  dlpack::ExchangeApi const *api_ = nullptr;
  dlpack::Device device_{};
  dlpack::DataType dtype_{};
  int32_t rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{}, strides_{};
  // ... or by attributes, for cupy.
  pybind11::object attribute_dtype_, attribute_shape_, attribute_strides_, attribute_device_;
};

/// A GEMM ready to be launched any number of times.
class GemmCall {
 public:
  explicit GemmCall(std::shared_ptr<DeviceKernel> kernel);
  GemmCall(GemmCall const &) = delete;
  GemmCall &operator=(GemmCall const &) = delete;

  void set_problem(int mode, int m, int n, int k, int batch_count);
  void set_operand(int index, uintptr_t pointer, int64_t ld, int64_t batch_stride, uint64_t bytes, uint64_t alignment);
  void remember(int index, pybind11::object tensor);
  void set_scalars(pybind11::sequence const &values, pybind11::sequence const &pointers);
  void set_schedule(int max_swizzle, int raster_order);
  void set_workspace(uintptr_t pointer);
  void follow_library(pybind11::object const &tensor_type);
  void follow_callable(pybind11::object callable) { stream_.follow_callable(std::move(callable)); }

  /// Makes grid and kernel parameters from the record; returns a cutlass::Status.
  int plan();
  bool update(pybind11::handle a, pybind11::handle b, pybind11::handle c, pybind11::handle d);
  void run(pybind11::handle stream);

  uint64_t workspace_bytes() const { return result_.workspace_bytes; }
  CUlaunchConfig const &config() const { return config_; }
  uintptr_t params_address() const { return reinterpret_cast<uintptr_t>(params_); }
  uintptr_t function() const { return reinterpret_cast<uintptr_t>(kernel_->function()); }
  uintptr_t last_stream() const { return reinterpret_cast<uintptr_t>(config_.hStream); }
  uintptr_t current_stream() const { return reinterpret_cast<uintptr_t>(stream_.current()); }
  bool launched() const { return launched_; }
  pycutlass_operand const &operand(int index) const;
  /// Marks the end of the last launch on a stream that the caller named; null where there was none.
  std::shared_ptr<Event> explicit_end() const { return explicit_end_; }

 private:
  void run_on(CUstream stream);
  void launch(CUstream stream);

  std::shared_ptr<DeviceKernel> kernel_;
  pycutlass_gemm_call record_{};
  std::array<OperandSlot, 4> slots_;
  StreamSource stream_;
  pycutlass_plan_result result_{};
  CUlaunchConfig config_{};
  CUlaunchAttribute attributes_[1];
  void *arguments_[1];
  bool launched_ = false;
  CUstream explicit_stream_ = nullptr;
  std::shared_ptr<Event> explicit_end_;
  alignas(128) unsigned char params_[PYCUTLASS_MAX_PARAMS];
};

}  // namespace pycutlass
