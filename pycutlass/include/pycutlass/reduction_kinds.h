// The kinds of reductions of an epilogue function: what begins, what takes a value, and what joins two results.
#pragma once

#include "pycutlass/function.h"

namespace pycutlass {

namespace function {

/// The kinds of reductions: what begins, what one value alone comes to, what takes a value, and what joins two results.
/// Results that are joined are values of the kind `Joined`.
struct Sum {
  using Joined = Sum;

  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return Number(0);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number first(Number value) {
    return value;
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
  CUTLASS_HOST_DEVICE static Number first(Number value) {
    return value * value;
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return result + value * value;
  }
};
struct Max {
  using Joined = Max;

  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return -infinity<Number>();
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number first(Number value) {
    return value;
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
  using Joined = Min;

  template <typename Number>
  CUTLASS_HOST_DEVICE static Number begin() {
    return infinity<Number>();
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number first(Number value) {
    return value;
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
  CUTLASS_HOST_DEVICE static Number first(Number value) {
    return abs(value);
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return maximum(result, abs(value));
  }
};

/// What becomes of a result by many values. Every second one goes to a result of its own first, since each step of a
/// chain waits for the one before.
template <int kCount, typename Kind, typename Number>
CUTLASS_HOST_DEVICE Number taken(Kind, Number result, Number const* values) {
  constexpr int kChains = kCount % 2 == 0 && kCount > 2 ? 2 : 1;
  Number chains[kChains];
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kCount; ++i) {
    Number& chain = chains[i % kChains];
    chain = i > 0 && i < kChains ? Kind::first(values[i]) : Kind::take(i == 0 ? result : chain, values[i]);
  }
  CUTLASS_PRAGMA_UNROLL
  for (int i = 1; i < kChains; ++i) chains[0] = Kind::join(chains[0], chains[i]);
  return chains[0];
}

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
  using Joined = LogSumExp;

  /// Takes many at once: one logarithm for all of them.
  template <int kCount, typename Number>
  CUTLASS_HOST_DEVICE static Number take_all(Number result, Number const* values) {
    Number shift = taken<kCount>(Max(), result, values);
    shift = abs(shift) < infinity<Number>() ? shift : Number(0);  // none yet, infinity or NaN: as exp has it
    Number parts[kCount];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) parts[i] = quick_exp(values[i] - shift);
    // Where there is none yet a compiler knows that, and has an exponential less.
    Number const before = result == -infinity<Number>() ? Number(0) : quick_exp(result - shift);
    return shift + quick_log(taken<kCount>(Sum(), before, parts));
  }
  /// Of two, the exponential of the larger one is 1.
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number join(Number left, Number right) {
    Number const most = maximum(left, right), least = minimum(left, right);
    Number const result = most + quick_log(Number(1) + quick_exp(least - most));
    return abs(most) < infinity<Number>() ? result : most;  // infinity, NaN, or none yet
  }
  template <typename Number>
  CUTLASS_HOST_DEVICE static Number take(Number result, Number value) {
    return join(result, value);
  }
};

/// The same, with one logarithm for all of them.
template <int kCount, typename Number>
CUTLASS_HOST_DEVICE Number taken(LogSumExp, Number result, Number const* values) {
  return LogSumExp::take_all<kCount>(result, values);
}

}  // namespace function

}  // namespace pycutlass
