// The implicit GEMM of a convolution, checked.
#pragma once

#include "coords.h"
#include "cutlass/conv/conv2d_problem_size.h"
#include "cutlass/conv/convolution.h"

// cutlass::conv::implicit_gemm_problem_size, or ValueError where its 32-bit products would overflow.
cutlass::gemm::GemmCoord checked_implicit_gemm(cutlass::conv::Operator op, cutlass::conv::Conv2dProblemSize const& p);

// Whether two problems are the same in every attribute.
bool same_problem(cutlass::conv::Conv2dProblemSize const& a, cutlass::conv::Conv2dProblemSize const& b);
