"""Tensors within larger allocations, all of whose other bytes are guard zones.

What lies around an operand is NaN (integers: -1), so that a kernel which computes with it is found; around D it has to
be unchanged afterwards, also between the rows of a D with a leading dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from pycutlass import TensorDescription

__all__ = ["Place", "conv_place", "dtype_of", "flat_place", "matrix_place", "vector_place"]

_GUARD_BYTES = 256


class Place:
    """Memory of one tensor, with guard zones.

    Attributes
    ----------
    view : torch.Tensor
        The tensor; its values are undefined at first.
    """

    def __init__(
        self, device: str, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> None:
        size = dtype.itemsize
        span = 1 + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
        elements = _GUARD_BYTES // size + offset + span + _GUARD_BYTES // size
        self._bytes = torch.full((elements * size,), 0xFF, dtype=torch.uint8, device=device)  # NaN in every float
        self._form = (tuple(shape), tuple(strides), _GUARD_BYTES // size + offset)
        self._dtype = dtype
        self.view = self._of(self._bytes)
        self._before = self._bytes

    def keep(self) -> None:
        """Remember the whole allocation, to be compared by `touched`."""
        self._before = self._bytes.clone()

    def touched(self, *, outside: bool = False) -> int:
        """Return how many bytes are not what they were; where `outside`, only those around the tensor count."""
        now = self._bytes
        if outside:
            now = now.clone()
            self._of(now).copy_(self._of(self._before))
        return int((now != self._before).sum())

    def _of(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.view(self._dtype).as_strided(*self._form)

    def __str__(self) -> str:
        shape, strides, offset = self._form
        return f"{str(self._dtype).removeprefix('torch.')} {list(shape)} strides {list(strides)} offset {offset}"


def dtype_of(description: TensorDescription) -> torch.dtype:
    """Return torch's dtype of an operand."""
    found: torch.dtype = getattr(torch, description.type.dtype_name)
    return found


def matrix_place(
    random: Random, device: str, description: TensorDescription, rows: int, columns: int, batch: int | None = None
) -> Place:
    """Return memory for a matrix, or a batch: no more aligned than described, with any leading dimension."""
    line, lines = (columns, rows) if description.is_row_major else (rows, columns)
    ld = line + _gap(random, description)
    strides = (ld, 1) if description.is_row_major else (1, ld)
    shape: tuple[int, ...] = (rows, columns)
    if batch is not None:
        shape, strides = (batch, *shape), (lines * ld + _gap(random, description), *strides)
    return Place(device, dtype_of(description), shape, strides, _offset(random, description))


def vector_place(
    random: Random, device: str, description: TensorDescription, elements: int, batch: int | None = None
) -> Place:
    """Return memory for a bias, or for one of each problem."""
    shape: tuple[int, ...] = (elements,)
    strides: tuple[int, ...] = (1,)
    if batch is not None:
        shape, strides = (batch, elements), (elements + _gap(random, description), 1)
    return Place(device, dtype_of(description), shape, strides, _offset(random, description))


def flat_place(random: Random, device: str, description: TensorDescription, elements: int) -> Place:
    """Return memory for a packed operand."""
    return Place(device, dtype_of(description), (elements,), (1,), _offset(random, description))


def conv_place(
    random: Random, device: str, description: TensorDescription, extent: Sequence[int], *, packed: bool = False
) -> Place:
    """Return memory for a tensor of `extent` (N, H, W, C); pixels may be further apart than their channels."""
    _, h, w, c = extent
    step = c if packed else c + _gap(random, description)
    return Place(device, dtype_of(description), extent, (h * w * step, w * step, step, 1), _offset(random, description))


def _gap(random: Random, description: TensorDescription) -> int:
    return description.alignment * random.choice((0, 0, 1, 3, 8))


def _offset(random: Random, description: TensorDescription) -> int:
    """Return an odd multiple of the alignment, so that nothing is more aligned by chance, or none."""
    return description.alignment * random.choice((0, 1, 1, 3, 5))
