"""Operations with the epilogue of extra_epilogue.py."""

from __future__ import annotations

from typing import Any

from descriptions import native_parts, parts
from extra_epilogue import ExtraEpilogue

from pycutlass import GemmOperationUniversal, KernelSchedule, cutlass

__all__ = ["EXTRA"]


def _native(**options: Any) -> GemmOperationUniversal:
    described = native_parts(**options)
    functor = ExtraEpilogue(described["C"].element, cutlass.float32, described["C"].alignment)
    return GemmOperationUniversal(**described | {"epilogue_functor": functor})


def _ampere(kind: str, **options: Any) -> GemmOperationUniversal:
    described = parts(kind, **options)
    functor = ExtraEpilogue(described["C"].element, cutlass.float32, described["C"].alignment)
    return GemmOperationUniversal(**described | {"epilogue_functor": functor})


EXTRA = {
    "ampere f16": _ampere("f16"),
    "ampere f32, swizzled": _ampere("f32", swizzle=cutlass.IdentitySwizzle4),
    "hopper cooperative": _native(tile=(128, 128, 64), cluster=(1, 1), stages=3),
    "hopper pingpong": _native(tile=(64, 128, 64), cluster=(2, 1), schedule=KernelSchedule.Pingpong),
}
