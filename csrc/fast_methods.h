// Two methods of Python classes that are on the way of every launch: Operation.run and Arguments.update. Their usual
// calls are served here; every other goes to the function in Python, which says what they do, and refuses what is
// wrong. A frame of Python, and a dictionary for keywords that nobody has given, take longer than all else that a
// launch costs above the driver's own time.
//
// What users call besides is checked here as well: whether the arguments are those that a function has.
#pragma once

#include "bindings.h"

/// Adds fast_run, fast_update and checked_call, which take functions in Python and return a method, to the module.
void bind_fast_methods(py::module_& m);
