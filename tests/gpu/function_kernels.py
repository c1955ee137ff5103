"""Kernels of all families that have epilogue functions, compiled for the GPU that is here."""

from typing import Any

from descriptions import native_parts, parts

import pycutlass
from pycutlass import GemmOperationUniversal, KernelSchedule, cutlass

__all__ = ["KERNELS", "make"]

KERNELS = {
    "ampere f16": lambda: parts("f16"),
    "ampere f32": lambda: parts("f32"),
    "ampere f32, CUDA cores": lambda: parts("f32_simt"),
    "ampere f16, stream-K": lambda: parts("f16") | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK},
    "ampere f16, alignment 2": lambda: parts("f16", alignment=2, tile=(64, 64, 32)),
    "hopper cooperative": lambda: native_parts(tile=(128, 128, 64), cluster=(2, 1)),
    "hopper, three warp groups": lambda: native_parts(
        tile=(192, 96, 64), cluster=(1, 2), schedule=KernelSchedule.Cooperative
    ),
    "hopper pingpong": lambda: native_parts(tile=(64, 128, 64), cluster=(1, 1), schedule=KernelSchedule.Pingpong),
}


def make(kernel: str, function: Any, **types: Any) -> Any:
    described = KERNELS[kernel]()
    functor = function(described["C"].element, described["C"].alignment, cutlass.float32, **types)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    return operation
