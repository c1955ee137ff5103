// The host side of a kernel in a program that is linked with the CUDA runtime. What CUTLASS's host code calls of the
// runtime goes to functions of our own (host.h), which have other names here, as have the four that tell of the kernel:
// a program may have several kernels. KERNEL_HOST is the number of this one.
#define KERNEL_JOIN(number, name) kernel_##number##_##name
#define KERNEL_NAME(number, name) KERNEL_JOIN(number, name)
#define cudaGetDevice KERNEL_NAME(KERNEL_HOST, cudaGetDevice)
#define cudaDeviceGetAttribute KERNEL_NAME(KERNEL_HOST, cudaDeviceGetAttribute)
#define cudaDriverGetVersion KERNEL_NAME(KERNEL_HOST, cudaDriverGetVersion)
#define cudaGetDriverEntryPointByVersion KERNEL_NAME(KERNEL_HOST, cudaGetDriverEntryPointByVersion)
#define cudaMemsetAsync KERNEL_NAME(KERNEL_HOST, cudaMemsetAsync)
#define pycutlass_describe KERNEL_NAME(KERNEL_HOST, describe)
#define pycutlass_describe_epilogue KERNEL_NAME(KERNEL_HOST, describe_epilogue)
#define pycutlass_plan KERNEL_NAME(KERNEL_HOST, plan)
#define pycutlass_bind KERNEL_NAME(KERNEL_HOST, bind)
// nvcc says its version to the host compiler as well, which CUTLASS then takes for nvcc.
#undef __CUDACC_VER_MAJOR__
#undef __CUDACC_VER_MINOR__
#undef __CUDACC_VER_BUILD__
#include KERNEL_TEXT
