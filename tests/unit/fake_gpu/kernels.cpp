// Host sides of kernels for the stand-in driver: the call record is the kernel's parameter, and the kernel is a
// function of the host that does what the record says, in f32, A row-major, B column-major, C and D row-major.
//
// FAMILY chooses the kernel: 0 GEMM, 1 GEMM with a workspace that is cleared before every launch (as stream-K has), 2
// reduction, 3 group scheduled on the device, 4 group scheduled on the host, 5 fprop of NHWC tensors.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "pycutlass/abi.h"

extern "C" {
void fake_touch(void const* address, size_t bytes);
void fake_violation(char const* text);
}

#define JOINED(name, number) name##number
#define NAMED(number) JOINED(fake_kernel_, number)
#define EXPORTED NAMED(FAMILY)
#define TEXT(name) #name
#define TEXT_OF(name) TEXT(name)
#define FAKE_KERNEL TEXT_OF(EXPORTED)

namespace {

#if FAMILY <= 1
using Record = pycutlass_gemm_call;
#elif FAMILY == 2
using Record = pycutlass_reduction_call;
#elif FAMILY == 5
using Record = pycutlass_conv2d_call;
#else
using Record = pycutlass_grouped_call;
#endif

struct Params {
  void (*run)(void const*);
  Record record;
  int device;  // that CUTLASS's host code was told
#if FAMILY == 1
  unsigned char ballast[6000];  // more than the 4096 bytes that launches took once
#endif
};

pycutlass_driver functions;

[[maybe_unused]] float* touched(void const* address, int64_t count) {
  fake_touch(address, static_cast<size_t>(count) * sizeof(float));
  return static_cast<float*>(const_cast<void*>(address));
}

struct Problem {
  int m, n, k_begin, k_end;
  pycutlass_operand A, B, C, D;
  float alpha, beta;
};

[[maybe_unused]] void multiply(Problem const& of) {
  float const* a = touched(of.A.data, (of.m - 1) * of.A.ld + of.k_end);
  float const* b = touched(of.B.data, (of.n - 1) * of.B.ld + of.k_end);
  float const* c = of.beta != 0 ? touched(of.C.data, (of.m - 1) * of.C.ld + of.n) : nullptr;
  float* d = touched(of.D.data, (of.m - 1) * of.D.ld + of.n);
  for (int row = 0; row < of.m; ++row) {
    for (int column = 0; column < of.n; ++column) {
      float sum = 0;
      for (int k = of.k_begin; k < of.k_end; ++k) sum += a[row * of.A.ld + k] * b[column * of.B.ld + k];
      d[row * of.D.ld + column] = of.alpha * sum + (c ? of.beta * c[row * of.C.ld + column] : 0);
    }
  }
}

constexpr size_t kWorkspace = 256;

[[maybe_unused]] void take_turns(void* workspace, int left) {
  fake_touch(workspace, kWorkspace);
  auto* semaphores = static_cast<unsigned char*>(workspace);
  for (size_t i = 0; i < kWorkspace; ++i) {
    if (semaphores[i]) fake_violation("semaphores that are not zero");
  }
  std::memset(semaphores, left, kWorkspace);  // those of serial split-K are zero again at its end
}

#if FAMILY <= 1

bool has_workspace(Record const& of) { return FAMILY == 1 || (of.mode == 0 && of.batch_count > 1); }

void multiply_each(Record const& record, Problem of) {
  void* const* tables[4];
  pycutlass_operand* operands[] = {&of.A, &of.B, &of.C, &of.D};
  for (size_t operand = 0; operand < 4; ++operand) {
    tables[operand] = static_cast<void* const*>(operands[operand]->data);
    if (operand != 2 || of.beta != 0) fake_touch(tables[operand], sizeof(void*) * record.batch_count);
  }
  for (int i = 0; i < record.batch_count; ++i) {
    for (size_t operand = 0; operand < 4; ++operand) {
      if (operand != 2 || of.beta != 0) operands[operand]->data = tables[operand][i];
    }
    multiply(of);
  }
}

void run(void const* params) {
  Record const& record = static_cast<Params const*>(params)->record;
  pycutlass_call const& call = record.common;
  if (static_cast<Params const*>(params)->device != call.device) fake_violation("planned with another GPU current");
  if (has_workspace(record)) take_turns(call.workspace, FAMILY == 1);
  Problem of{record.m,
             record.n,
             0,
             record.k,
             call.A,
             call.B,
             call.C,
             call.D,
             static_cast<float>(call.scalars.value[0]),
             static_cast<float>(call.scalars.value[1])};
  if (record.mode == 3) return multiply_each(record, of);
  if (record.mode != 1) return multiply(of);
  int const slice = (record.k + record.batch_count - 1) / record.batch_count;  // parallel split-K
  for (int i = 0; i < record.batch_count; ++i) {
    of.k_begin = i * slice;
    of.k_end = of.k_begin + slice < record.k ? of.k_begin + slice : record.k;
    of.alpha = 1;
    of.beta = 0;
    of.D.data = static_cast<float*>(call.D.data) + i * call.D.batch_stride;
    multiply(of);
  }
}

void plan(Record const& record, pycutlass_plan_result& result) {
  result.workspace_bytes = has_workspace(record) ? kWorkspace : 0;
  result.clear_bytes = FAMILY == 1 ? kWorkspace : 0;
}

#elif FAMILY == 2

void run(void const* params) {
  Record const& record = static_cast<Params const*>(params)->record;
  pycutlass_call const& call = record.common;
  int64_t const plane = static_cast<int64_t>(record.rows) * record.columns;
  float const* sums = touched(call.A.data, plane * record.partitions);
  float* d = touched(call.D.data, (record.rows - 1) * call.D.ld + record.columns);
  for (int row = 0; row < record.rows; ++row) {
    for (int column = 0; column < record.columns; ++column) {
      float sum = 0;
      for (int i = 0; i < record.partitions; ++i) sum += sums[i * plane + row * record.columns + column];
      d[row * call.D.ld + column] = static_cast<float>(call.scalars.value[0]) * sum;
    }
  }
}

void plan(Record const&, pycutlass_plan_result&) {}

#elif FAMILY == 5

bool has_workspace(Record const& of) { return of.split_k_mode == 1 && of.split_k_slices > 1; }

void run(void const* params) {
  Record const& of = static_cast<Params const*>(params)->record;
  pycutlass_call const& call = of.common;
  if (has_workspace(of)) take_turns(call.workspace, 0);
  auto alpha = static_cast<float>(call.scalars.value[0]), beta = static_cast<float>(call.scalars.value[1]);
  float const* x = touched(call.A.data, (of.n * of.h * of.w - 1) * call.A.ld + of.c);
  float const* filter = touched(call.B.data, (of.k * of.r * of.s - 1) * call.B.ld + of.c);
  int const pixels = of.n * of.p * of.q;
  float const* source = beta != 0 ? touched(call.C.data, (pixels - 1) * call.C.ld + of.k) : nullptr;
  float* y = touched(call.D.data, (pixels - 1) * call.D.ld + of.k);
  for (int pixel = 0; pixel < pixels; ++pixel) {
    int const n = pixel / (of.p * of.q), p = pixel / of.q % of.p, q = pixel % of.q;
    for (int k = 0; k < of.k; ++k) {
      float sum = 0;
      for (int tap = 0; tap < of.r * of.s; ++tap) {
        int const h = p * of.stride_h - of.pad_h + tap / of.s, w = q * of.stride_w - of.pad_w + tap % of.s;
        if (h < 0 || h >= of.h || w < 0 || w >= of.w) continue;
        for (int c = 0; c < of.c; ++c) {
          sum += x[((n * of.h + h) * of.w + w) * call.A.ld + c] * filter[(k * of.r * of.s + tap) * call.B.ld + c];
        }
      }
      y[pixel * call.D.ld + k] = alpha * sum + (source ? beta * source[pixel * call.C.ld + k] : 0);
    }
  }
}

void plan(Record const& record, pycutlass_plan_result& result) {
  result.workspace_bytes = has_workspace(record) ? kWorkspace : 0;
}

#else

constexpr unsigned char kScheduled = 0x5C;

void run(void const* params) {
  Record const& record = static_cast<Params const*>(params)->record;
  auto const count = static_cast<size_t>(record.problem_count);
  pycutlass_group_tables const& tables = record.tables;
  fake_touch(tables.sizes, 12 * count);
  if (FAMILY == 4) {
    auto const* schedule = static_cast<unsigned char const*>(record.common.workspace);
    fake_touch(schedule, 8 * count);
    for (size_t i = 0; i < 8 * count; ++i) {
      if (schedule[i] != kScheduled) fake_violation("a schedule that has not arrived");
    }
  }
  for (size_t i = 0; i < count; ++i) {
    pycutlass_operand operands[4];
    for (size_t operand = 0; operand < 4; ++operand) {
      fake_touch(tables.pointers[operand], 8 * count);
      fake_touch(tables.lds[operand], 8 * count);
      operands[operand] = {tables.pointers[operand][i], tables.lds[operand][i], 0};
    }
    int32_t const* size = tables.sizes + 3 * i;
    multiply({size[0], size[1], 0, size[2], operands[0], operands[1], operands[2], operands[3],
              static_cast<float>(record.common.scalars.value[0]), static_cast<float>(record.common.scalars.value[1])});
  }
}

void plan(Record const& record, pycutlass_plan_result& result) {
  if (FAMILY != 4) return;
  result.workspace_bytes = 8 * static_cast<size_t>(record.problem_count);
  if (record.schedule) std::memset(record.schedule, kScheduled, result.workspace_bytes);
}

#endif

}  // namespace

extern "C" {

/// The kernel, for whoever loads this library as the code of a GPU.
__attribute__((visibility("default"))) void EXPORTED(void const* params) { run(params); }

__attribute__((visibility("default"))) void pycutlass_bind(pycutlass_driver const* driver) { functions = *driver; }

__attribute__((visibility("default"))) int pycutlass_describe(pycutlass_kernel_info* info) {
  *info = {PYCUTLASS_ABI_VERSION, sizeof(Params), 0, {128, 1}, {1, 1, 1}, sizeof(Record)};
  return 0;
}

__attribute__((visibility("default"))) int pycutlass_plan(void const* call, void* params,
                                                          pycutlass_plan_result* result) {
  auto run_there = reinterpret_cast<void (*)(void const*)>(dlsym(RTLD_DEFAULT, FAKE_KERNEL));
  Params made{};
  made.run = run_there;
  std::memcpy(&made.record, call, sizeof(Record));
  if (functions.get_device(&made.device)) return 7;  // cutlass::Status::kErrorInternal
  std::memcpy(params, &made, sizeof made);
  *result = {};
  for (unsigned& extent : result->grid) extent = 1;
  plan(made.record, *result);
  return 0;
}

}  // extern "C"
