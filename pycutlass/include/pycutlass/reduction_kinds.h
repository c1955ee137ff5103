// The kinds of reductions of an epilogue function: what begins, what takes a value, and what joins two results.
#pragma once

#include "pycutlass/function.h"

namespace pycutlass {

namespace function {

/// The kinds of reductions: what begins, what takes a value, and what joins two results.
struct Sum {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return Number(0);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return result + value;
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number join(Number left, Number right) {
    return left + right;
  }
};
struct SumOfSquares : Sum {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return result + value * value;
  }
};
struct Max {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return -infinity<Number>();
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return maximum(result, value);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number join(Number left, Number right) {
    return maximum(left, right);
  }
};
struct Min {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return infinity<Number>();
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return minimum(result, value);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number join(Number left, Number right) {
    return minimum(left, right);
  }
};
struct AbsMax : Max {
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return Number(0);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return maximum(result, abs(value));
  }
};

/// exp(x) and log(x). On a GPU in two instructions each, which are right to 2^-21: they are for sums of which the
/// largest part is 1.
CUTLASS_HOST_DEVICE float quick_exp(float x) { return activation::normal_exp2(x * 1.4426950408889634f); }
CUTLASS_HOST_DEVICE double quick_exp(double x) { return exp(x); }
CUTLASS_HOST_DEVICE float quick_log(float x) {
#if PYCUTLASS_DEVICE_SIDE
  float logarithm;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(logarithm) : "f"(x));
  return logarithm * 0.6931471805599453f;
#else
  return log(x);
#endif
}
CUTLASS_HOST_DEVICE double quick_log(double x) { return log(x); }

/// The logarithm of a sum of exponentials: one number says both how large the largest was and what they come to.
struct LogSumExp : Max {
  /// Takes many at once: one logarithm for all of them.
  template <int kCount, typename Number>
  CUTLASS_HOST_DEVICE static Number take_all(Number result, Number const* values) {
    Number shift = result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) shift = maximum(shift, values[i]);
    shift = abs(shift) < infinity<Number>() ? shift : Number(0);  // none yet, infinity or NaN: as exp has it
    Number sum = quick_exp(result - shift);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) sum = sum + quick_exp(values[i] - shift);
    return shift + quick_log(sum);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number join(Number left, Number right) {
    return take_all<1>(left, &right);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return join(result, value);
  }
};

/// What becomes of a result by many values.
template <int kCount, typename Kind, typename Number>
CUTLASS_HOST_DEVICE Number taken(Kind, Number result, Number const* values) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kCount; ++i) result = Kind::take(result, values[i]);
  return result;
}
template <int kCount, typename Number>
CUTLASS_HOST_DEVICE Number taken(LogSumExp, Number result, Number const* values) {
  return LogSumExp::take_all<kCount>(result, values);
}

}  // namespace function

}  // namespace pycutlass
