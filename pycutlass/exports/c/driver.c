// Finding the driver.
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "library.h"

static drv_functions functions;
static char problem[512];  // why there is no driver; empty where there is one
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // nothing else in the process is to find it
  if (!library) {
    snprintf(problem, sizeof problem,
             "the CUDA driver could not be loaded (%s). Install an NVIDIA driver of release 580 or later for CUDA 13.",
             dlerror());
    return;
  }
#define LOAD(name, symbol, arguments)                                                      \
  *(void**)&functions.name = dlsym(library, symbol);                                       \
  if (!functions.name) {                                                                   \
    snprintf(problem, sizeof problem, "the CUDA driver is too old: it has no %s", symbol); \
    return;                                                                                \
  }
  DRV_FUNCTIONS(LOAD)
#undef LOAD
  drv_result const code = functions.init(0);
  char const* meaning = NULL;
  if (code != DRV_SUCCESS) {
    functions.get_error_string(code, &meaning);
    snprintf(problem, sizeof problem, "the CUDA driver cannot start: %s", meaning ? meaning : "unknown error");
  }
}

drv_functions const* load_driver(void) {
  pthread_once(&once, load);
  if (!problem[0]) return &functions;
  refuse(PYCUTLASS_NO_DEVICE, "%s", problem);
  return NULL;
}

int driver_failed(drv_result code, char const* call) {
  char const* meaning = NULL;
  functions.get_error_string(code, &meaning);
  return refuse(PYCUTLASS_DRIVER_ERROR, "the CUDA driver has refused %s: %s (CUresult %d)", call,
                meaning ? meaning : "unknown error", code);
}
