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
CUTLASS_HOST_DEVICE double tanh(double x) { return ::tanh(x); }
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
/// f32 whose results are rounded to 16 bits: activations are right to 2^-14, with half of the instructions. These take
/// time even beside a mainloop.
struct Narrow {};
template <>
struct WideOf<Narrow> {
  using type = float;
};
/// f32 whose results are rounded to bfloat16 or to 8 bits: activations are right to 2^-11.
struct Bfloat {};
template <>
struct WideOf<Bfloat> {
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

/// 2 to the power of x, 0 where that is not a normal number (PTX ISA, ex2.approx.ftz: right to 2^-22).
CUTLASS_HOST_DEVICE float normal_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  float const result = ::exp2f(x);
  return result < 1.17549435e-38f ? 0.0f : result;
#endif
}

/// The larger of x and a number, and NaN where x is. In one instruction, without a predicate.
CUTLASS_HOST_DEVICE float at_least(float least, float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(least));
  return result;
#else
  return x < least ? least : x;
#endif
}

/// 2 to the power of an integer from -126 to 127 that was added to 12582912 = 1.5 * 2^23.
CUTLASS_HOST_DEVICE float power_of_two(float shifted) {
#if defined(__CUDA_ARCH__)
  return __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
#else
  return ::exp2f(shifted - 12582912.0f);
#endif
}

/// (1 - e) / (1 + e) with e = exp(-2 |x|) = 2^(n + f) for an integer n and |f| <= 1/2. e - 1 is 2^n (2^f - 1) + (2^n -
/// 1), where 2^f - 1 is a polynomial, so that small results keep their digits. There is no branch in it.
CUTLASS_HOST_DEVICE float tanh(float x) {
  float const exponent = at_least(-30.0f, -2.88539008f * ::fabsf(x));
  float const shifted = exponent + 12582912.0f;
  float const f = exponent - (shifted - 12582912.0f);
  float p = 0x1.4308fap-13f;
  p = p * f + 0x1.5f07b4p-10f;
  p = p * f + 0x1.3b2ba0p-7f;
  p = p * f + 0x1.c6af6ep-5f;
  p = p * f + 0x1.ebfbdep-3f;
  p = p * f + 0x1.62e430p-1f;
  float const scale = power_of_two(shifted);
  float const less = scale * (p * f) + (scale - 1.0f);
  return ::copysignf(less * reciprocal(2.0f + less), x);
}

/// The same from the formula as it stands, where 1 - e has digits enough.
CUTLASS_HOST_DEVICE float narrow_tanh(float x) {
  float const e = normal_exp2(-2.88539008f * ::fabsf(x));
  float const large = ::copysignf((1.0f - e) * reciprocal(1.0f + e), x);
  return ::fabsf(x) < 0x1p-9f ? x : large;
}

/// The same in one instruction, right to 2^-11 (PTX ISA, tanh.approx).
CUTLASS_HOST_DEVICE float approximate_tanh(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return ::tanhf(x);
#endif
}

/// 1 / (1 + exp(-x)). Where exp is infinite, that is 0.
CUTLASS_HOST_DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp(-x)); }
CUTLASS_HOST_DEVICE double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
CUTLASS_HOST_DEVICE float narrow_sigmoid(float x) { return reciprocal(1.0f + normal_exp2(-1.44269504f * x)); }

/// x / 2 * (1 + tanh(u)) is x * sigmoid(2 u), which does not cancel.
template <typename Number>
CUTLASS_HOST_DEVICE Number gelu_tanh(Number x) {
  Number const twice = Number(1.5957691216057307117) * x * (Number(1) + Number(0.044715) * x * x);
  return x * sigmoid(twice);
}
/// The same, with the factor of the exponent in the polynomial.
CUTLASS_HOST_DEVICE float narrow_gelu_tanh(float x) {
  float const exponent = x * (x * x * -0.102943240f - 2.30220819f);
  return x * reciprocal(1.0f + normal_exp2(exponent));
}

/// x Phi(x), with the normal distribution function Phi. It is max(x, 0) - t Phi(-t) for t = |x|, and Phi(-t) = 2^p(t):
/// p is a polynomial without a branch, so that a processor works on many elements at once. It was fitted to the least
/// error in [0, 6]; beyond it falls without end, as the logarithm of Phi does. At 14 the power is 0.
CUTLASS_HOST_DEVICE float gelu_of_exponent(float x, float t, float p) { return at_least(0.0f, x) - t * normal_exp2(p); }

/// Right to 5e-6 of the result down to -6, to 3e-7 from -1 on.
CUTLASS_HOST_DEVICE float gelu(float x) {
  float const t = ::fminf(::fabsf(x), 14.0f);
  float p = -0x1.5dd12ap-26f;
  p = p * t + 0x1.576862p-21f;
  p = p * t - 0x1.20350cp-17f;
  p = p * t + 0x1.05b524p-14f;
  p = p * t - 0x1.e316e0p-13f;
  p = p * t - 0x1.b6db70p-14f;
  p = p * t + 0x1.cfe52ep-8f;
  p = p * t - 0x1.ae5a8ep-5f;
  p = p * t - 0x1.d635bap-2f;
  p = p * t - 0x1.26af04p+0f;
  return gelu_of_exponent(x, t, p * t - 1.0f);
}
/// Right to 6e-5 of the result down to -6.
CUTLASS_HOST_DEVICE float narrow_gelu(float x) {
  float const t = ::fminf(::fabsf(x), 14.0f);
  float p = 0x1.8924fap-16f;
  p = p * t - 0x1.44ebf8p-11f;
  p = p * t + 0x1.dbd07ap-8f;
  p = p * t - 0x1.a538a2p-5f;
  p = p * t - 0x1.d7ec9ep-2f;
  p = p * t - 0x1.2685e2p+0f;
  return gelu_of_exponent(x, t, p * t - 1.0f);
}
/// Right to 4.3e-4 of the result down to -6.
CUTLASS_HOST_DEVICE float approximate_gelu(float x) {
  float const t = ::fminf(::fabsf(x), 14.0f);
  float p = -0x1.b746e0p-13f;
  p = p * t + 0x1.2d10f0p-8f;
  p = p * t - 0x1.64f68cp-5f;
  p = p * t - 0x1.e23256p-2f;
  p = p * t - 0x1.257636p+0f;
  return gelu_of_exponent(x, t, p * t - 1.0f);
}

