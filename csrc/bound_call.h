// The two functions of a call that are on the way of every launch, without pybind11's search for an overload: that
// takes about as long as all else that a launch costs above the driver's own time.
#pragma once

#include <pybind11/pybind11.h>

namespace pycutlass {

/// A Python function (stream=None) that runs `call`, a pybind11 instance of Call, which it keeps alive.
pybind11::object bound_run(pybind11::object call);

/// A Python function (A, B, C, D, ...) that updates `call`; None keeps an operand.
pybind11::object bound_update(pybind11::object call);

}  // namespace pycutlass
