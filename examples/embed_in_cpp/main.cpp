// A product of f32 by a kernel of a library, beside cuBLAS where that is installed. The program is linked with the
// library alone: the driver and cuBLAS are looked for when it runs.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "kernels.h"

namespace {

constexpr int kSize = 1024, kRuns = 50;

[[noreturn]] void stop(int code, char const* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(code);
}

void* opened(std::initializer_list<char const*> names) {
  for (char const* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}

template <typename Function>
Function* found(void* library, char const* name) {
  void* const address = dlsym(library, name);
  if (!address) stop(2, name);
  return reinterpret_cast<Function*>(address);
}

/// What the program needs of the driver beside launches.
struct Driver {
  void* library = opened({"libcuda.so.1"});

  template <typename... Arguments>
  void call(char const* name, Arguments... arguments) const {
    if (found<int(Arguments...)>(library, name)(arguments...)) stop(1, name);
  }
  Driver() {
    if (!library) stop(2, "the CUDA driver could not be loaded: install an NVIDIA driver of release 580 or later");
    int device = 0;
    void* context = nullptr;
    call("cuInit", 0u);
    call("cuDeviceGet", &device, 0);
    call("cuDevicePrimaryCtxRetain", &context, device);
    call("cuCtxSetCurrent", context);
  }
  float* memory(std::vector<float> const& values) const {
    unsigned long long address = 0;
    size_t const bytes = values.size() * sizeof(float);
    call("cuMemAlloc_v2", &address, bytes);
    call("cuMemcpyHtoD_v2", address, static_cast<void const*>(values.data()), bytes);
    return reinterpret_cast<float*>(address);
  }
  std::vector<float> values(float const* memory, size_t count) const {
    std::vector<float> result(count);
    auto const address = reinterpret_cast<unsigned long long>(memory);
    call("cuMemcpyDtoH_v2", static_cast<void*>(result.data()), address, count * sizeof(float));
    return result;
  }
  /// GFLOP/s of a product, the mean of some launches.
  double measure(std::function<void()> const& launch) const {
    void *begin = nullptr, *end = nullptr;
    float milliseconds = 0;
    call("cuEventCreate", &begin, 0u);
    call("cuEventCreate", &end, 0u);
    for (int i = 0; i < kRuns; ++i) launch();  // the clocks of the GPU rise meanwhile
    call("cuEventRecord", begin, static_cast<void*>(nullptr));
    for (int i = 0; i < kRuns; ++i) launch();
    call("cuEventRecord", end, static_cast<void*>(nullptr));
    call("cuEventSynchronize", end);
    call("cuEventElapsedTime", &milliseconds, begin, end);
    return 2.0 * kSize * kSize * kSize * kRuns / (milliseconds * 1e6);
  }
};

/// D = A x B by cuBLAS, which has columns where the others have rows: it computes the transposed product.
void compare_with_cublas(Driver const& driver, float const* a, float const* b, float* d) {
  void* const library = opened({"libcublas.so.13", "libcublas.so.12", "libcublas.so"});
  if (!library) {
    std::printf("cuBLAS is not installed, or not where the loader looks: nothing to compare with\n");
    return;
  }
  void* handle = nullptr;
  if (found<int(void**)>(library, "cublasCreate_v2")(&handle)) stop(1, "cublasCreate");
  using Sgemm = int(void*, int, int, int, int, int, float const*, float const*, int, float const*, int, float const*,
                    float*, int);
  auto* const sgemm = found<Sgemm>(library, "cublasSgemm_v2");
  float const one = 1, zero = 0;
  double const speed = driver.measure([&] {
    if (sgemm(handle, 0, 0, kSize, kSize, kSize, &one, b, kSize, a, kSize, &zero, d, kSize)) stop(1, "cublasSgemm");
  });
  std::printf("cuBLAS      %8.0f GFLOP/s\n", speed);
}

}  // namespace

int main() {
  pycutlass_library const* const library = kernels();
  if (!pycutlass_is_compatible(library)) stop(2, "kernels.h and kernels.so are of two versions: export both again");
  Driver const driver;
  std::vector<float> a(kSize * kSize), b(kSize * kSize);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i * 7 % 13) - 6;
    b[i] = static_cast<float>(i * 5 % 11) - 5;
  }
  float *const on_a = driver.memory(a), *const on_b = driver.memory(b);
  float* const on_d = driver.memory(std::vector<float>(a.size()));

  auto const matrix = [](float* data) {
    return pycutlass_tensor{data, {kSize, kSize}, {kSize, 1}, 2, PYCUTLASS_F32, {}};
  };
  pycutlass_tensor tensors[3] = {};
  tensors[KERNELS_PRODUCT_A] = matrix(on_a);
  tensors[KERNELS_PRODUCT_B] = matrix(on_b);
  tensors[KERNELS_PRODUCT_OUT] = matrix(on_d);
  pycutlass_launch launch = {sizeof launch, 1, tensors, nullptr, nullptr, 0, nullptr};
  auto const require = [&](int code) {
    if (code) stop(code == PYCUTLASS_NO_DEVICE || code == PYCUTLASS_OTHER_DEVICE ? 2 : 1, library->message());
  };
  require(library->workspace_size(KERNELS_PRODUCT, &launch, &launch.workspace_bytes));
  if (launch.workspace_bytes) launch.workspace = driver.memory(std::vector<float>(launch.workspace_bytes / 4 + 1));
  require(library->run(KERNELS_PRODUCT, &launch));

  std::vector<float> const d = driver.values(on_d, a.size());
  for (int i = 0; i < kSize * kSize; i += 997) {  // whole numbers: their sums are exact
    double sum = 0;
    for (int k = 0; k < kSize; ++k) sum += double(a[i / kSize * kSize + k]) * b[k * kSize + i % kSize];
    if (d[i] != sum) {
      std::fprintf(stderr, "element %d is %g, expected %g\n", i, d[i], sum);
      return 1;
    }
  }
  double const speed = driver.measure([&] { require(library->run(KERNELS_PRODUCT, &launch)); });
  std::printf("PyCUTLASS   %8.0f GFLOP/s   (%s)\n", speed, library->plans[KERNELS_PRODUCT].description);
  compare_with_cublas(driver, on_a, on_b, on_d);
}
