"""Options of a GEMM's launch, and whose kernel runs in which mode."""

from __future__ import annotations

import re
from typing import Any

from pycutlass import _core, device
from pycutlass.calls import member_meant, shown
from pycutlass.enums import RasterOrder
from pycutlass.errors import ArgumentError, ArgumentTypeError, NotCompiledError
from pycutlass.log import say_once
from pycutlass.operation import GemmOperationUniversal, Operation

__all__ = ["check_flag", "check_raster_order", "launched_kernel"]

_Mode = _core.GemmMode


def launched_kernel(operation: GemmOperationUniversal, mode: Any) -> Operation:
    """Return whose kernel runs in a mode: another one's of partial sums, and of Hopper-native arrays."""
    if mode == _Mode.GemmSplitKParallel:
        return _partial(operation)
    array = operation.array if mode == _Mode.Array else operation
    if array is not operation and device.available() and not array.artifacts:
        raise NotCompiledError(
            f"{operation.procedural_name()} has a kernel of its own for Mode.Array, which has not been compiled: call "
            f"pycutlass.compiler.add_module([operation.array]) first"
        )
    return array


def _partial(operation: GemmOperationUniversal) -> GemmOperationUniversal:
    """Return whose kernel makes partial sums."""
    partial = operation.partial
    if device.available() and not partial.artifacts:
        raise NotCompiledError(
            f"{operation.procedural_name()} has no kernel for partial sums: compile it together with its reduction, "
            f"pycutlass.compiler.add_module([operation, reduction])"
        )
    return partial


def check_raster_order(order: Any, operation: GemmOperationUniversal) -> RasterOrder:
    """Return the order in which tiles are visited; where kernels have their own, say that it is ignored."""
    try:
        if RasterOrder(order) is not RasterOrder.Heuristic and not operation.is_sm90:
            say_once(
                f"raster_order={RasterOrder(order)!r} is ignored: it is for Hopper-native kernels; an Ampere-style one "
                f"goes through its tiles as the swizzling_functor of its description says"
            )
        return RasterOrder(order)
    except ArgumentError:
        known, near = ", ".join(map(repr, RasterOrder)), member_meant(order, RasterOrder, "RasterOrder")
        if isinstance(order, str) and (letters := re.findall(r"\b[MNmn]\b", order)):
            near = f". Did you mean RasterOrder.Along{letters[0].upper()}, without quotes?"
        raise ArgumentError(f"raster_order must be one of {known}; got {shown(order)}{near}") from None


def check_flag(name: str, value: Any) -> bool:
    """Return an option that is True or False."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, got {shown(value)}")
    return value
