// Numbers of all element types, in memory and as double. Nothing here needs the mathematical library.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "pycutlass/abi.h"

/// Bits of a float with so many bits of exponent and mantissa: rounded to nearest even; what is beyond `greatest`
/// becomes `greatest`, which are bits too.
static inline uint32_t encode_float(double x, int exponent_bits, int mantissa, uint32_t greatest) {
  int const bias = (1 << (exponent_bits - 1)) - 1;
  uint32_t const sign = signbit(x) ? UINT32_C(1) << (exponent_bits + mantissa) : 0;
  double const size = x < 0 ? -x : x, whole = 4503599627370496.0;  // beyond 2^52 there are no fractions
  int exponent = 0;
  if (x != x) return (UINT32_C(1) << (exponent_bits + mantissa)) - 1;
  if (size == 0) return sign;
  if (size > 1e300) return sign | greatest;
  frexp(size, &exponent);
  exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
  double volatile const steps = ldexp(size, mantissa - exponent) + whole;
  uint64_t const bits = (uint64_t)(steps - whole) + ((uint64_t)(exponent + bias - 1) << mantissa);
  return sign | (bits > greatest ? greatest : (uint32_t)bits);
}

static inline double decode_float(uint32_t bits, int exponent_bits, int mantissa, uint32_t greatest) {
  int const bias = (1 << (exponent_bits - 1)) - 1;
  uint32_t const size = bits & ((UINT32_C(1) << (exponent_bits + mantissa)) - 1);
  uint32_t const exponent = size >> mantissa, fraction = size & ((UINT32_C(1) << mantissa) - 1);
  double value = exponent ? ldexp(fraction + (double)(UINT32_C(1) << mantissa), (int)exponent - bias - mantissa)
                          : ldexp(fraction, 1 - bias - mantissa);
  if (size > greatest) value = NAN;
  return bits >> (exponent_bits + mantissa) & 1 ? -value : value;
}

static inline double whole_number(double x, double least, double most) {
  if (x != x) return 0;
  if (x <= least) return least;
  if (x >= most) return most;
  double volatile const shifted = x + 6755399441055744.0;  // 1.5 * 2^52: rounds to nearest even
  return shifted - 6755399441055744.0;
}

/// Writes a number as an element: rounded to nearest even, to 16 bits by way of f32; integers and floats of 8 bits are
/// limited to their range.
static inline void store_number(void* at, int element, double value) {
  float const single = (float)value;
  uint32_t bits = 0;
  size_t bytes = 4;
  switch (element) {
    case PYCUTLASS_F64:
      memcpy(at, &value, 8);
      return;
    case PYCUTLASS_F32:
    case PYCUTLASS_TF32:
      memcpy(at, &single, 4);
      return;
    case PYCUTLASS_F16:
      bits = encode_float(single, 5, 10, 0x7c00), bytes = 2;
      break;
    case PYCUTLASS_BF16:
      bits = encode_float(single, 8, 7, 0x7f80), bytes = 2;
      break;
    case PYCUTLASS_E4M3:
      bits = encode_float(value, 4, 3, 0x7e), bytes = 1;
      break;
    case PYCUTLASS_E5M2:
      bits = encode_float(value, 5, 2, 0x7b), bytes = 1;
      break;
    case PYCUTLASS_S8:
      bits = (uint32_t)(int32_t)whole_number(value, -128, 127), bytes = 1;
      break;
    case PYCUTLASS_U8:
      bits = (uint32_t)whole_number(value, 0, 255), bytes = 1;
      break;
    case PYCUTLASS_S32:
      bits = (uint32_t)(int32_t)whole_number(value, INT32_MIN, INT32_MAX);
      break;
    default: {
      int64_t const whole = (int64_t)value;
      memcpy(at, &whole, 8);
      return;
    }
  }
  memcpy(at, &bits, bytes);  // the low bytes come first
}

static inline double load_number(void const* at, int element) {
  double value = 0;
  float single = 0;
  int32_t integer = 0;
  uint16_t half = 0;
  uint8_t const byte = *(uint8_t const*)at;
  switch (element) {
    case PYCUTLASS_F64:
      memcpy(&value, at, 8);
      return value;
    case PYCUTLASS_F32:
    case PYCUTLASS_TF32:
      memcpy(&single, at, 4);
      return single;
    case PYCUTLASS_F16:
      memcpy(&half, at, 2);
      return half == 0x7c00 ? INFINITY : half == 0xfc00 ? -INFINITY : decode_float(half, 5, 10, 0x7c00);
    case PYCUTLASS_BF16:
      memcpy(&half, at, 2);
      return half == 0x7f80 ? INFINITY : half == 0xff80 ? -INFINITY : decode_float(half, 8, 7, 0x7f80);
    case PYCUTLASS_E4M3:
      return decode_float(byte, 4, 3, 0x7e);
    case PYCUTLASS_E5M2:
      return decode_float(byte, 5, 2, 0x7b);
    case PYCUTLASS_S8:
      return (int8_t)byte;
    case PYCUTLASS_U8:
      return byte;
    default:
      memcpy(&integer, at, 4);
      return integer;
  }
}

static inline double rounded_to(int element, double value) {
  char memory[8];
  store_number(memory, element, value);
  return load_number(memory, element);
}
