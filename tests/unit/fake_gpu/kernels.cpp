// Host sides of kernels for the stand-in driver: the call record is the kernel's parameter, and the kernel is a
// function of the host that does what the record says, in f32, A row-major, B column-major, C and D row-major.
//
// FAMILY chooses the kernel: 0 GEMM, 1 GEMM with a workspace that is cleared before every launch (as stream-K has) and
// a tensor map, 2 reduction, 3 group scheduled on the device, 4 group scheduled on the host, 5 fprop of NHWC tensors, 6
// GEMM with scales of A and B, and an epilogue with five scalars, a vector and a second output, in f64, 7 and 8 GEMMs
// of f16 and s8, 9 and 10 convolutions of them, which are never run, 11 fprop with the epilogue of 6, 12 a group with a
// vector, a matrix and a second output, by tables, 13 a group whose D is of pairs of columns.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
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

#define IS_GEMM (FAMILY <= 1 || FAMILY == 7 || FAMILY == 8)
#define IS_CONV (FAMILY == 5 || (FAMILY >= 9 && FAMILY <= 11))
#define IS_SCALED (FAMILY == 6 || FAMILY == 11)
#if FAMILY == 7 || FAMILY == 9
constexpr int kElement = PYCUTLASS_F16;
#elif FAMILY == 8 || FAMILY == 10
constexpr int kElement = PYCUTLASS_S8;
#else
constexpr int kElement = PYCUTLASS_F32;
#endif

#if IS_GEMM || FAMILY == 6
using Record = pycutlass_gemm_call;
#elif FAMILY == 2
using Record = pycutlass_reduction_call;
#elif IS_CONV
using Record = pycutlass_conv2d_call;
#else
using Record = pycutlass_grouped_call;
#endif

/// Arguments of the epilogue.
#if IS_SCALED
struct Epilogue {
  float alpha, beta, gamma;
  double delta, epsilon;
  float const *alpha_ptr, *bias, *extra;
  double* second;
  int64_t extra_ld, second_ld;
};

#define FIELD(name, member, kind, element, written) \
  {name, offsetof(Epilogue, member), sizeof(Epilogue::member), kind, element, 0, written}
constexpr pycutlass_epilogue_field kEpilogue[] = {
    FIELD("alpha", alpha, PYCUTLASS_VALUE, PYCUTLASS_F32, 0),
    FIELD("alpha", alpha_ptr, PYCUTLASS_ADDRESS, PYCUTLASS_F32, 0),
    FIELD("beta", beta, PYCUTLASS_VALUE, PYCUTLASS_F32, 0),
    FIELD("gamma", gamma, PYCUTLASS_VALUE, PYCUTLASS_F32, 0),
    FIELD("delta", delta, PYCUTLASS_VALUE, PYCUTLASS_F64, 0),
    FIELD("epsilon", epsilon, PYCUTLASS_VALUE, PYCUTLASS_F64, 0),
    FIELD("extra", extra, PYCUTLASS_ADDRESS, PYCUTLASS_F32, 0),
    FIELD("extra", extra_ld, PYCUTLASS_STRIDE, PYCUTLASS_S64, 0),
    FIELD("bias", bias, PYCUTLASS_ADDRESS, PYCUTLASS_F32, 0),
    FIELD("second", second, PYCUTLASS_ADDRESS, PYCUTLASS_F64, 1),
    FIELD("second", second_ld, PYCUTLASS_STRIDE, PYCUTLASS_S64, 0),
};
#elif FAMILY == 12
struct Port {
  void const* data;
  int64_t stride, batch;
};
struct Epilogue {
  float alpha;
  float const* alpha_ptr;
  Port bias, gain, addend, table;
};

