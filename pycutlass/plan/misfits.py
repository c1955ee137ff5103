"""Why a plan's kernel does not take a tensor, in the plan's words: whoever runs it has described no operands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.tensor import TensorView, wrap

__all__ = ["misfit"]


def misfit(
    tensors: Mapping[str, Any], described: Mapping[str, Any], shape: tuple[int, ...], line: str
) -> PyCutlassError | None:
    """Return what is wrong with the first tensor that a plan's kernel does not take; None where nothing is found.

    Parameters
    ----------
    tensors : mapping
        ``a``, ``b``, ``out``, and ``c`` or ``bias``, those that are given.
    described : mapping
        The kernel's operands by the same names.
    shape : tuple of int
        That of the result.
    line : str
        What a bias has a number for.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        try:
            view = wrap(name, tensor)
        except ArgumentTypeError as error:
            if name != "out" or "must be a tensor" not in str(error):
                return error
            dtype = described[name].type.dtype_name
            return ArgumentTypeError(
                f"out must be a tensor, as a and b are, got {type(tensor).__name__}: pass one of shape {shape} and "
                f"{dtype}, or leave it out"
            )
        is_added = name in ("c", "bias")
        if (name == "out" or is_added) and not _has_shape(view, shape, is_vector=is_added):
            or_vector = f", or a vector of {shape[-1]}, one for each {line}" if is_added else ""
            return ArgumentError(f"{name} must have shape {shape}{or_vector}, got {view.shape}")
        if found := _wrong(name, view, described[name]):
            return found
    return None


def _has_shape(view: TensorView, shape: tuple[int, ...], is_vector: bool) -> bool:
    found = view.shape
    if found is None:
        return True
    if len(shape) == 4:  # images, whose order is their library's
        return len(found) != 4 or sorted(found) == sorted(shape)
    if is_vector and len(found) == 1:
        return True
    return found == shape or found == (math.prod(shape),)


def _wrong(name: str, view: TensorView, described: Any) -> PyCutlassError | None:
    if view.dtype_name not in (None, described.type.dtype_name):
        return ArgumentTypeError(
            f"this plan is for {name} of {described.type.dtype_name}, got {view.dtype_name}: "
            f"{'pass one of that type' if name == 'out' else 'convert it'}, or make another plan"
        )
    if name == "out" and not view.writable:
        return ArgumentError(
            f"out is a read-only {view.library} array, and the result is written to it: pass one that can be written, "
            f"or leave it out"
        )
    if view.shape is None or view.strides is None or len(view.shape) not in (2, 3):
        return None
    along, across, lines = (-1, -2, "rows") if described.is_row_major else (-2, -1, "columns")
    copied = "memory" if name == "out" else "a copy"
    if view.strides[along] != 1 and view.shape[along] > 1:
        return ArgumentError(
            f"this plan is for {name} with adjacent elements along {lines}, and {name} of shape {view.shape} has "
            f"strides {view.strides}: pass {copied} that lies so, or make another plan"
        )
    together = described.alignment * described.type.bits // 8
    apart = view.strides[across] if view.shape[across] > 1 else 0
    if view.pointer % max(together, 1) or apart % described.alignment:
        return AlignmentError(
            f"this plan is for {name} whose address is a multiple of {together} bytes and whose {lines} are multiples "
            f"of {described.alignment} elements apart; got address {view.pointer:#x} and strides {view.strides}: pass "
            f"{copied} that does, or make another plan"
        )
    return None
