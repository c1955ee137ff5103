// What the nodes of an epilogue function compute, for one element, and how results are rounded to the type that is
// written. Names are those of pycutlass/epilogue/nodes.py.
#pragma once

#include "pycutlass/activation.h"
#include "pycutlass/prelude.h"

#include <cutlass/array.h>
#include <cutlass/bfloat16.h>
#include <cutlass/cutlass.h>
#include <cutlass/float8.h>
#include <cutlass/half.h>
#include <cutlass/platform/platform.h>

#if !defined(__CUDACC_RTC__)
#include <math.h>
#endif

namespace pycutlass {

namespace function {

CUTLASS_HOST_DEVICE float exp(float x) { return ::expf(x); }
CUTLASS_HOST_DEVICE double exp(double x) { return ::exp(x); }
CUTLASS_HOST_DEVICE float exp2(float x) { return ::exp2f(x); }
CUTLASS_HOST_DEVICE double exp2(double x) { return ::exp2(x); }
CUTLASS_HOST_DEVICE float log(float x) { return ::logf(x); }
CUTLASS_HOST_DEVICE double log(double x) { return ::log(x); }
CUTLASS_HOST_DEVICE float log1p(float x) { return ::log1pf(x); }
CUTLASS_HOST_DEVICE double log1p(double x) { return ::log1p(x); }
CUTLASS_HOST_DEVICE float sqrt(float x) { return ::sqrtf(x); }
CUTLASS_HOST_DEVICE double sqrt(double x) { return ::sqrt(x); }
CUTLASS_HOST_DEVICE float rsqrt(float x) { return 1 / ::sqrtf(x); }
CUTLASS_HOST_DEVICE double rsqrt(double x) { return 1 / ::sqrt(x); }
CUTLASS_HOST_DEVICE float erf(float x) { return ::erff(x); }
CUTLASS_HOST_DEVICE double erf(double x) { return ::erf(x); }
CUTLASS_HOST_DEVICE float floor(float x) { return ::floorf(x); }
CUTLASS_HOST_DEVICE double floor(double x) { return ::floor(x); }
CUTLASS_HOST_DEVICE float ceil(float x) { return ::ceilf(x); }
CUTLASS_HOST_DEVICE double ceil(double x) { return ::ceil(x); }
CUTLASS_HOST_DEVICE float round(float x) { return ::rintf(x); }
CUTLASS_HOST_DEVICE double round(double x) { return ::rint(x); }
CUTLASS_HOST_DEVICE float abs(float x) { return ::fabsf(x); }
CUTLASS_HOST_DEVICE double abs(double x) { return ::fabs(x); }
CUTLASS_HOST_DEVICE float power(float x, float y) { return ::powf(x, y); }
CUTLASS_HOST_DEVICE double power(double x, double y) { return ::pow(x, y); }
CUTLASS_HOST_DEVICE float fmod(float x, float y) { return ::fmodf(x, y); }
CUTLASS_HOST_DEVICE double fmod(double x, double y) { return ::fmod(x, y); }
CUTLASS_HOST_DEVICE float copysign(float x, float y) { return ::copysignf(x, y); }
CUTLASS_HOST_DEVICE double copysign(double x, double y) { return ::copysign(x, y); }

/// NaN where either is, as in NumPy and torch.
template <typename Number>
CUTLASS_HOST_DEVICE Number maximum(Number x, Number y) {
  return x > y || x != x ? x : y;
}
template <typename Number>
CUTLASS_HOST_DEVICE Number minimum(Number x, Number y) {
  return x < y || x != x ? x : y;
}
/// The same in one instruction, in place of three.
CUTLASS_HOST_DEVICE float maximum(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return activation::at_least(y, x);
#else
  return maximum<float>(x, y);
#endif
}
CUTLASS_HOST_DEVICE float minimum(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
#else
  return minimum<float>(x, y);
#endif
}

/// With the sign of the divisor, as Python's % has it, zeros too.
template <typename Number>
CUTLASS_HOST_DEVICE Number remainder(Number x, Number y) {
  Number const rest = fmod(x, y);
  if (rest == Number(0)) return copysign(rest, y);
  return (rest < Number(0)) != (y < Number(0)) ? rest + y : rest;
}

template <typename Number>
CUTLASS_HOST_DEVICE Number softplus(Number x) {
  return maximum(x, Number(0)) + log1p(exp(-abs(x)));
}

template <typename Number>
CUTLASS_HOST_DEVICE Number infinity() {
  return Number(CUTLASS_STL_NAMESPACE::numeric_limits<float>::infinity());
}

/// An element as a number that is computed with. CUTLASS's narrow types become f32, and nothing else; f32 does not hold
/// every int32.
template <typename Number, typename Element>
CUTLASS_HOST_DEVICE Number widened(Element const& element) {
  if constexpr (sizeof(Element) < sizeof(float)) {
    return Number(static_cast<float>(element));
  } else {
    return Number(element);
  }
}

/// A number rounded to an element type: to nearest even; narrow types saturate, and NaN becomes 0 in integers.
template <typename Element>
struct Stored {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Element of(Number x) {
    return Element(x);
  }
};
template <int kBits, typename Element>
struct StoredInteger {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Element of(Number x) {
    constexpr auto greatest = Element((1u << (kBits - 1)) - 1);
    constexpr Number beyond = Number(1u << (kBits - 1));
    x = round(x);
    if (x != x) return 0;
    return x >= beyond ? greatest : x <= -beyond ? Element(-greatest - 1) : Element(x);
  }
};
template <>
struct Stored<int8_t> : StoredInteger<8, int8_t> {};
template <>
struct Stored<uint8_t> {
  template <typename Number>
  CUTLASS_HOST_DEVICE static uint8_t of(Number x) {
    x = round(x);
    return x > Number(0) ? x >= Number(255) ? uint8_t(255) : uint8_t(int32_t(x)) : uint8_t(0);  // NaN is not above 0
  }
};
template <>
struct Stored<int32_t> : StoredInteger<32, int32_t> {};
template <>
struct Stored<cutlass::half_t> {
  CUTLASS_HOST_DEVICE static cutlass::half_t of(float x) { return cutlass::half_t(x); }
  /// Through the float beside x whose last bit is 1, where x is none itself: it is no tie unless x is.
  CUTLASS_HOST_DEVICE static cutlass::half_t of(double x) {
    union {
      float number;
      uint32_t bits;
    } near = {float(x)};
    if (double(near.number) != x && x == x) {
      near.bits -= abs(double(near.number)) > abs(x);
      near.bits |= 1;
    }
    return cutlass::half_t(near.number);
  }
};
template <>
struct Stored<cutlass::bfloat16_t> {
  CUTLASS_HOST_DEVICE static cutlass::bfloat16_t of(float x) { return cutlass::bfloat16_t(x); }
  CUTLASS_HOST_DEVICE static cutlass::bfloat16_t of(double x) { return cutlass::bfloat16_t(float(x)); }
};

/// Floats of 8 bits saturate, infinities too, and keep NaN: as ml_dtypes and torch convert what was clamped before.
/// `kBias` belongs to their exponent.
template <typename Element, int kMantissa, int kBias, int kGreatest>
struct StoredFloat8 {
  CUTLASS_HOST_DEVICE static Element of(double x) { return of(float(x)); }
  CUTLASS_HOST_DEVICE static Element of(float x) {
#if defined(CUDA_PTX_FP8_CVT_ENABLED)
    return Element(x);  // an instruction that does the same
#else
    constexpr int kShift = 23 - kMantissa;
    uint8_t const sign = uint8_t(bits_of(x) >> 24) & 0x80;
    if (x != x) return Element::bitcast(0x7f);
    float const size = minimum(abs(x), float(kGreatest));
    if (size * float(1 << (kBias - 1)) < 1) {  // less than the least normal one, in steps of one size
      return Element::bitcast(sign | uint8_t(round(size * float(1 << (kBias - 1 + kMantissa)))));
    }
    uint32_t bits = bits_of(size);
    bits += (1u << (kShift - 1)) - 1 + (bits >> kShift & 1);
    return Element::bitcast(sign | uint8_t((bits >> kShift) - ((127 - kBias) << kMantissa)));
#endif
  }

 private:
  CUTLASS_HOST_DEVICE static uint32_t bits_of(float x) {
    union {
      float number;
      uint32_t bits;
    } const both = {x};
    return both.bits;
  }
};
template <>
struct Stored<cutlass::float_e4m3_t> : StoredFloat8<cutlass::float_e4m3_t, 3, 7, 448> {};
template <>
struct Stored<cutlass::float_e5m2_t> : StoredFloat8<cutlass::float_e5m2_t, 2, 15, 57344> {};

template <typename Element, typename Number>
CUTLASS_HOST_DEVICE Number rounded_to(Number x) {
  return widened<Number>(Stored<Element>::of(x));
}

}  // namespace function

}  // namespace pycutlass
