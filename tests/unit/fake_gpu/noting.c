// The host side of a kernel that tells the stand-in driver of the records that it is given, and has another one, REAL,
// do the work. NAME is that of the kernel.
#include <dlfcn.h>
#include <stddef.h>

#include "pycutlass/abi.h"

#define EXPORTED __attribute__((visibility("default")))

void fake_note(char const* name, void const* bytes, size_t count, int is_first);

static void* function(char const* name) {
  static void* real;
  if (!real) real = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
  return dlsym(real, name);
}

EXPORTED int pycutlass_describe(pycutlass_kernel_info* info) {
  return ((pycutlass_describe_function)function("pycutlass_describe"))(info);
}

EXPORTED uint32_t pycutlass_describe_epilogue(pycutlass_epilogue_field* fields, uint32_t room) {
  return ((pycutlass_describe_epilogue_function)function("pycutlass_describe_epilogue"))(fields, room);
}

EXPORTED void pycutlass_bind(pycutlass_driver const* driver) {
  ((pycutlass_bind_function)function("pycutlass_bind"))(driver);
}

EXPORTED int pycutlass_plan(void const* call, void* params, pycutlass_plan_result* result) {
  pycutlass_kernel_info info;
  pycutlass_describe(&info);
  char record[sizeof(pycutlass_grouped_call)];
  __builtin_memcpy(record, call, info.call_bytes);
  ((pycutlass_call*)record)->epilogue = 0;  // where its arguments are, which follow
  fake_note(NAME, record, info.call_bytes, 1);
  fake_note(NAME, ((pycutlass_call const*)call)->epilogue, info.epilogue_bytes, 0);
  return ((pycutlass_plan_function)function("pycutlass_plan"))(call, params, result);
}
