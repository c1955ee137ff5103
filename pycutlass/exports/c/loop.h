// A plan as plain loops, to check kernels with.
#pragma once

#include <stdint.h>

#include "kernel.h"

/// A packed tensor of the host, as float: inputs are small and exact in it.
typedef struct {
  float* values;
  int64_t shape[PYCUTLASS_MAX_RANK], strides[PYCUTLASS_MAX_RANK];
  int rank;
} host_tensor;

/// Where an element of D is: matrix, row and column of a product, or image, row, column and channel.
typedef struct {
  int64_t at[PYCUTLASS_MAX_RANK];
} place_in_result;

/// The sum of products that is behind an element of D, the sum of their sizes, and how many they are.
double sum_of_products(checked_launch const* checked, host_tensor const* tensors, place_in_result place, double* sizes);
int64_t products_of(checked_launch const* checked);

/// What tensor `index` of the plan has for an element of D.
double value_beside(checked_launch const* checked, host_tensor const* tensors, uint32_t index, place_in_result place);

/// D, and what is written beside it, of one sum: written by Python (reference.c). `inputs` are C or a bias, then the
/// tensors that an epilogue reads.
void outputs_of(double sum, double const* inputs, double const* scalars, double* outputs);
extern int const accumulator_element, compute_element;
extern int64_t const usual_extent;  // M, or the number of images, without an argument
