// Two methods of Python classes that are on the way of every launch: Operation.run and Arguments.update. Their usual
// calls are served here; every other goes to the function in Python, which says what they do, and refuses what is
// wrong. A frame of Python, and a dictionary for keywords that nobody has given, take longer than all else that a
// launch costs above the driver's own time.
#pragma once

#include "bindings.h"

/// Adds fast_run and fast_update, each of which takes the function in Python and returns the method, to the module.
void bind_fast_methods(py::module_& m);
