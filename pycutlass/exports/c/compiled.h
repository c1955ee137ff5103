// Kernels that a program is compiled with: what kernel_*.cu and kernel_*_host.cpp have of each, listed in kernels.cu.
#pragma once

#include "kernel.h"

struct compiled_kernel {
  void const* (*function)();
  pycutlass_describe_function describe;
  pycutlass_describe_epilogue_function describe_epilogue;
  pycutlass_plan_function plan;
  pycutlass_bind_function bind;
};
extern compiled_kernel const compiled_kernels[];
