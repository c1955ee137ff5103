"""Whether a tensor is still where and what it was when a launch was prepared."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from pycutlass import _core
from pycutlass.errors import ArgumentError
from pycutlass.tensor.adapters import wrap
from pycutlass.tensor.view import TensorView

__all__ = ["Guard", "check_seen", "guard"]


class Guard(Protocol):
    """What watches one tensor."""

    def check(self, name: str, /) -> None:
        """Raise ArgumentError where the tensor, which messages call `name`, has other memory or another form."""

    def count_write(self) -> None:
        """Tell the tensor's library that a launch has written to it."""


def guard(view: TensorView, *, written: bool) -> Guard | None:
    """Return what watches the tensor of `view`; None where its library never moves the memory of a tensor.

    Tensors of torch go over to other memory (``.data = ...``, ``set_``, ``module.double()``), or their storage does
    (``resize_``); some functions change their shape or strides in place (``t_``). Arrays of numpy are resized in place,
    or get another shape. Those of cupy are never moved, and a DLPack capsule holds the
    memory.
    """
    if view.library == "torch":
        return _core.TensorGuard(view.owner, written)
    return _ArrayGuard(view, written) if view.library == "numpy" else None


def check_seen(name: str, view: TensorView) -> None:
    """Raise ArgumentError where a tensor no longer looks like its view, which was taken before others had their turn.

    Those are allocators, other tensors that answer by code of the user's, and other threads.
    """
    if view.library not in ("torch", "numpy", "cupy"):
        return  # an address, or memory that a capsule holds
    before, now = _seen(view), _seen(wrap(name, view.owner))
    if now == before:
        return
    was, is_now = (
        f"{dtype} of shape {shape} and strides {strides} at {pointer or 0:#x}"
        for pointer, dtype, shape, strides, _ in (before, now)
    )
    raise ArgumentError(
        f"operand {name} was moved or changed while it was looked at: it was {was}, and is {is_now}. Something "
        f"that was called meanwhile (an allocator, code of a tensor's class, another thread) did that. Pass it again."
    )


def _seen(view: TensorView) -> tuple[Any, ...]:
    shape, strides = (None if each is None else tuple(each) for each in (view.shape, view.strides))
    return view.pointer, view.dtype_name, shape, strides, view.device


class _ArrayGuard:
    """Watches an array of numpy."""

    def __init__(self, view: TensorView, written: bool) -> None:
        self._array: Any = view.owner
        self._written = written
        # NumPy moves the memory of what a view was taken from as well, where it is told not to look at references.
        self._base: Any = self._array.base if isinstance(self._array.base, np.ndarray) else self._array
        self._place, self._form = _place(self._base), _form(self._array)

    def check(self, name: str) -> None:
        """Raise ArgumentError where the array was resized, changed in place, or made read-only and is to be written."""
        if _place(self._base) != self._place:
            (pointer, size), (now, size_now) = self._place, _place(self._base)
            raise ArgumentError(
                f"the memory of operand {name} is not what these arguments were made with: it had {size} bytes at "
                f"{pointer:#x}, and has {size_now} at {now:#x}. Something like resize has moved it. {_REMEDY}"
            )
        if _form(self._array) != self._form:
            before, after = ("shape {} and strides {} of {}".format(*form) for form in (self._form, _form(self._array)))
            raise ArgumentError(
                f"operand {name} is not the array that these arguments were made with: it had {before}, and has "
                f"{after}. It was changed in place. Change it back, or pass an array like it was to update."
            )
        if self._written and not self._array.flags.writeable:
            raise ArgumentError(
                f"operand {name} was made read-only after these arguments were made, and the result is written to it: "
                f"{name}.setflags(write=True), or pass another array to update"
            )

    def count_write(self) -> None:
        """Do nothing: arrays have no versions."""


_REMEDY = "Pass the array to update, or make new arguments."


def _place(array: Any) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def _form(array: Any) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    return array.shape, array.strides, array.dtype
