// Whether torch's dispatcher has nothing to do for a call but to find what computes it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace pycutlass {

/// The state of torch in this thread that its dispatcher looks at: modes, transforms, autocast, tracing, profilers.
class TorchDispatch {
 public:
  /// Finds where torch keeps that state. False where this torch keeps it elsewhere: then no call is usual.
  static bool find();
  /// Whether nothing is on that would see a call, or change it. False where the state was not found.
  static bool is_usual();

 private:
  /// Dispatch keys that are added to those of tensors, and left out of them, as differences from the default.
  struct Keys {
    uint64_t included, excluded;
    bool operator==(Keys const& other) const { return included == other.included && excluded == other.excluded; }
  };

  static Keys keys();
  /// Whether a level of forward-mode differentiation is open, in which tensors may have tangents: nothing else of them
  /// shows that.
  static bool may_be_dual();
  static bool is_there(pybind11::object const& torch);

  inline static Keys in_inference_mode_{};
  inline static bool found_ = false;
  inline static void* library_ = nullptr;  // libc10, whose variable of each thread is looked up by name
  inline static int64_t (*function_modes_)() = nullptr;
  inline static bool (*has_callbacks_)() = nullptr;
  inline static PyObject* forward_mode_ = nullptr;  // what the module torch.autograd.forward_ad has
};

}  // namespace pycutlass
