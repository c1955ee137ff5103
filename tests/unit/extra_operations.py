"""Operations with the epilogue of extra_epilogue.py."""

from __future__ import annotations

from typing import Any

from convolutions import UNITY, conv, dgrad, f16, f32, fprop, wgrad
from descriptions import native_parts, parts
from extra_epilogue import ExtraEpilogue

from pycutlass import Conv2dOperation, GemmOperationUniversal, KernelSchedule, cutlass

__all__ = ["CONVOLUTIONS", "EXTRA", "convolution"]


def _native(**options: Any) -> GemmOperationUniversal:
    described = native_parts(**options)
    functor = ExtraEpilogue(described["C"].element, cutlass.float32, described["C"].alignment)
    return GemmOperationUniversal(**described | {"epilogue_functor": functor})


def _ampere(kind: str, **options: Any) -> GemmOperationUniversal:
    described = parts(kind, **options)
    functor = ExtraEpilogue(described["C"].element, cutlass.float32, described["C"].alignment)
    return GemmOperationUniversal(**described | {"epilogue_functor": functor})


def convolution(
    kind: Any, algorithm: str = "optimized", *args: Any, second: Any = cutlass.float32, **options: Any
) -> Conv2dOperation:
    """Return a convolution with the epilogue."""

    def functor(output: Any, alignment: int, accumulator: Any, compute: Any) -> ExtraEpilogue:
        return ExtraEpilogue(output, second, alignment)

    return conv(kind, algorithm, *args, functor=functor, **options)


EXTRA = {
    "ampere f16": _ampere("f16"),
    "ampere f32, swizzled": _ampere("f32", swizzle=cutlass.IdentitySwizzle4),
    "hopper cooperative": _native(tile=(128, 128, 64), cluster=(1, 1), stages=3),
    "hopper pingpong": _native(tile=(64, 128, 64), cluster=(2, 1), schedule=KernelSchedule.Pingpong),
}

CONVOLUTIONS = {
    "fprop": convolution(fprop),
    "fprop f32, analytic, swizzled": convolution(fprop, "analytic", (f32, f32, f32), swizzle=cutlass.IdentitySwizzle4),
    "fprop of few channels": convolution(fprop, "few_channels", (f16, f32, f16), alignments=(4, 4, 8)),
    "dgrad": convolution(dgrad, stride=UNITY),
    "wgrad": convolution(wgrad),
}
