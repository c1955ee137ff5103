"""What one would launch instead: a small kernel with a few arguments by Triton, CuPy and cuda.core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarks.common import BenchmarkError
from pycutlass import device

if TYPE_CHECKING:
    import torch

    from benchmarks.timing import Loop

__all__ = ["PEERS"]

_ELEMENTS = 1 << 14
_BLOCK = 256
_GRID = _ELEMENTS // _BLOCK

# Integers of Python are passed as 64 bits by CuPy and cuda.core.
_CODE = """
extern "C" __global__ void add(float const *a, float const *b, float *d, long long elements, long long stride_a,
                               long long stride_b) {
  long long index = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (index < elements) d[index] = a[index * stride_a] + b[index * stride_b];
}
"""


def triton_launch() -> Loop:
    """Return a loop of launches by Triton."""
    from benchmarks.triton_add import add

    a, b, d = _vectors()

    def loop(calls: int) -> None:
        for _ in range(calls):
            add[(_GRID,)](a, b, d, _ELEMENTS, 1, 1, BLOCK=_BLOCK)

    return _checked(loop, a, b, d)


def cupy_launch() -> Loop:
    """Return a loop of launches of a RawKernel of CuPy."""
    import cupy

    a, b, d = _vectors()
    kernel = cupy.RawKernel(_CODE, "add")
    x, y, z = (cupy.from_dlpack(tensor) for tensor in (a, b, d))

    def loop(calls: int) -> None:
        for _ in range(calls):
            kernel((_GRID,), (_BLOCK,), (x, y, z, _ELEMENTS, 1, 1))

    return _checked(loop, a, b, d)


def cuda_core_launch() -> Loop:
    """Return a loop of launches by cuda.core."""
    try:
        from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
    except ImportError:  # before its version 1
        from cuda.core.experimental import Device, LaunchConfig, Program, ProgramOptions, launch

    a, b, d = _vectors()
    gpu = Device(0)
    gpu.set_current()
    options = ProgramOptions(std="c++17", arch=device.describe(0).target)
    kernel = Program(_CODE, "c++", options).compile("cubin").get_kernel("add")
    config = LaunchConfig(grid=_GRID, block=_BLOCK)
    stream = gpu.default_stream
    x, y, z = (tensor.data_ptr() for tensor in (a, b, d))

    def loop(calls: int) -> None:
        for _ in range(calls):
            launch(stream, config, kernel, x, y, z, _ELEMENTS, 1, 1)

    return _checked(loop, a, b, d)


#: By what the table calls them: the package that must be installed, and what makes the loop.
PEERS: Mapping[str, tuple[str, Callable[[], Loop]]] = {
    "Triton, a kernel with 6 arguments": ("triton", triton_launch),
    "CuPy RawKernel, 6 arguments": ("cupy", cupy_launch),
    "cuda.core launch, 6 arguments": ("cuda.core", cuda_core_launch),
}


def _vectors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    a, b = (torch.randn(_ELEMENTS, device="cuda") for _ in range(2))
    return a, b, torch.full_like(a, float("nan"))


def _checked(loop: Loop, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> Loop:
    """Return `loop` after a call of it has added `a` and `b`."""
    import torch

    loop(1)
    torch.cuda.synchronize()
    if not torch.equal(d, a + b):
        raise BenchmarkError("the small kernel that launches are compared with computes something else")
    return loop
