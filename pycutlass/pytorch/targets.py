"""Memory of the caller's that results are written into: whether it fits, and what kernels write in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
import torch

from pycutlass.calls import counted
from pycutlass.errors import ArgumentError
from pycutlass.plan.spans import axes_of, span_of
from pycutlass.pytorch.images import new_images
from pycutlass.pytorch.operators import plain

__all__ = ["Expected", "check_apart", "check_fits", "copied_to", "targets_of"]

_ACCESS = 16  # bytes of the widest access of a kernel
_MOST_WORK = 100_000  # candidates that are tried for a common byte; what takes more counts as one
Tensor = torch.Tensor


@dataclass(frozen=True)
class Expected:
    """A result that an operator returns.

    Attributes
    ----------
    name : str
        By which messages call it, behind the name of the memory: such as ``", D of the epilogue"``.
    shape : tuple
        Its shape.
    dtype : torch.dtype
        Its type.
    is_images : bool
        Whether these are images, which kernels write in channels_last.
    is_matrix : bool
        Whether rows of it may be apart; others are written packed.
    """

    name: str
    shape: tuple[Any, ...]
    dtype: torch.dtype
    is_images: bool = False
    is_matrix: bool = True


def check_fits(names: Sequence[str], outs: Sequence[Tensor], expected: Sequence[Expected], like: Tensor) -> None:
    """Raise ArgumentError unless tensors have the shapes and types of the results, on the device of `like`."""
    if len(outs) != len(expected):
        raise ArgumentError(
            f"out has {counted(len(outs), 'tensor')}, and there {'is' if len(expected) == 1 else 'are'} "
            f"{counted(len(expected), 'result')}: pass one for each, in the order in which the operator returns them"
        )
    for name, out, result in zip(names, outs, expected, strict=True):
        if tuple(out.shape) != tuple(result.shape):
            raise ArgumentError(
                f"{name}{result.name} must have the shape of the result, {tuple(result.shape)}; got {tuple(out.shape)}"
            )
        if out.dtype is not result.dtype:
            raise ArgumentError(
                f"{name}{result.name} is of {out.dtype} and the result of {result.dtype}: pass a tensor of that type"
            )
        if out.device != like.device:
            raise ArgumentError(
                f"{name}{result.name} is on {out.device} and what is multiplied on {like.device}: put both on one "
                f"device"
            )


def check_apart(
    names: Sequence[str], outs: Sequence[Tensor], given: Sequence[tuple[str, Tensor]], in_place: set[tuple[str, str]]
) -> None:
    """Raise ArgumentError where an element of a result would lie on another, or on what is read.

    Parameters
    ----------
    names, outs : sequence
        What is written.
    given : sequence of (str, Tensor)
        What is read, by name.
    in_place : set of (str, str)
        Results, each with what is read that may be the same elements: each is read before its place is written.
    """
    for name, out in zip(names, outs, strict=True):
        if _is_folded(out):
            raise ArgumentError(
                f"{name} of shape {tuple(out.shape)} with strides {out.stride()} has several elements at one address, "
                f"as an expanded tensor has: pass memory for each of them"
            )
    written = list(zip(names, outs, strict=True))
    pairs = ((one, other, True) for one, other in combinations(written, 2))
    reads = ((one, other, False) for one, other in product(written, given))
    for (name, out), (other, tensor), are_written in (*pairs, *reads):
        if not _share(out, tensor) or ((name, other) in in_place and _is_itself(out, tensor)):
            continue
        why = "two results cannot be in one place" if are_written else "nothing is written over what is still read"
        raise ArgumentError(
            f"{name} of shape {tuple(out.shape)} overlaps {other} of shape {tuple(tensor.shape)} in memory: {why}. "
            f"Give {name} memory of its own"
        )


def targets_of(outs: Sequence[Tensor], expected: Sequence[Expected], keep: bool) -> list[Tensor]:
    """Return what kernels write in the place of tensors: these where they can, and new memory elsewhere.

    With `keep`, new memory has what is there already, for results of which a part stays as it is.
    """
    found = []
    for out, result in zip(outs, expected, strict=True):
        target = plain(out)
        if not _lies_as_written(target, result):
            made = new_images(out, tuple(out.shape), out.dtype) if result.is_images else out.new_empty(out.shape)
            target = made.copy_(target) if keep else made
        found.append(target)
    return found


def copied_to(outs: Sequence[Tensor], *results: Tensor) -> Any:
    """Return memory of the caller's with results in it that no kernel of ours has written there."""
    for out, result in zip(outs, results, strict=True):
        out.copy_(result)
    return tuple(outs)


def _lies_as_written(out: Tensor, result: Expected) -> bool:
    """Return whether every kernel writes a tensor where it is: packed, or a matrix whose rows are aligned."""
    if out.data_ptr() % _ACCESS != 0:
        return False
    if result.is_images:
        return out.is_contiguous(memory_format=torch.channels_last)
    if out.is_contiguous():
        return True
    if out.dim() != 2 or not result.is_matrix:  # those of a stack are taken as the rows of one matrix
        return False
    step, adjacent = out.stride()
    return adjacent == 1 and step >= out.shape[1] and step * out.element_size() % _ACCESS == 0


def _is_folded(out: Tensor) -> bool:
    """Return whether elements of a tensor lie on each other, or between each other's lines, as no slice does."""
    end = 1
    for step, extent in sorted(axes_of(out)):
        if step < end:
            return True
        end += step * (extent - 1)
    return False


def _share(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have a byte in common, by where they lie: storages may be of the same memory."""
    (begin, end), (first, last) = span_of(one), span_of(other)
    if end <= first or last <= begin:
        return False
    shares: Any = np.shares_memory  # whose stubs know no bound but none
    try:
        return bool(shares(_places(one), _places(other), max_work=_MOST_WORK))
    except np.exceptions.TooHardError:
        return True


class _Places:
    """What NumPy is told of a tensor of any device: it compares addresses, and reads nothing there."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in tensor.stride()),
            "typestr": f"|V{size}",
        }


def _places(tensor: Tensor) -> Any:
    return np.asarray(_Places(tensor))


def _is_itself(out: Tensor, tensor: Tensor) -> bool:
    """Return whether a tensor that is read has the elements that are written, each in its place."""
    is_there = out.data_ptr() == tensor.data_ptr() and out.dtype is tensor.dtype
    return is_there and out.shape == tensor.shape and out.stride() == tensor.stride()
