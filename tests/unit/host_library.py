"""A library of kernels that is written in C, and does on the host what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pycutlass.toolkit import own_include

__all__ = ["host_library"]

#: Two plans, whose `run` computes out = scale * (a + b) of float32 and checks what it is given; images come as pixels.
LIBRARY = r"""
#include <stdio.h>
#include <string.h>
#include "library.h"
static char said[256];
static char const* message(void) { return said; }
static pycutlass_tensor_info const tensors[] = {
    {"a", PYCUTLASS_F32, PYCUTLASS_ROWS, 2, 0, 0, 1, 0, {-1, 4}},
    {"out", PYCUTLASS_F32, PYCUTLASS_ROWS, 2, 1, 0, 1, 0, {-1, 4}},
    {"b", PYCUTLASS_F32, PYCUTLASS_ROWS, 2, 0, 0, 1, 0, {-1, 4}}};
static pycutlass_tensor_info const images[] = {
    {"x", PYCUTLASS_U8, PYCUTLASS_PIXELS, 4, 0, 0, 1, 0, {-1, 5, 6, 3}},
    {"out", PYCUTLASS_S64, PYCUTLASS_LINE, 1, 1, 0, 1, 0, {8}}};
static pycutlass_scalar_info const scalars[] = {{"scale", SCALE, 0, PYCUTLASS_F32, {0}}};
static pycutlass_plan_info const plans[] = {
    {"sum", "out = scale * (a + b)", "sm_90a", 3, 1, tensors, scalars, 8, 0, {0}},
    {"sums", "a group of them", "sm_90a", 3, 1, tensors, scalars, 8, 1, {0}},
    {"shape", "shape and strides of images", "sm_90a", 2, 0, images, 0, 8, 0, {0}}};
static int32_t find(char const* name) {
  for (int32_t i = 0; i < 3; ++i)
    if (!strcmp(plans[i].name, name)) return i;
  return -1;
}
static int load(int32_t plan) {
  snprintf(said, sizeof said, "the kernels of %s are for %s, and GPU 0 is sm_80", plans[plan].name, plans[plan].target);
  return PYCUTLASS_OTHER_DEVICE;
}
static int workspace_size(int32_t plan, pycutlass_launch const* launch, uint64_t* bytes) {
  (void)plan, *bytes = launch->problems > 1 ? 1000 : 0;
  return PYCUTLASS_SUCCESS;
}
static int run(int32_t plan, pycutlass_launch const* launch) {
  pycutlass_tensor const* t = launch->tensors;
  if (launch->struct_size != sizeof *launch || (launch->workspace_bytes != 0) != (launch->workspace != 0)) return 1;
  if (launch->workspace) memset(launch->workspace, 1, launch->workspace_bytes);
  if (plan == 2) {
    for (int i = 0; i < 4; ++i) {
      ((int64_t*)t[1].data)[i] = t[0].shape[i];
      ((int64_t*)t[1].data)[4 + i] = t[0].strides[i];
    }
    return t[0].element == PYCUTLASS_U8 && t[0].rank == 4 ? PYCUTLASS_SUCCESS : PYCUTLASS_INVALID_ARGUMENT;
  }
  double scale = launch->scalars ? launch->scalars[0].value : scalars[0].value;
  for (uint32_t p = 0; p < launch->problems; ++p, t += 3) {
    if (t[0].shape[0] > plans[plan].most_extent) {
      snprintf(said, sizeof said, "M is %d, and the plan takes 8 at most", (int)t[0].shape[0]);
      return PYCUTLASS_INVALID_ARGUMENT;
    }
    for (int64_t i = 0; i < t[1].shape[0]; ++i)
      for (int64_t j = 0; j < t[1].shape[1]; ++j) {
#define AT(x) ((float*)x.data)[i * x.strides[0] + j * x.strides[1]]
        AT(t[1]) = (float)scale * (AT(t[0]) + AT(t[2]));
      }
  }
  return PYCUTLASS_SUCCESS;
}
static void unload(void) {}
static pycutlass_library const library = {VERSION, sizeof library, PYCUTLASS_ABI_VERSION, 3, plans, "{\"plans\": 3}",
                                          find, load, workspace_size, run, message, unload};
pycutlass_library const* pycutlass_get_library(void) { return &library; }
"""


def host_library(path: Path, version: str = "PYCUTLASS_LIBRARY_VERSION", scale: str = "3.0") -> str:
    """Compile it, for a version of the interface, and return where it is. Without a scale, a plan has that of here."""
    source = path.with_suffix(".c")
    source.write_text(LIBRARY)
    include = [f"-I{own_include()}", f"-I{own_include().parent / 'exports' / 'c'}"]
    command = ["gcc", "-Wall", "-Werror", "-fPIC", "-shared", f"-DVERSION={version}", f"-DSCALE={scale}"]
    subprocess.run([*command, *include, str(source), "-o", str(path)], check=True)
    return str(path)
