"""Where the groups of a divided matrix end: numbers that the host knows, or those that the device alone knows."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int, items_of, shape_of
from pycutlass.spec import view_of
from pycutlass.tensor import TensorView

__all__ = ["Offsets"]

_TYPES = ("int32", "int64")


class Offsets:
    """The ends of groups along one axis of a matrix: each begins where the one before ends, the first at 0.

    Parameters
    ----------
    given : sequence of int, or tensor of int32 or int64
        One end for each group, as ``torch._grouped_mm`` takes them. Those in device memory, and a TensorSpec, say how
        many groups there are and nothing else: nobody reads what they hold on the host.

    Attributes
    ----------
    tensor : tensor or None
        The ends in device memory, where the device alone knows them.
    ends : array of int64, or None
        The ends that the host knows.
    is_spec : bool
        Whether there is no memory yet that holds the ends.
    device : int or None
        The GPU that they are on; None for the host.
    """

    def __init__(self, given: Any) -> None:
        self.tensor: Any = None
        self.ends: NDArray[np.int64] | None = None
        self.is_spec = False
        self.device: int | None = None
        if isinstance(given, list | tuple):
            self.ends = _listed(given)
            self._count = len(self.ends)
            return
        if shape_of(given) is None:
            raise ArgumentTypeError(
                f"offs must be a list of integers or a tensor of int32, the ends of groups; got {shown(given)}"
            )
        view = view_of("offs", given)
        if view.dtype_name not in _TYPES:
            raise ArgumentTypeError(f"offs must be of int32, got {view.dtype_name or 'an address'}: convert it")
        if view.shape is None or view.strides is None or len(view.shape) != 1:
            raise ArgumentError(f"offs must have one dimension, with an end for each group; got shape {view.shape}")
        self._count = view.shape[0]
        if view.device is not None or (self._count and not view.pointer):
            self.tensor, self.is_spec, self.device = given, view.device is None, view.device
            return
        self.ends = _values(given, view).astype(np.int64)
        _check_order(self.ends)

    def __len__(self) -> int:
        """Return how many groups there are."""
        return self._count

    def lengths(self, name: str, total: int) -> NDArray[np.int64]:
        """Return how long each group is, of an axis of `name` with `total`; of what the device knows, an even part.

        Raises
        ------
        ArgumentError
            A group ends beyond the axis.
        """
        if self.ends is None:
            each, rest = divmod(total, max(len(self), 1))
            return np.array([each + (number < rest) for number in range(len(self))], np.int64)
        if len(self) and self.ends[-1] > total:
            number = int(np.flatnonzero(self.ends > total)[0])
            raise ArgumentError(
                f"offs[{number}] is {self.ends[number]}, beyond the {total} rows or columns of {name} that groups "
                f"divide: offs are the ends of groups, the largest at most {total}"
            )
        return np.diff(self.ends, prepend=0)


def _values(given: Any, view: TensorView) -> NDArray[Any]:
    """Return the numbers of a tensor in host memory."""
    if view.library == "numpy":
        return np.asarray(given)
    if view.library == "dlpack":
        return np.asarray(view.owner[0])
    return view.host_array(view.shape or (), view.strides or (), np.dtype(view.dtype_name))


def _listed(given: list[Any] | tuple[Any, ...]) -> NDArray[np.int64]:
    items = items_of(given, sys.maxsize - 1) or ()
    numbers = [as_int(item) for item in items]
    for number, (value, item) in enumerate(zip(numbers, items, strict=True)):
        if value is None:
            raise ArgumentTypeError(f"offs[{number}] must be an integer, the end of a group; got {shown(item)}")
        if abs(value) >= 2**31:
            raise ArgumentError(f"offs[{number}] must be within int32, got {value}")
    ends = np.array(numbers, np.int64)
    _check_order(ends)
    return ends


def _check_order(ends: NDArray[np.int64]) -> None:
    """Raise ArgumentError where a group would end before it begins."""
    lengths = np.diff(ends, prepend=0)
    if not (lengths < 0).any():
        return
    number = int(np.flatnonzero(lengths < 0)[0])
    before = f"offs[{number - 1}] is {ends[number - 1]}" if number else "the first group begins at 0"
    raise ArgumentError(
        f"offs must not decrease: {before}, and offs[{number}] is {ends[number]}. They are the ends of groups, such as "
        f"np.cumsum(lengths)"
    )
