"""Hopper-native operations whose D is described apart from C."""

from __future__ import annotations

from typing import Any

from descriptions import COLUMN, ROW, TAG, native_parts

import pycutlass
from pycutlass import GemmOperationUniversal
from pycutlass.types import element

__all__ = ["APART", "apart"]


def tensor(kind: str, order: Any) -> pycutlass.TensorDescription:
    """Return the description of a matrix that TMA can reach."""
    return pycutlass.TensorDescription(TAG[kind], order, 128 // element(TAG[kind]).bits)


def apart(C: tuple[str, Any], D: tuple[str, Any], activation: Any = None, **options: Any) -> GemmOperationUniversal:
    """Return an operation with types and layouts of C and D; further options are those of `native_parts`."""
    described, target = native_parts(**options), tensor(*D)
    types = (target.element, target.alignment, TAG["f32"], TAG["f32"])
    functor = (
        pycutlass.LinearCombination(*types)
        if activation is None
        else pycutlass.LinearCombinationGeneric(activation, *types)
    )
    return GemmOperationUniversal(**described | {"C": tensor(*C), "D": target, "epilogue_functor": functor})


_PINGPONG: dict[str, Any] = {"tile": (64, 128, 64), "cluster": (1, 2), "schedule": pycutlass.KernelSchedule.Pingpong}
_SMALL: dict[str, Any] = {"tile": (128, 128, 64), "cluster": (1, 1)}
APART = {
    "wider, transposed": apart(("f16", ROW), ("f32", COLUMN), **_SMALL),
    "narrower": apart(("f32", ROW), ("f16", ROW), pycutlass.leaky_relu(), **_PINGPONG),
    "transposed": apart(("f16", ROW), ("f16", COLUMN), **_SMALL),
    "another of 16 bits": apart(("bf16", COLUMN), ("f16", ROW), tile=(128, 256, 64), cluster=(2, 1)),
}
