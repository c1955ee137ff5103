// Makes one generated text acceptable to three compilers: nvcc (device side), NVRTC (device side) and plain g++ (host
// side). Must come before any CUTLASS header.
//
// NVRTC has no standard library; CUTLASS uses a few `std` names there that it does not declare itself: `max` in 4.7.
// g++ is not supported by CUTLASS for kernels of its 3.x API; it needs the declarations below, which are never called,
// and must see the CUDA version only after `cutlass/arch/wmma.h`, which otherwise asks for nvcc's `nvcuda` namespace.
#pragma once

#if defined(__CUDACC_RTC__)

#define PYCUTLASS_DEVICE_SIDE 1
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
namespace std {
using cuda::std::is_pointer_v;
using cuda::std::void_t;
template <class T>
__host__ __device__ constexpr T const& max(T const& left, T const& right) {
  return left < right ? right : left;
}
template <class T>
struct tuple_size<const T> : tuple_size<T> {};
template <size_t I, class T>
struct tuple_element<I, const T> {
  using type = const typename tuple_element<I, T>::type;
};
}  // namespace std

#elif defined(__CUDACC__)

#define PYCUTLASS_DEVICE_SIDE 1

#else

#define PYCUTLASS_DEVICE_SIDE 0
// CUTLASS includes <iostream>, which prepares the standard streams in each library that includes it, and prints to one
// where the driver refuses a tensor map, which PyCUTLASS reports itself. A libstdc++ that is linked statically would
// add 450 KB for that, to be loaded each time. So the host side has no streams, and text for std::cerr goes nowhere.
#include <istream>
#include <ostream>
#if defined(__GLIBCXX__) && !defined(_GLIBCXX_IOSTREAM)
#define _GLIBCXX_IOSTREAM 1
namespace pycutlass {
struct NoStream {
  template <class T>
  NoStream const& operator<<(T const&) const {
    return *this;
  }
  NoStream const& operator<<(std::ostream& (*)(std::ostream&)) const { return *this; }
};
}  // namespace pycutlass
namespace std {
extern istream cin;
extern ostream cout, clog;
constexpr pycutlass::NoStream cerr{};
}  // namespace std
#endif
#include <cuda_runtime.h>
#include <device_launch_parameters.h>
void __syncthreads();
int __syncthreads_and(int);
void __syncwarp(unsigned = 0xffffffffu);
namespace cutlass {
namespace arch {
int SmId();
int LaneId();
}  // namespace arch
}  // namespace cutlass
#include <cutlass/arch/wmma.h>
#include <cutlass/cutlass.h>
#ifndef __CUDACC_VER_MAJOR__
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#endif

#endif