#define PORT(name, written)                                                                             \
  {#name, offsetof(Epilogue, name.data), sizeof(void*), PYCUTLASS_ADDRESS, PYCUTLASS_F32, 0, written},  \
      {#name, offsetof(Epilogue, name.stride), sizeof(int64_t), PYCUTLASS_STRIDE, PYCUTLASS_S64, 0, 0}, \
      {#name, offsetof(Epilogue, name.batch), sizeof(int64_t), PYCUTLASS_STRIDE, PYCUTLASS_S64, 1, 0}
constexpr pycutlass_epilogue_field kEpilogue[] = {
    {"alpha", offsetof(Epilogue, alpha), sizeof(float), PYCUTLASS_VALUE, PYCUTLASS_F32, 0, 0},
    {"alpha", offsetof(Epilogue, alpha_ptr), sizeof(void*), PYCUTLASS_ADDRESS, PYCUTLASS_F32, 0, 0},
    PORT(bias, 0),
    PORT(gain, 0),
    PORT(addend, 0),
    PORT(table, 1),
};
#elif FAMILY == 13
struct Epilogue {
  float alpha;
  float const* alpha_ptr;
};

constexpr pycutlass_epilogue_field kEpilogue[] = {
    {"alpha", offsetof(Epilogue, alpha), sizeof(float), PYCUTLASS_VALUE, PYCUTLASS_F32, 0, 0},
    {"alpha", offsetof(Epilogue, alpha_ptr), sizeof(void*), PYCUTLASS_ADDRESS, PYCUTLASS_F32, 0, 0},
};
#else
struct Epilogue {
  float alpha, beta;
  float const *alpha_ptr, *beta_ptr;
};

constexpr pycutlass_epilogue_field kEpilogue[] = {
    {"alpha", offsetof(Epilogue, alpha), sizeof(float), PYCUTLASS_VALUE, PYCUTLASS_F32, 0, 0},
    {"beta", offsetof(Epilogue, beta), sizeof(float), PYCUTLASS_VALUE, PYCUTLASS_F32, 0, 0},
    {"alpha", offsetof(Epilogue, alpha_ptr), sizeof(void*), PYCUTLASS_ADDRESS, PYCUTLASS_F32, 0, 0},
    {"beta", offsetof(Epilogue, beta_ptr), sizeof(void*), PYCUTLASS_ADDRESS, PYCUTLASS_F32, 0, 0},
};
#endif

struct Params {
  void (*run)(void const*);
  Record record;
  Epilogue epilogue;
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

#if !IS_SCALED
/// A scalar of a launch, which may be in device memory.
[[maybe_unused]] float scalar(float value, float const* address) { return address ? *touched(address, 1) : value; }
#endif

struct Problem {
  int m, n, k_begin, k_end;
  pycutlass_operand A, B, C, D;
  float alpha, beta;
};

[[maybe_unused]] void multiply(Problem const& of) {
  int64_t const lda = of.A.stride[0], ldb = of.B.stride[0], ldc = of.C.stride[0], ldd = of.D.stride[0];
  float const* a = touched(of.A.data, (of.m - 1) * lda + of.k_end);
  float const* b = touched(of.B.data, (of.n - 1) * ldb + of.k_end);
  float const* c = of.beta != 0 ? touched(of.C.data, (of.m - 1) * ldc + of.n) : nullptr;
  float* d = touched(of.D.data, (of.m - 1) * ldd + of.n);
  for (int row = 0; row < of.m; ++row) {
    for (int column = 0; column < of.n; ++column) {
      float sum = 0;
      for (int k = of.k_begin; k < of.k_end; ++k) sum += a[row * lda + k] * b[column * ldb + k];
      d[row * ldd + column] = of.alpha * sum + (c ? of.beta * c[row * ldc + column] : 0);
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

#if IS_SCALED
/// One number, which stands for all, or one for each line; 1 where there is none.
float scale(pycutlass_operand const& scale, int line) {
  if (!scale.data) return 1;
  int const at = scale.form == PYCUTLASS_SCALAR ? 0 : line;
  return touched(scale.data, at + 1)[at];
}

/// Makes D of the sums that are there: D = alpha * sum * scale_A * scale_B + beta * C + gamma * extra + delta * bias;
/// second = epsilon * D.
void end_scaled(pycutlass_operand const* operands, Epilogue const& epilogue, int rows, int columns) {
  float const alpha = epilogue.alpha_ptr ? *touched(epilogue.alpha_ptr, 1) : epilogue.alpha;
  int64_t const ldc = operands[PYCUTLASS_C].stride[0], ldd = operands[PYCUTLASS_D].stride[0];
  float* d = touched(operands[PYCUTLASS_D].data, 1);
  float const* c = epilogue.beta != 0 ? touched(operands[PYCUTLASS_C].data, (rows - 1) * ldc + columns) : nullptr;
  float const* bias = touched(epilogue.bias, columns);
  float const* extra = touched(epilogue.extra, (rows - 1) * epilogue.extra_ld + columns);
  fake_touch(epilogue.second, ((rows - 1) * epilogue.second_ld + columns) * sizeof(double));
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      float& result = d[row * ldd + column];
      result *= alpha * scale(operands[PYCUTLASS_SCALE_A], row) * scale(operands[PYCUTLASS_SCALE_B], column);
      result += c ? epilogue.beta * c[row * ldc + column] : 0;
      result += epilogue.gamma * extra[row * epilogue.extra_ld + column];
      result += static_cast<float>(epilogue.delta) * bias[column];
      epilogue.second[row * epilogue.second_ld + column] = epilogue.epsilon * result;
    }
  }
}
#endif

#if IS_GEMM

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
  Epilogue const& epilogue = static_cast<Params const*>(params)->epilogue;
  if (static_cast<Params const*>(params)->device != call.device) fake_violation("planned with another GPU current");
  if (has_workspace(record)) take_turns(call.workspace, FAMILY == 1);
  Problem of{record.m,
             record.n,
             0,
             record.k,
             call.operands[PYCUTLASS_A],
             call.operands[PYCUTLASS_B],
             call.operands[PYCUTLASS_C],
             call.operands[PYCUTLASS_D],
             scalar(epilogue.alpha, epilogue.alpha_ptr),
             scalar(epilogue.beta, epilogue.beta_ptr)};
  if (record.mode == 3) return multiply_each(record, of);
  if (record.mode != 1) return multiply(of);
  int const slice = (record.k + record.batch_count - 1) / record.batch_count;  // parallel split-K
  for (int i = 0; i < record.batch_count; ++i) {
    of.k_begin = i * slice;
    of.k_end = of.k_begin + slice < record.k ? of.k_begin + slice : record.k;
    of.alpha = 1;
    of.beta = 0;
    pycutlass_operand const& sums = call.operands[PYCUTLASS_D];
    of.D.data = static_cast<float*>(sums.data) + i * sums.stride[1];
    multiply(of);
  }
}

/// Makes a tensor map as CUTLASS does, which does not stop where the driver refuses it.
void make_map() {
  using Encode = int (*)(void*, int, uint32_t, void*, uint64_t const*, uint64_t const*, uint32_t const*,
                         uint32_t const*, int, int, int, int);
  void* encode = nullptr;
  functions.get_entry_point("cuTensorMapEncodeTiled", &encode, 12000);
  reinterpret_cast<Encode>(encode)(nullptr, 0, 0, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 0, 0, 0);
}

void plan(Record const& record, pycutlass_plan_result& result) {
  if (FAMILY == 1) make_map();
  result.workspace_bytes = has_workspace(record) ? kWorkspace : 0;
  result.clear_bytes = FAMILY == 1 ? kWorkspace : 0;
}

#elif FAMILY == 6

void run(void const* params) {
  Record const& record = static_cast<Params const*>(params)->record;
  pycutlass_operand const* operands = record.common.operands;
  multiply({record.m, record.n, 0, record.k, operands[PYCUTLASS_A], operands[PYCUTLASS_B], operands[PYCUTLASS_C],
            operands[PYCUTLASS_D], 1, 0});
  end_scaled(operands, static_cast<Params const*>(params)->epilogue, record.m, record.n);
}

void plan(Record const&, pycutlass_plan_result&) {}

#elif FAMILY == 2

void run(void const* params) {
  Record const& record = static_cast<Params const*>(params)->record;
  pycutlass_operand const& target = record.common.operands[PYCUTLASS_D];
  int64_t const plane = static_cast<int64_t>(record.rows) * record.columns;
  float const* sums = touched(record.common.operands[PYCUTLASS_A].data, plane * record.partitions);
  float* d = touched(target.data, (record.rows - 1) * target.stride[0] + record.columns);
  Epilogue const& epilogue = static_cast<Params const*>(params)->epilogue;
  float const alpha = scalar(epilogue.alpha, epilogue.alpha_ptr), beta = scalar(epilogue.beta, epilogue.beta_ptr);
  pycutlass_operand const& source = record.common.operands[PYCUTLASS_C];
  int64_t const ldc = source.stride[0];
  float const* c = beta != 0 ? touched(source.data, (record.rows - 1) * ldc + record.columns) : nullptr;
  for (int row = 0; row < record.rows; ++row) {
    for (int column = 0; column < record.columns; ++column) {
      float sum = 0;
      for (int i = 0; i < record.partitions; ++i) sum += sums[i * plane + row * record.columns + column];
      d[row * target.stride[0] + column] = alpha * sum + (c ? beta * c[row * ldc + column] : 0);
    }
  }
}

void plan(Record const&, pycutlass_plan_result&) {}

#elif IS_CONV

bool has_workspace(Record const& of) { return of.split_k_mode == 1 && of.split_k_slices > 1; }

void run(void const* params) {
  Record const& of = static_cast<Params const*>(params)->record;
  pycutlass_call const& call = of.common;
  if (has_workspace(of)) take_turns(call.workspace, 0);
#if IS_SCALED
  float const alpha = 1, beta = 0;
#else
  Epilogue const& epilogue = static_cast<Params const*>(params)->epilogue;
  float const alpha = scalar(epilogue.alpha, epilogue.alpha_ptr), beta = scalar(epilogue.beta, epilogue.beta_ptr);
#endif
  pycutlass_operand const &A = call.operands[PYCUTLASS_A], &B = call.operands[PYCUTLASS_B];
  pycutlass_operand const &C = call.operands[PYCUTLASS_C], &D = call.operands[PYCUTLASS_D];
  int64_t const lda = A.stride[0], ldb = B.stride[0], ldc = C.stride[0], ldd = D.stride[0];
  float const* x = touched(A.data, (of.n * of.h * of.w - 1) * lda + of.c);
  float const* filter = touched(B.data, (of.k * of.r * of.s - 1) * ldb + of.c);
  int const pixels = of.n * of.p * of.q;
  float const* source = beta != 0 ? touched(C.data, (pixels - 1) * ldc + of.k) : nullptr;
  float* y = touched(D.data, (pixels - 1) * ldd + of.k);
  for (int pixel = 0; pixel < pixels; ++pixel) {
    int const n = pixel / (of.p * of.q), p = pixel / of.q % of.p, q = pixel % of.q;
    for (int k = 0; k < of.k; ++k) {
      float sum = 0;
      for (int tap = 0; tap < of.r * of.s; ++tap) {
        int const h = p * of.stride_h - of.pad_h + tap / of.s * of.dilation_h;
        int const w = q * of.stride_w - of.pad_w + tap % of.s * of.dilation_w;
        if (h < 0 || h >= of.h || w < 0 || w >= of.w) continue;
        for (int c = 0; c < of.c; ++c) {
          sum += x[((n * of.h + h) * of.w + w) * lda + c] * filter[(k * of.r * of.s + tap) * ldb + c];
        }
      }
      y[pixel * ldd + k] = alpha * sum + (source ? beta * source[pixel * ldc + k] : 0);
    }
  }
#if IS_SCALED
  end_scaled(call.operands, static_cast<Params const*>(params)->epilogue, pixels, of.k);
#endif
}

void plan(Record const& record, pycutlass_plan_result& result) {
  result.workspace_bytes = has_workspace(record) ? kWorkspace : 0;
}

#else

constexpr unsigned char kScheduled = 0x5C;

#if FAMILY == 12
/// Entry `i` of a table of `count`.
template <typename Entry>
Entry entry(void const* table, size_t i, size_t count) {
  fake_touch(table, sizeof(Entry) * count);
  return static_cast<Entry const*>(table)[i];
}

/// T = (D + bias) * gain, D = T + addend. The gains may lie in one line.
void end_function(Epilogue const& epilogue, size_t i, size_t count, int m, int n, pycutlass_operand const& target) {
  auto const stride = [&](Port const& port) {
    return entry<int64_t>(reinterpret_cast<void const*>(port.stride), i, count);
  };
  int64_t const ldd = target.stride[0], of_addend = stride(epilogue.addend), of_T = stride(epilogue.table);
  float const* bias = touched(entry<void const*>(epilogue.bias.data, i, count), n);
  float const* addend = touched(entry<void const*>(epilogue.addend.data, i, count), (m - 1) * of_addend + n);
  auto const [gains, of_gain, step] = epilogue.gain;
  float const gain =
      *touched(step ? static_cast<float const*>(gains) + i * step : entry<float const*>(gains, i, count), 1);
  float* T = touched(entry<void const*>(epilogue.table.data, i, count), (m - 1) * of_T + n);
  float* D = touched(target.data, (m - 1) * ldd + n);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      T[row * of_T + column] = (D[row * ldd + column] + bias[column]) * gain;
      D[row * ldd + column] = T[row * of_T + column] + addend[row * of_addend + column];
    }
  }
}
#endif

#if FAMILY == 13
/// D = alpha * the even columns of the product * the odd ones.
void multiply_pairs(int m, int n, int depth, pycutlass_operand const (&of)[4], float alpha) {
  int64_t const lda = of[0].stride[0], ldb = of[1].stride[0], ldd = of[3].stride[0];
  if (m == 0 || n == 0) return;
  float const* a = touched(of[0].data, (m - 1) * lda + depth);
  float const* b = touched(of[1].data, (n - 1) * ldb + depth);
  float* d = touched(of[3].data, (m - 1) * ldd + n / 2);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n / 2; ++column) {
      float even = 0, odd = 0;
      for (int k = 0; k < depth; ++k) {
        even += a[row * lda + k] * b[2 * column * ldb + k];
        odd += a[row * lda + k] * b[(2 * column + 1) * ldb + k];
      }
      d[row * ldd + column] = alpha * even * odd;
    }
  }
}
#endif

