// What epilogues compute, for plain loops: in double, by the definitions. Names are those of pycutlass/epilogue.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline double fn_maximum(double x, double y) { return x > y || x != x ? x : y; }
static inline double fn_minimum(double x, double y) { return x < y || x != x ? x : y; }
static inline double fn_power(double x, double y) { return pow(x, y); }
static inline double fn_remainder(double x, double y) {
  double const rest = fmod(x, y);
  if (rest == 0) return copysign(rest, y);
  return (rest < 0) != (y < 0) ? rest + y : rest;
}
static inline double fn_abs(double x) { return fabs(x); }
static inline double fn_floor(double x) { return floor(x); }
static inline double fn_ceil(double x) { return ceil(x); }
static inline double fn_round(double x) { return rint(x); }
static inline double fn_exp(double x) { return exp(x); }
static inline double fn_exp2(double x) { return exp2(x); }
static inline double fn_log(double x) { return log(x); }
static inline double fn_sqrt(double x) { return sqrt(x); }
static inline double fn_rsqrt(double x) { return 1 / sqrt(x); }
static inline double fn_erf(double x) { return erf(x); }
static inline double fn_softplus(double x) { return fn_maximum(x, 0) + log1p(exp(-fabs(x))); }
static inline double fn_identity(double x) { return x; }
static inline double fn_relu(double x) { return fn_maximum(x, 0); }
static inline double fn_leaky_relu(double x, double slope) { return x > 0 ? x : slope * x; }
static inline double fn_tanh(double x) { return tanh(x); }
static inline double fn_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static inline double fn_silu(double x) { return x / (1 + exp(-x)); }
static inline double fn_hardswish(double x) { return x * fn_minimum(fn_maximum(x + 3, 0), 6) / 6; }
static inline double fn_gelu(double x) { return 0.5 * x * erfc(-x * 0.70710678118654752440); }
static inline double fn_gelu_tanh(double x) {
  return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}
