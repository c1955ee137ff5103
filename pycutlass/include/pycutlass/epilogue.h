// Turns the scalars of a call record into the parameters of an epilogue functor.
#pragma once

#include "pycutlass/abi.h"
#include "pycutlass/activation.h"
#include "pycutlass/prelude.h"

#include <cutlass/cutlass.h>

#if !PYCUTLASS_DEVICE_SIDE

#include <type_traits>
#include <utility>

namespace pycutlass {

template <typename Element>
Element scalar_value(pycutlass_scalars const& scalars, int index) {
  return Element(scalars.value[index]);
}

template <typename Element>
Element const* scalar_pointer(pycutlass_scalars const& scalars, int index) {
  return static_cast<Element const*>(scalars.pointer[index]);
}

template <typename Arguments, typename = void>
struct HasLeakyAlpha : std::false_type {};
template <typename Arguments>
struct HasLeakyAlpha<Arguments, std::void_t<decltype(std::declval<Arguments&>().leaky_alpha)>> : std::true_type {};

/// Parameters of a thread-level functor: LinearCombination and its relatives of CUTLASS's 2.x API.
template <typename OutputOp>
struct EpilogueParams {
  using Element = typename OutputOp::ElementCompute;
  using Params = typename OutputOp::Params;

  static Params make(pycutlass_scalars const& scalars) {
    Params params;
    params.alpha = scalar_value<Element>(scalars, 0);
    params.beta = scalar_value<Element>(scalars, 1);
    params.alpha_ptr = scalar_pointer<Element>(scalars, 0);
    params.beta_ptr = scalar_pointer<Element>(scalars, 1);
    if constexpr (HasLeakyAlpha<Params>::value) params.leaky_alpha = scalar_value<Element>(scalars, 2);
    return params;
  }
};

/// The same for fusions of the 3.x API.
template <typename Fusion>
struct FusionParams {
  using Element = typename Fusion::ElementScalar;

  template <typename Arguments>
  static void fill(Arguments& arguments, pycutlass_scalars const& scalars) {
    arguments.alpha = scalar_value<Element>(scalars, 0);
    arguments.beta = scalar_value<Element>(scalars, 1);
    arguments.alpha_ptr = scalar_pointer<Element>(scalars, 0);
    arguments.beta_ptr = scalar_pointer<Element>(scalars, 1);
    fill_activation(arguments, scalars, 0);
  }

 private:
  /// Chosen where the fusion has an activation with a slope; the other overload does nothing.
  template <typename Arguments>
  static auto fill_activation(Arguments& arguments, pycutlass_scalars const& scalars, int)
      -> decltype((void)arguments.activation.leaky_alpha) {
    arguments.activation.leaky_alpha = scalar_value<Element>(scalars, 2);
  }
  template <typename Arguments>
  static void fill_activation(Arguments&, pycutlass_scalars const&, long) {}
};

}  // namespace pycutlass

#endif
