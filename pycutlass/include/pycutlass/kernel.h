// PYCUTLASS_KERNEL(name, Operation): the one line that ends every generated text. On the device side it defines the
// kernel `name`; on the host side the functions that Python loads. PYCUTLASS_BOUNDED_KERNEL tells the compiler as well
// how many threads there will be.
//
// `Operation` has: Params, Call, kThreads, kMinBlocks, kSharedBytes, kClusterM, kClusterN and,
// for two-dimensional threadblocks, kColumns; run(params, shared) on the device side; on the host side
// plan(call, storage, result), Operands (the `Elements` of what it reads and writes, by role) and Epilogue, which has
// Arguments and describe(fields).
#pragma once

#include "pycutlass/epilogue.h"
#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cutlass/cutlass.h>
#include <cutlass/device_kernel.h>

namespace pycutlass {

/// Parameters that CUDA can pass, and that have their place in the memory that a call has for them.
template <typename Params>
constexpr bool is_passable() {
  return sizeof(Params) <= PYCUTLASS_MAX_PARAMS && alignof(Params) <= PYCUTLASS_PARAMS_ALIGNMENT;
}

}  // namespace pycutlass

#if PYCUTLASS_DEVICE_SIDE

#define PYCUTLASS_DEFINE_KERNEL(bounds, name, Operation)                                                  \
  extern "C" __global__ void bounds name(CUTLASS_GRID_CONSTANT typename Operation::Params const params) { \
    extern __shared__ char pycutlass_shared[];                                                            \
    Operation::run(params, pycutlass_shared);                                                             \
  }

#define PYCUTLASS_KERNEL(name, Operation) PYCUTLASS_DEFINE_KERNEL(, name, Operation)
#define PYCUTLASS_BOUNDED_KERNEL(name, Operation) \
  PYCUTLASS_DEFINE_KERNEL(__launch_bounds__(Operation::kThreads, Operation::kMinBlocks), name, Operation)

#else

namespace pycutlass {

/// Threads along x: kColumns where the operation has a two-dimensional threadblock, else all.
template <typename Operation>
constexpr auto threads_x(int) -> decltype(Operation::kColumns) {
  return Operation::kColumns;
}
template <typename Operation>
constexpr unsigned threads_x(long) {
  return Operation::kThreads;
}

template <typename Operation>
int describe(pycutlass_kernel_info* info) {
  static_assert(is_passable<typename Operation::Params>(), "the kernel's parameters are too large, or too aligned");
  *info = {PYCUTLASS_ABI_VERSION,
           static_cast<uint32_t>(sizeof(typename Operation::Params)),
           Operation::kSharedBytes,
           {threads_x<Operation>(0), Operation::kThreads / threads_x<Operation>(0)},
           {Operation::kClusterM, Operation::kClusterN, 1},
           static_cast<uint32_t>(sizeof(typename Operation::Call)),
           static_cast<uint32_t>(sizeof(typename Operation::Epilogue::Arguments)),
           {}};
  for (int role = 0; role < PYCUTLASS_ROLES; ++role) info->elements[role] = Operation::Operands::kCodes[role];
  return 0;
}

template <typename Operation>
uint32_t describe_epilogue(pycutlass_epilogue_field* out, uint32_t room) {
  EpilogueFields<typename Operation::Epilogue::Arguments> fields(out, room);
  Operation::Epilogue::describe(fields);
  return fields.count();
}

template <typename Operation>
int plan(void const* call, void* params, pycutlass_plan_result* result) {
  auto const& record = *static_cast<typename Operation::Call const*>(call);
  if (record.common.struct_size != sizeof(record) || !record.common.epilogue) {
    return static_cast<int>(cutlass::Status::kErrorInternal);
  }
  return static_cast<int>(Operation::plan(record, params, *result));
}

}  // namespace pycutlass

#define PYCUTLASS_KERNEL(name, Operation)                                                               \
  PYCUTLASS_EXPORT int pycutlass_describe(pycutlass_kernel_info* info) {                                \
    return pycutlass::describe<Operation>(info);                                                        \
  }                                                                                                     \
  PYCUTLASS_EXPORT uint32_t pycutlass_describe_epilogue(pycutlass_epilogue_field* out, uint32_t room) { \
    return pycutlass::describe_epilogue<Operation>(out, room);                                          \
  }                                                                                                     \
  PYCUTLASS_EXPORT int pycutlass_plan(void const* call, void* params, pycutlass_plan_result* result) {  \
    return pycutlass::plan<Operation>(call, params, result);                                            \
  }
#define PYCUTLASS_BOUNDED_KERNEL(name, Operation) PYCUTLASS_KERNEL(name, Operation)

#endif