void run(void const* params) {
  Record const& record = static_cast<Params const*>(params)->record;
  auto const count = static_cast<size_t>(record.problem_count);
  pycutlass_group_tables const& tables = record.tables;
  Epilogue const& epilogue = static_cast<Params const*>(params)->epilogue;
  fake_touch(tables.sizes, 12 * count);
  if (FAMILY == 4) {
    auto const* schedule = static_cast<unsigned char const*>(record.common.workspace);
    fake_touch(schedule, 8 * count);
    for (size_t i = 0; i < 8 * count; ++i) {
      if (schedule[i] != kScheduled) fake_violation("a schedule that has not arrived");
    }
  }
  for (size_t i = 0; i < count; ++i) {
    pycutlass_operand operands[4] = {};
    for (size_t operand = 0; operand < 4; ++operand) {
      fake_touch(tables.pointers[operand], 8 * count);
      fake_touch(tables.lds[operand], 8 * count);
      operands[operand].data = tables.pointers[operand][i];
      operands[operand].stride[0] = tables.lds[operand][i];
    }
    int32_t const* size = tables.sizes + 3 * i;
#if FAMILY == 12
    multiply({size[0], size[1], 0, size[2], operands[0], operands[1], operands[2], operands[3], epilogue.alpha, 0});
    end_function(epilogue, i, count, size[0], size[1], operands[3]);
#elif FAMILY == 13
    multiply_pairs(size[0], size[1], size[2], operands, epilogue.alpha);
#else
    multiply({size[0], size[1], 0, size[2], operands[0], operands[1], operands[2], operands[3],
              scalar(epilogue.alpha, epilogue.alpha_ptr), scalar(epilogue.beta, epilogue.beta_ptr)});
#endif
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
  char const* const cluster = std::getenv("FAKE_CLUSTER");
  unsigned const together = cluster ? static_cast<unsigned>(std::atoi(cluster)) : 1;
  *info = {PYCUTLASS_ABI_VERSION, sizeof(Params), 0, {128, 1}, {together, 1, 1}, sizeof(Record), sizeof(Epilogue), {}};
  for (int role = 0; role <= (FAMILY == 6 ? PYCUTLASS_SCALE_B : PYCUTLASS_D); ++role) {
    if (FAMILY != 2 || role != PYCUTLASS_B) info->elements[role] = kElement;
  }
  return 0;
}

__attribute__((visibility("default"))) uint32_t pycutlass_describe_epilogue(pycutlass_epilogue_field* fields,
                                                                            uint32_t room) {
  uint32_t const count = sizeof kEpilogue / sizeof *kEpilogue;
  for (uint32_t i = 0; i < count && i < room; ++i) fields[i] = kEpilogue[i];
  return count;
}

__attribute__((visibility("default"))) int pycutlass_plan(void const* call, void* params,
                                                          pycutlass_plan_result* result) {
  auto run_there = reinterpret_cast<void (*)(void const*)>(dlsym(RTLD_DEFAULT, FAKE_KERNEL));
  Params made{};
  made.run = run_there;
  std::memcpy(&made.record, call, sizeof(Record));
  std::memcpy(&made.epilogue, made.record.common.epilogue, sizeof(Epilogue));
  if (functions.get_device(&made.device)) return 7;  // cutlass::Status::kErrorInternal
  std::memcpy(params, &made, sizeof made);
  *result = {};
  for (unsigned& extent : result->grid) extent = 1;
  plan(made.record, *result);
  return 0;
}

}  // extern "C"
