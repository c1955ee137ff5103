"""GPUs that are none: programs that run on a stand-in for the CUDA driver (driver.h) with kernels of the host.

``run(program)`` starts a process that finds the stand-in where libcuda.so.1 is looked for. What such programs need is
in `fake_gpu.inside`.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked_programs

from pycutlass import toolkit

__all__ = ["FAMILIES", "run"]

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
_DRIVER = ("driver", "faults", "memory", "modules", "streams")
# In the order of kernels.cpp.
FAMILIES = (
    *("gemm", "stream_k", "reduction", "grouped_device", "grouped_host", "fprop", "scaled", "gemm_f16", "gemm_s8"),
    *("conv_f16", "conv_s8", "conv_scaled", "grouped_function", "grouped_gated"),
)
#: Modules that all programs import before they look for the driver.
_IMPORTED = ("convolutions", "descriptions", "pycutlass")


@functools.cache
def _built() -> tempfile.TemporaryDirectory[str]:
    """Compile the driver and the kernels, once for all tests of a process."""
    directory = tempfile.TemporaryDirectory(prefix="pycutlass-fake-gpu-")
    common = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC"]
    cuda = ["-isystem", str(toolkit.find_nvrtc().include)]
    objects = [f"{directory.name}/{part}.o" for part in _DRIVER]
    parts = [
        [*common, *cuda, "-c", str(_HERE / f"{part}.cpp"), "-o", made]
        for part, made in zip(_DRIVER, objects, strict=True)
    ]
    kernel = [*common, "-shared", "-fvisibility=hidden", f"-I{_ROOT / 'pycutlass/include'}", str(_HERE / "kernels.cpp")]
    kernels = [
        [*kernel, f"-DFAMILY={number}", "-o", f"{directory.name}/{name}.so"] for number, name in enumerate(FAMILIES)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_compile, (*parts, *kernels)))
    _compile([*common, "-shared", *objects, "-o", f"{directory.name}/libcuda.so.1"])
    return directory


def _compile(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=120)


def run(program: str, gpus: int = 2, seconds: float = 60, capability: int = 80, **variables: str) -> str:
    """Run `program` with so many GPUs of a compute capability, and return what it printed.

    It fails where the program does, or where anything was asked of the driver that would have been wrong. Environment
    variables, such as ``LD_PRELOAD``, are those of a process of its own.
    """
    environment = _environment() | {"FAKE_GPUS": str(gpus), "FAKE_CAPABILITY": str(capability)} | variables
    whole = f"from fake_gpu.inside import *\n{program}\nfinish()"
    if not variables:
        torch = ("torch",) if re.search(r"^import torch$", program, re.MULTILINE) else ()
        done = forked_programs.run(whole, environment, seconds, (*torch, *_IMPORTED))
    else:
        command = [sys.executable, "-X", "faulthandler", "-c", whole]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=environment)
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stderr == "", done.stderr
    return done.stdout


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "LD_LIBRARY_PATH": _built().name,
        "PYTHONPATH": os.pathsep.join((str(_ROOT), str(_HERE.parent))),
        "PYTHONWARNINGS": "error",
    }
