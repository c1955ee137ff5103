// Activations that are right to the type that an epilogue computes in. Those of CUTLASS (epilogue/thread/activation.h)
// are not: f32 and f16 go through tanh.approx, and in f16 each step rounds and exp overflows. What they are right to is
// in docs/guide/epilogues.md.
#pragma once

#include "pycutlass/prelude.h"

#include <cutlass/array.h>
#include <cutlass/cutlass.h>
#include <cutlass/half.h>
#include <cutlass/platform/platform.h>

#if !defined(__CUDACC_RTC__)
#include <math.h>
#endif

namespace pycutlass {

namespace activation {

CUTLASS_HOST_DEVICE float exp(float x) { return ::expf(x); }
CUTLASS_HOST_DEVICE double exp(double x) { return ::exp(x); }
CUTLASS_HOST_DEVICE float tanh(float x) { return ::tanhf(x); }
CUTLASS_HOST_DEVICE double tanh(double x) { return ::tanh(x); }
CUTLASS_HOST_DEVICE float erf(float x) { return ::erff(x); }
CUTLASS_HOST_DEVICE float erfc(float x) { return ::erfcf(x); }
CUTLASS_HOST_DEVICE double erfc(double x) { return ::erfc(x); }

/// The type that an activation of T is computed in: f16 is rounded once, at the end.
template <typename T>
struct WideOf {
  using type = T;
};
template <>
struct WideOf<cutlass::half_t> {
  using type = float;
};
template <typename T>
using Wide = typename WideOf<T>::type;

/// 1 / x of a normal number, right to one unit in the last place (PTX ISA, rcp.approx.ftz): a division takes four times
/// as long.
CUTLASS_HOST_DEVICE float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0f / x;
#endif
}
CUTLASS_HOST_DEVICE double reciprocal(double x) { return 1.0 / x; }

/// 1 / (1 + exp(-x)), where exp cannot overflow and small results keep their digits.
template <typename T>
CUTLASS_HOST_DEVICE T sigmoid(T x) {
  T const small = exp(x < T(0) ? x : -x);
  T const large = reciprocal(T(1) + small);
  return x < T(0) ? small * large : large;
}

/// What CUTLASS calls: an activation of one number, or of each in an array.
template <template <typename> class Activation, typename T>
struct Each {
  static bool const kIsHeavy = true;

  CUTLASS_HOST_DEVICE T operator()(T const& x) const { return T(Activation<T>::of(Wide<T>(x))); }
};

template <template <typename> class Activation, typename T, int N>
struct Each<Activation, cutlass::Array<T, N>> {
  static bool const kIsHeavy = true;

  CUTLASS_HOST_DEVICE cutlass::Array<T, N> operator()(cutlass::Array<T, N> const& x) const {
    cutlass::Array<T, N> result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) result[i] = T(Activation<T>::of(Wide<T>(x[i])));
    return result;
  }
};

}  // namespace activation

template <typename T>
struct Tanh : activation::Each<Tanh, T> {
  using Number = activation::Wide<T>;
  CUTLASS_HOST_DEVICE static Number of(Number x) { return activation::tanh(x); }
};

template <typename T>
struct Sigmoid : activation::Each<Sigmoid, T> {
  using Number = activation::Wide<T>;
  CUTLASS_HOST_DEVICE static Number of(Number x) { return activation::sigmoid(x); }
};

template <typename T>
struct SiLu : activation::Each<SiLu, T> {
  using Number = activation::Wide<T>;
  CUTLASS_HOST_DEVICE static Number of(Number x) { return x * activation::sigmoid(x); }
};

template <typename T>
struct HardSwish : activation::Each<HardSwish, T> {
  using Number = activation::Wide<T>;
  CUTLASS_HOST_DEVICE static Number of(Number x) {
    Number share = x + Number(3);
    share = share > Number(0) ? share : Number(0);
    share = share < Number(6) ? share : Number(6);
    return x * (share * Number(1.0 / 6));
  }
};

template <typename T>
struct Gelu : activation::Each<Gelu, T> {
  using Number = activation::Wide<T>;
  CUTLASS_HOST_DEVICE static Number of(Number x) {
    Number const scaled = x * Number(0.70710678118654752440);
    if constexpr (cutlass::platform::is_same<T, float>::value) {
      return Number(0.5) * x * (Number(1) + activation::erf(scaled));  // half of the time that erfc takes
    } else {
      return Number(0.5) * x * activation::erfc(-scaled);
    }
  }
};

/// x / 2 * (1 + tanh(u)) is x * sigmoid(2 u), which does not cancel.
template <typename T>
struct GeluTanh : activation::Each<GeluTanh, T> {
  using Number = activation::Wide<T>;
  CUTLASS_HOST_DEVICE static Number of(Number x) {
    Number const twice = Number(1.5957691216057307117) * x * (Number(1) + Number(0.044715) * x * x);
    return x * activation::sigmoid(twice);
  }
};

}  // namespace pycutlass
