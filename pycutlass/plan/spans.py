"""Where tensors of torch are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["axes_of", "extent_in_memory", "span_of"]

Tensor = Any


def axes_of(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Yield stride and extent of axes along which there are several elements."""
    if tensor.numel():
        yield from ((step, extent) for step, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1)


def span_of(tensor: Tensor) -> tuple[int, int]:
    """Return where a tensor begins and ends in memory; nothing of one without elements."""
    begin = tensor.data_ptr()
    return begin, begin + extent_in_memory(tensor) * tensor.element_size()


def extent_in_memory(tensor: Tensor) -> int:
    """Return how many elements there are from the first of a tensor to its last, those between them as well."""
    return 1 + sum(step * (extent - 1) for step, extent in axes_of(tensor)) if tensor.numel() else 0
