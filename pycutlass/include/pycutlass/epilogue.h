// Turns the scalars of a call record into the parameters of an epilogue functor.
#pragma once

#include "pycutlass/abi.h"
#include "pycutlass/prelude.h"

#include <cutlass/cutlass.h>

namespace pycutlass {

template <typename Element>
Element scalar_value(pycutlass_scalars const &scalars, int index) {
  return Element(scalars.value[index]);
}

template <typename Element>
Element const *scalar_pointer(pycutlass_scalars const &scalars, int index) {
  return static_cast<Element const *>(scalars.pointer[index]);
}

/// Parameters of functors that take alpha and beta: LinearCombination and its relatives.
template <typename OutputOp>
struct EpilogueParams {
  using Element = typename OutputOp::ElementCompute;
  using Params = typename OutputOp::Params;

  static Params make(pycutlass_scalars const &scalars) {
    Params params(scalar_value<Element>(scalars, 0), scalar_value<Element>(scalars, 1));
    params.alpha_ptr = scalar_pointer<Element>(scalars, 0);
    params.beta_ptr = scalar_pointer<Element>(scalars, 1);
    return params;
  }
};

/// The same for fusions of the 3.x API.
template <typename Fusion>
struct FusionParams {
  using Element = typename Fusion::ElementScalar;

  template <typename Arguments>
  static void fill(Arguments &arguments, pycutlass_scalars const &scalars) {
    arguments.alpha = scalar_value<Element>(scalars, 0);
    arguments.beta = scalar_value<Element>(scalars, 1);
    arguments.alpha_ptr = scalar_pointer<Element>(scalars, 0);
    arguments.beta_ptr = scalar_pointer<Element>(scalars, 1);
  }
};

}  // namespace pycutlass
