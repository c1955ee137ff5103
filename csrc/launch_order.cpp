// On which stream launches go, and whose turn it is to launch.
#include <chrono>
#include <thread>
#include <utility>

#include "bindings.h"
#include "driver.h"
#include "launch.h"

namespace py = pybind11;

namespace pycutlass {

void StreamSource::follow_library(dlpack::ExchangeApi const* api) {
  api_ = api;
  callable_ = py::object();
}

void StreamSource::follow_callable(py::object callable) {
  api_ = nullptr;
  callable_ = std::move(callable);
}

CUstream StreamSource::current_handle() const {
  if (api_) {
    void* stream = nullptr;
    if (api_->current_work_stream(dlpack::kCUDA, ordinal_, &stream) != 0) throw py::error_already_set();
    return static_cast<CUstream>(stream);
  }
  if (callable_) return stream_handle(callable_());
  return nullptr;  // the legacy default stream
}

namespace {

/// Waits until no other thread launches. Returns whether the turn is to be ended.
bool take_turn(unsigned long& thread) {
  unsigned long const self = PyThread_get_thread_ident();
  if (thread == self) return false;
  while (thread) {
    unlocked([] {
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // a launch takes about as long as that
      return CUDA_SUCCESS;
    });
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  thread = self;
  return true;
}

}  // namespace

Turn::Turn(unsigned long& thread) : thread_(thread), taken_(take_turn(thread)) {}

}  // namespace pycutlass
