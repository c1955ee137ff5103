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
        found = None if tensor is None else _looked_at(name, tensor, described[name], shape, line)
        if found is not None:
            found.__context__ = None  # what the kernel's arguments have said
            return found
    return None


def _looked_at(name: str, tensor: Any, described: Any, shape: tuple[int, ...], line: str) -> PyCutlassError | None:
    try:
        view = wrap(name, tensor)
    except ArgumentTypeError as error:
        return _no_tensor(name, tensor, described, shape, error)
    return _of_shape(name, view, shape, line) or _wrong(name, view, described, len(shape) == 4)


def _no_tensor(
    name: str, given: Any, described: Any, shape: tuple[int, ...], error: ArgumentTypeError
) -> ArgumentTypeError:
    if name != "out" or "must be a tensor" not in str(error):
        return error
    return ArgumentTypeError(
        f"out must be a tensor, as a and b are, got {type(given).__name__}: pass one of shape {shape} and "
        f"{described.type.dtype_name}, or leave it out"
    )


def _of_shape(name: str, view: TensorView, shape: tuple[int, ...], line: str) -> ArgumentError | None:
    """Return what is wrong with the shape of a result, or of what is added, which may broadcast."""
    found = view.shape
    if name in ("a", "b") or found is None or (len(shape) == 4 and len(found) != 4):  # others say what images are
        return None
    if len(shape) == 4:  # whose order is their library's
        fits = sorted(found) == sorted(shape) if name == "out" else True
    elif name == "out":
        fits = _without_ones(found) == _without_ones(shape) or found == (math.prod(shape),)
    else:
        of_each = (shape[0], shape[-1])  # a vector for each matrix of a batch
        fits = _broadcasts(_without_ones(found), shape) or found in (of_each, (math.prod(shape),))
    if fits:
        return None
    or_vector = "" if name == "out" else f", or a vector of {shape[-1]}, one for each {line}"
    return ArgumentError(f"{name} must have shape {shape}{or_vector}, got {found}")


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the axes of one element in front of the others."""
    first = next((at for at, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]


def _broadcasts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(one in (1, other) for one, other in pairs)


def _wrong(name: str, view: TensorView, described: Any, are_images: bool) -> PyCutlassError | None:
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
    if are_images or view.shape is None or view.strides is None or len(view.shape) not in (2, 3):
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
