// A stream that stands still until the host lets it go on: so work can be queued as a whole before any of it runs.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "stream.h"

namespace pycutlass {

class Gate {
 public:
  /// Closes the stream behind what is on it now. It goes on by itself after `seconds`: whoever waits for it before the
  /// gate is opened, be it only for room in the driver's queue, does not wait forever.
  Gate(Stream const& stream, double seconds);
  ~Gate() { open(); }
  Gate(Gate const&) = delete;
  Gate& operator=(Gate const&) = delete;

  /// Lets the stream go on. False where it has done so by itself.
  bool open() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the driver's thread, which may come to it later than the gate's end
};

/// Adds the class to the module.
void bind_gate(pybind11::module_& m);

}  // namespace pycutlass
