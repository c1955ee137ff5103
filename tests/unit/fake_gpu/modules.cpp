// Libraries, kernels and launches of the stand-in.
#include "driver.h"

#include <algorithm>
#include <cstdio>

using namespace fake;

extern "C" {

CUresult cuLibraryLoadData(CUlibrary* library, void const* image, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
  ENTER(cuLibraryLoadData);
  REFUSED_UNDER_CAPTURE();
  size_t params_bytes = 0;
  if (std::sscanf(static_cast<char const*>(image), "stand-in %zu", &params_bytes) != 1) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *library = new CUlib_st{params_bytes};
  ++state().libraries;
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
  ENTER(cuLibraryUnload);
  REFUSED_UNDER_CAPTURE();
  if (library->unloaded) violation("a library is unloaded twice");
  run_all();  // it waits for the GPU
  library->unloaded = true;
  --state().libraries;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, char const*) {
  ENTER(cuLibraryGetKernel);
  *kernel = new CUkern_st{library};
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  ENTER(cuKernelGetFunction);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *function = new CUfunc_st{current, kernel->library};
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction function) {
  ENTER(cuFuncGetAttribute);
  if (current != function->context) return CUDA_ERROR_INVALID_CONTEXT;
  *value = 32;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  ENTER(cuFuncSetAttribute);
  if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) state().allows_large_clusters = value != 0;
  return current == function->context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t, size_t* offset, size_t* bytes) {
  ENTER(cuFuncGetParamInfo);
  *offset = 0;
  *bytes = function->library->params_bytes;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int, size_t) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  *blocks = 1;
  return current == function->context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, CUlaunchConfig const* config) {
  ENTER(cuOccupancyMaxActiveClusters);
  if (!state().allows_large_clusters) violation("a cluster of more than 8 threadblocks without leave for it");
  CUlaunchAttribute const& attribute = config->attrs[0];
  if (config->numAttrs != 1 || attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ||
      config->gridDimX % attribute.value.clusterDim.x != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *clusters = state().clusters;
  if (*clusters < 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  return current == function->context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuLaunchKernelEx(CUlaunchConfig const* config, CUfunction function, void** arguments, void**) {
  ENTER(cuLaunchKernelEx);
  STREAM(config->hStream);
  if (function->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  CUlib_st* const library = function->library;
  if (library->unloaded) violation("a launch of an unloaded kernel");
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PRIORITY) state().priority = config->attrs[i].value.priority;
  }
  auto const* begin = static_cast<unsigned char const*>(arguments[0]);
  std::vector<unsigned char> params(begin, begin + library->params_bytes);
  if (state().only_records) {
    state().recorded.push_back({params, {config->gridDimX, config->gridDimY, config->gridDimZ}});
    return CUDA_SUCCESS;
  }
  push(stream, [params, library] {
    if (library->unloaded) violation("a kernel runs that has been unloaded");
    auto run = reinterpret_cast<void (*const*)(void const*)>(params.data());
    (*run)(params.data());
    state().clock += 0.005;
  });
  return CUDA_SUCCESS;
}

void fake_clusters(int clusters) { state().clusters = clusters; }

int fake_priority() { return state().priority; }

/// From now on launches are recorded and no kernel runs: their parameters are those of kernels of a GPU.
void fake_only_record(int only) {
  state().only_records = only != 0;
  state().recorded.clear();
}

/// How many launches there were since then.
int fake_recorded() { return static_cast<int>(state().recorded.size()); }

/// Copies the parameters of one, of which there is room for so many bytes, with its grid, and says how many there are.
size_t fake_params(int number, unsigned char* params, size_t room, unsigned* grid) {
  auto const& launch = state().recorded.at(static_cast<size_t>(number));
  std::copy_n(launch.params.begin(), std::min(room, launch.params.size()), params);
  std::copy_n(launch.grid.begin(), 3, grid);
  return launch.params.size();
}

/// Keeps the last record that the host side of a kernel was given (noting.c), with the arguments of its epilogue.
void fake_note(char const* name, void const* bytes, size_t count, int is_first) {
  Guard guard(state().lock);
  std::string& noted = state().noted[name];
  if (is_first) noted.clear();
  noted.append(static_cast<char const*>(bytes), count);
}

size_t fake_noted(char const* name, char* bytes, size_t room) {
  std::string const& noted = state().noted[name];
  std::copy_n(noted.begin(), std::min(room, noted.size()), bytes);
  return noted.size();
}

int fake_libraries() { return state().libraries; }

}  // extern "C"
