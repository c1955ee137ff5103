"""Operations whose kernels are trivial and compile in 0.2 s, and programs that compile them."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from pycutlass import compiler
from pycutlass.source import KernelSource

__all__ = ["ON_THE_STACK", "Operation", "environment", "write_script"]

_TEXT = """
struct Params { float *out; long count; PYCUTLASS_EXTRA };
#ifdef __CUDACC__
extern "C" __global__ void NAME(Params const params) { BODY }
#else
extern "C" __attribute__((visibility("default"))) int pycutlass_describe(unsigned *info) {
  info[0] = 1;
  info[1] = sizeof(Params);
  return 0;
}
#endif
"""
ON_THE_STACK = "volatile float local[64]; local[params.count] = 1; params.out[0] = local[params.count + 1];"


@dataclasses.dataclass
class Operation:
    """As much of an operation as `add_module` needs."""

    name: str
    body: str = "params.out[0] = 1;"
    extra: str = ""
    compute_capability: int = 80
    native: bool = False
    artifacts: dict = dataclasses.field(default_factory=dict)

    def source(self) -> KernelSource:
        text = _TEXT.replace("NAME", self.name).replace("BODY", self.body).replace("PYCUTLASS_EXTRA", self.extra)
        return KernelSource(self.name, text, self.compute_capability, self.native)


_PROLOGUE = f"""
import json, logging, signal, sys
from pathlib import Path

sys.path.insert(0, {str(Path(__file__).parent)!r})
from pycutlass import compiler
from pycutlass.compiler import schedule
from pycutlass.toolchain import Processes
from trivial_kernels import Operation

"""


def write_script(path: Path, text: str) -> list[str]:
    """Write a program that begins with what such programs need, and return its command."""
    path.write_text(_PROLOGUE + text)
    return [sys.executable, str(path)]


def environment(**more: str) -> dict[str, str]:
    """Return the variables of such a program."""
    root = str(Path(compiler.__file__).parents[2])
    more = {"PYCUTLASS_TARGET": "sm_80", **more}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))), **more}
