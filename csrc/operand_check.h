// Whether what a user gave stands for an operand, in any of the ways in which it may: with strides, flat, as an address
// alone, with dimensions that are folded into rows, shared by a batch. Tensors of any library, and such without memory.
#pragma once

#include <pybind11/pybind11.h>

#include "operand_rule.h"

namespace pycutlass {

/// Adds the classes OperandRule and ConvRule, and the names of rules that may be broken, to the module.
void bind_operand_rule(pybind11::module_& m);

}  // namespace pycutlass
