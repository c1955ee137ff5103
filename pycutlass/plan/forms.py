"""How tensors of any strides are read as matrices that kernels take without a copy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycutlass.errors import ArgumentError
from pycutlass.plan.allocation import allocated
from pycutlass.tensor import TensorView
from pycutlass.tensor.device_array import DeviceArray
from pycutlass.types import ELEMENTS

__all__ = [
    "Columns",
    "Form",
    "as_strided",
    "copied",
    "form_of",
    "lies",
    "maker_of",
    "new_tensor",
    "packed_vector",
    "stacked",
]

_ACCESS = 16  # bytes of the widest access of a kernel
#: Returns how many columns D has, of those that the product has.
Columns = Callable[[int], int]


@dataclass(frozen=True)
class Form:
    """What kernels must know of a matrix, or of a batch of them, beside its type and extents.

    Attributes
    ----------
    is_row_major : bool
        Whether the elements of a row are adjacent; those of a column are otherwise.
    alignment : int
        Elements that its address, its contiguous extent and the steps of rows and matrices are multiples of.
    """

    is_row_major: bool
    alignment: int


def form_of(view: TensorView, bits: int, by_rows_if_either: bool | None = None) -> Form | None:
    """Return the form of a view of (rows, columns) or (batch, rows, columns); None where kernels need a copy.

    A single row or column lies by rows and by columns: it is taken as asked for, or so that more of it is aligned.
    """
    assert view.shape is not None and view.strides is not None
    (rows, columns), (down, along) = view.shape[-2:], view.strides[-2:]
    if 0 in view.shape:  # whose strides mean nothing
        down, along = max(columns, 1), 1
    by_rows = (along == 1 or columns <= 1) and (rows <= 1 or down >= max(columns, 1))
    by_columns = (down == 1 or rows <= 1) and (columns <= 1 or along >= max(rows, 1))
    if not by_rows and not by_columns:
        return None
    if by_rows and by_columns:  # a vector: along it, more elements are aligned
        by_rows = columns >= rows if by_rows_if_either is None else by_rows_if_either
    extent, lines, step = (columns, rows, down) if by_rows else (rows, columns, along)
    steps = [extent, step if lines > 1 else 0]
    if len(view.shape) == 3 and view.shape[0] > 1:
        if view.strides[0] < 0:
            return None
        steps.append(view.strides[0])
    alignment = _ACCESS * 8 // bits
    while alignment > 1 and (any(each % alignment for each in steps) or view.pointer % max(1, alignment * bits // 8)):
        alignment //= 2
    return Form(by_rows, alignment)


def lies(view: TensorView, by_rows: bool) -> bool:
    """Return whether the elements of rows of a matrix are adjacent, or those of columns; of vectors both may be."""
    found = form_of(view, 8, by_rows)
    return found is not None and found.is_row_major is by_rows


def stacked(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how many matrices several axes of a batch are, and the step between them; None where there is no one step.

    An axis of one matrix has no step. One along which a matrix is repeated has the step 0.
    """
    count, step = 1, 0
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if count == 1:
            step = stride
        elif stride != step * count:
            return None
        count *= extent
    return count, step


def as_strided(name: str, tensor: Any, view: TensorView, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Return a tensor of the same memory with other extents and strides, in its library."""
    if view.library == "torch":
        return tensor.as_strided(shape, strides, tensor.storage_offset())
    if isinstance(tensor, DeviceArray):
        return tensor.as_strided(shape, strides)
    if view.library in ("numpy", "dlpack") and view.device is None:
        array = view.owner[0] if view.library == "dlpack" else tensor
        steps = tuple(step * array.itemsize for step in strides)
        return np.lib.stride_tricks.as_strided(array, shape, steps, writeable=bool(array.flags.writeable))
    if view.library == "cupy":
        from cupy.lib.stride_tricks import as_strided as cupy_strided

        return cupy_strided(tensor, shape, tuple(step * tensor.itemsize for step in strides))
    raise ArgumentError(
        f"operand {name} of a library that is known by DLPack alone must be a matrix as it is, got shape {view.shape}: "
        f"pass torch.from_dlpack({name}) or cupy.from_dlpack({name})"
    )


def copied(name: str, tensor: Any, view: TensorView, shape: tuple[int, ...], by_rows: bool = True) -> Any:
    """Return a packed copy of a tensor, repeated to `shape`, whose last axis is adjacent, or the one before it."""
    if view.library in ("torch", "cupy", "numpy") or view.device is None:
        order = shape if by_rows else (*shape[:-2], shape[-1], shape[-2])
        made = new_tensor(tensor, view, order, str(view.dtype_name))
        made = made if by_rows else made.swapaxes(-1, -2)
        made[...] = view.owner[0] if view.library == "dlpack" else tensor
        return made
    raise ArgumentError(
        f"operand {name} cannot be copied by its library, which is known by DLPack alone: pass "
        f"torch.from_dlpack({name})"
    )


def packed_vector(name: str, tensor: Any, view: TensorView, allow_copy: bool) -> Any:
    """Return a vector whose elements are adjacent: a copy where that is allowed, else what was given."""
    if not allow_copy or view.shape is None or len(view.shape) != 1 or view.strides == (1,) or view.shape[0] < 2:
        return tensor
    return copied(name, tensor, view, view.shape)


def maker_of(like: Any, view: TensorView, shape: tuple[int, ...], dtype_name: str) -> Callable[[], Any] | None:
    """Return what makes such results again without looking at a tensor, where their library has one: else None."""
    if view.library != "torch":
        return None
    import torch

    return functools.partial(allocated, torch.empty, shape, getattr(torch, dtype_name), device=like.device)


def seen_as(tensor: Any, see: Callable[[Any], Any]) -> Any:
    """Return what `see` makes of a new tensor of torch, as one of its own: autograd knows of no view."""
    import torch

    with torch._C._AutoDispatchBelowADInplaceOrView():
        return see(tensor)


def new_tensor(like: Any, view: TensorView, shape: tuple[int, ...], dtype_name: str) -> Any:
    """Return packed memory for a result, in the library of `like` and where that is."""
    if view.library == "torch":
        import torch

        return allocated(torch.empty, shape, getattr(torch, dtype_name), device=like.device)
    if view.library == "cupy":
        import cupy

        with cupy.cuda.Device(view.device):
            return allocated(cupy.empty, shape, dtype_name)
    if view.library in ("numpy", "dlpack") and view.device is None:
        return allocated(np.empty, shape, next(row.dtype for row in ELEMENTS if row.dtype_name == dtype_name))
    raise ArgumentError(
        f"a result cannot be made in a library that is known by {view.library} alone: pass out=, a tensor of shape "
        f"{shape} of {dtype_name}"
    )