/// The same for kernels that multiply by wgmma. On an H100 its tensor cores wait for about a cycle for each instruction
/// of the FMA pipe beside them, beyond two or three for each element and whatever the numbers are; for powers of two,
/// and for the ALU's minima and maxima, they do not. With 2^-t beside it, a polynomial of degree 3 does what one of
/// degree 6 does alone. Beside mma.sync, the second power takes longer than the products that it saves.
CUTLASS_HOST_DEVICE float narrow_gelu_by_powers(float x) {
  float const t = ::fminf(::fabsf(x), 14.0f);
  float const h = 0x1.f1a250p-1f * normal_exp2(-t) - 0x1.f8d5ecp+0f;
  float p = -0x1.c53024p-11f;
  p = p * t - 0x1.6247eap-1f;
  p = p * t - 0x1.e897d0p-2f;
  return gelu_of_exponent(x, t, p * t + h);
}
/// Right to 4.6e-4 of the result down to -5, to 1e-9 from there on.
CUTLASS_HOST_DEVICE float approximate_gelu_by_powers(float x) {
  float const t = ::fminf(::fabsf(x), 14.0f);
  float const h = 0x1.0b0c44p+0f * normal_exp2(-t) - 0x1.0570a0p+1f;
  float const p = -0x1.67921ep-1f * t - 0x1.bbb1a6p-2f;
  return gelu_of_exponent(x, t, p * t + h);
}
/// Of less than -40 the power is 0, and infinity times 0 is none.
CUTLASS_HOST_DEVICE double gelu(double x) {
  double const least = x < -40 ? -40 : x;
  return 0.5 * least * erfc(-0.70710678118654752440 * least);
}

/// Whether this is the device code of a kernel with wgmma: no other one is compiled for sm_90a.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kIsForWgmma = true;
#else
constexpr bool kIsForWgmma = false;
#endif

/// The activations that are computed in another way for Narrow.
template <typename T>
struct Formulas {
  using Number = Wide<T>;
  CUTLASS_HOST_DEVICE static Number tanh(Number x) { return activation::tanh(x); }
  CUTLASS_HOST_DEVICE static Number sigmoid(Number x) { return activation::sigmoid(x); }
  CUTLASS_HOST_DEVICE static Number gelu(Number x) { return activation::gelu(x); }
  CUTLASS_HOST_DEVICE static Number gelu_tanh(Number x) { return activation::gelu_tanh(x); }
};
template <>
struct Formulas<Narrow> {
  CUTLASS_HOST_DEVICE static float tanh(float x) { return narrow_tanh(x); }
  CUTLASS_HOST_DEVICE static float sigmoid(float x) { return narrow_sigmoid(x); }
  CUTLASS_HOST_DEVICE static float gelu(float x) { return kIsForWgmma ? narrow_gelu_by_powers(x) : narrow_gelu(x); }
  CUTLASS_HOST_DEVICE static float gelu_tanh(float x) { return narrow_gelu_tanh(x); }
};
template <>
struct Formulas<Bfloat> {
  CUTLASS_HOST_DEVICE static float tanh(float x) { return approximate_tanh(x); }
  CUTLASS_HOST_DEVICE static float sigmoid(float x) { return narrow_sigmoid(x); }
  CUTLASS_HOST_DEVICE static float gelu(float x) {
    return kIsForWgmma ? approximate_gelu_by_powers(x) : approximate_gelu(x);
  }
  CUTLASS_HOST_DEVICE static float gelu_tanh(float x) { return narrow_gelu_tanh(x); }
};

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
  CUTLASS_HOST_DEVICE static Number of(Number x) { return activation::Formulas<T>::tanh(x); }
};

template <typename T>
struct Sigmoid : activation::Each<Sigmoid, T> {
  using Number = activation::Wide<T>;
  CUTLASS_HOST_DEVICE static Number of(Number x) { return activation::Formulas<T>::sigmoid(x); }
};

template <typename T>
struct SiLu : activation::Each<SiLu, T> {
  using Number = activation::Wide<T>;
  CUTLASS_HOST_DEVICE static Number of(Number x) { return x * activation::Formulas<T>::sigmoid(x); }
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
  CUTLASS_HOST_DEVICE static Number of(Number x) { return activation::Formulas<T>::gelu(x); }
};

template <typename T>
struct GeluTanh : activation::Each<GeluTanh, T> {
  using Number = activation::Wide<T>;
  CUTLASS_HOST_DEVICE static Number of(Number x) { return activation::Formulas<T>::gelu_tanh(x); }
};

}  // namespace pycutlass
