"""One operand of all problems of a group: a list of matrices, a stack of them, or one matrix that is divided."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.errors import ArgumentError
from pycutlass.integers import items_of
from pycutlass.plan.forms import Form, copied, form_of, lies
from pycutlass.plan.offsets import Offsets
from pycutlass.plan.readings import element_of
from pycutlass.spec import view_of
from pycutlass.tensor import TensorView, wrap
from pycutlass.types import Element

__all__ = ["Divided", "Listed", "Part", "Stacked", "Vectors", "divided", "element_of_all", "form_of_all", "sliceable"]

_ACCESS = 128  # bits of the widest access of a kernel
Bools = NDArray[np.bool_]


class Part(ABC):
    """An operand of all problems.

    Attributes
    ----------
    name : str
        What users call it.
    views : tuple of TensorView
        The tensors that it is made of.
    has_indices : bool
        Whether the matrix of a problem is found by its index in what was given.
    """

    name: str
    views: tuple[TensorView, ...]
    has_indices: bool = True

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of problems."""

    @abstractmethod
    def extents(self) -> NDArray[np.int64]:
        """Return the rows and columns of each matrix, as an array of shape (problems, 2)."""

    def form(self, bits: int, used: Bools, by_rows: bool) -> Form | None:
        """Return the form of all matrices that are used, by rows or by columns; None where one of them lies otherwise.

        It is that of all, so the alignment is that of the least aligned. An operand is asked for the same ones each
        time, more than once for a product, so the answer is kept.
        """
        known: dict[Any, Form | None] = self.__dict__.setdefault("_forms", {})
        if (bits, by_rows) not in known:
            known[bits, by_rows] = self._form(bits, used, by_rows)
        return known[bits, by_rows]

    @abstractmethod
    def _form(self, bits: int, used: Bools, by_rows: bool) -> Form | None:
        """Find that form."""

    @abstractmethod
    def matrices(self) -> Sequence[Any]:
        """Return the tensors of all problems, views of what was given."""

    @abstractmethod
    def packed(self, bits: int, by_rows: bool = True) -> Part:
        """Return the operand with copies of what does not lie by rows, or by columns."""

    def without_form(self, bits: int, used: Bools) -> tuple[str, TensorView] | None:
        """Return a tensor, with its name, that lies neither by rows nor by columns; None where there is none."""
        view = self.views[0]
        return (self.name, view) if used.any() and form_of(view, bits) is None else None

    def named_views(self) -> list[tuple[str, TensorView]]:
        """Return the tensors that it is made of, with the names that users have for them."""
        return [(self.name, self.views[0])] if self.views else []

    def requiring_grad(self) -> list[tuple[str, TensorView]]:
        """Return those that autograd of torch follows."""
        return [(name, view) for name, view in self.named_views() if view.requires_grad or view.has_tangent]

    @property
    def last_extents(self) -> tuple[int, int]:
        """Rows and columns of a matrix, also where there is no problem; 0 where nothing says."""
        shape = self.views[0].shape if self.views else None
        return (0, 0) if shape is None or len(shape) < 2 else (shape[-2], shape[-1])

    @property
    @abstractmethod
    def like(self) -> tuple[Any, TensorView]:
        """A tensor, and its view, in whose library and on whose device results are made."""


class Listed(Part):
    """A list of matrices."""

    def __init__(self, name: str, tensors: Sequence[Any]) -> None:
        self.name, self.tensors = name, items_of(tensors, sys.maxsize - 1) or ()
        self.views = tuple(view_of(f"{name}[{number}]", each) for number, each in enumerate(self.tensors))
        self._check_dimensions()

    def _check_dimensions(self) -> None:
        for number, view in enumerate(self.views):
            if view.shape is None or len(view.shape) != 2:
                raise ArgumentError(f"{self.name}[{number}] must be a matrix, got shape {view.shape}")

    def __len__(self) -> int:
        return len(self.views)

    def named_views(self) -> list[tuple[str, TensorView]]:
        """Return the tensors that it is made of, with the names that users have for them."""
        return [(f"{self.name}[{number}]", view) for number, view in enumerate(self.views)]

    def extents(self) -> NDArray[np.int64]:
        """Return the rows and columns of each matrix."""
        return np.array([view.shape for view in self.views], np.int64).reshape(-1, 2)

    def _form(self, bits: int, used: Bools, by_rows: bool) -> Form | None:
        alignment = _ACCESS // bits
        for number in np.flatnonzero(used).tolist():
            found = form_of(self.views[number], bits, by_rows)
            if found is None or found.is_row_major is not by_rows:
                return None
            alignment = min(alignment, found.alignment)
        return Form(by_rows, alignment)

    def matrices(self) -> Sequence[Any]:
        """Return the tensors of all problems."""
        return self.tensors

    def packed(self, bits: int, by_rows: bool = True) -> Listed:
        """Return the operand with copies of what does not lie so."""

        def kept(number: int, view: TensorView) -> Any:
            tensor = self.tensors[number]
            if lies(view, by_rows):
                return tensor
            return copied(f"{self.name}[{number}]", tensor, view, view.shape or (), by_rows)

        return Listed(self.name, [kept(number, view) for number, view in enumerate(self.views)])

    def without_form(self, bits: int, used: Bools) -> tuple[str, TensorView] | None:
        """Return a tensor, with its name, that lies neither by rows nor by columns."""
        for number in np.flatnonzero(used).tolist():
            if form_of(self.views[number], bits) is None:
                return f"{self.name}[{number}]", self.views[number]
        return None

    @property
    def like(self) -> tuple[Any, TensorView]:
        """A tensor, and its view, that results are like."""
        return self.tensors[0], self.views[0]


class Vectors(Listed):
    """Bias vectors, which lie along the rows of D.

    Parameters
    ----------
    tensors : sequence of tensor
        One for each problem; where there is no memory, anything.
    views : sequence of TensorView, optional
        How these look, where that is known.
    """

    def __init__(self, name: str, tensors: Sequence[Any], views: Sequence[TensorView] | None = None) -> None:
        if views is None:
            super().__init__(name, tensors)
        else:
            self.name, self.tensors, self.views = name, tuple(tensors), tuple(views)
            self.has_indices = False

    @classmethod
    def of_rows(cls, name: str, tensor: Any, view: TensorView) -> Vectors:
        """Return the rows of a matrix."""
        (rows, columns), (down, along) = view.shape or (0, 0), view.strides or (0, 0)
        parts = _taken_apart(sliceable(name, tensor, view), view) if view.pointer else [tensor] * rows
        step = element_of(name, view).bytes_of(down)
        looks = replace(view, shape=(columns,), strides=(along,))
        return cls(name, parts, [replace(looks, pointer=view.pointer + step * row) for row in range(rows)])

    @classmethod
    def of_parts(cls, name: str, tensor: Any, view: TensorView, offsets: Offsets) -> Vectors:
        """Return the parts of a vector that is divided."""
        lengths = offsets.lengths(name, (view.shape or (0,))[0])
        parts = divided(sliceable(name, tensor, view), view, 0, lengths) if view.pointer else [tensor] * len(lengths)
        step = element_of(name, view).bytes_of((view.strides or (1,))[0])
        starts = (np.cumsum(lengths) - lengths).tolist()
        views = [
            replace(view, pointer=view.pointer + step * start, shape=(length,))
            for start, length in zip(starts, lengths.tolist(), strict=True)
        ]
        return cls(name, parts, views)

    def _check_dimensions(self) -> None:
        for number, view in enumerate(self.views):
            if view.shape is None or len(view.shape) != 1:
                raise ArgumentError(
                    f"{self.name}[{number}] must be a vector of one number for each column, got shape {view.shape}"
                )

    def extents(self) -> NDArray[np.int64]:
        """Return the rows and columns of each matrix."""
        return np.array([(1, *(view.shape or ())) for view in self.views], np.int64).reshape(-1, 2)

    def _form(self, bits: int, used: Bools, by_rows: bool) -> Form | None:
        alignment = _ACCESS // bits
        for number in np.flatnonzero(used).tolist():
            view = self.views[number]
            found = form_of(
                replace(view, shape=(1, *(view.shape or ())), strides=(0, *(view.strides or ()))), bits, True
            )
            if found is None or not found.is_row_major or not by_rows:
                return None
            alignment = min(alignment, found.alignment)
        return Form(True, alignment)

    def packed(self, bits: int, by_rows: bool = True) -> Vectors:
        """Return the operand with copies of what does not lie so."""
        named = zip(self.tensors, self.views, strict=True)
        return Vectors(self.name, [copied(self.name, tensor, view, view.shape or ()) for tensor, view in named])


class Stacked(Part):
    """A tensor of three dimensions, of which the first counts the problems."""

    def __init__(self, name: str, tensor: Any) -> None:
        self.name, self.tensor = name, tensor
        self.views = (view_of(name, tensor),)

    @property
    def view(self) -> TensorView:
        """How the tensor looks."""
        return self.views[0]

    def __len__(self) -> int:
        return (self.view.shape or (0,))[0]

    def extents(self) -> NDArray[np.int64]:
        """Return the rows and columns of each matrix."""
        return np.tile(np.array((self.view.shape or ())[1:], np.int64), (len(self), 1))

    def _form(self, bits: int, used: Bools, by_rows: bool) -> Form | None:
        if not used.any():
            return Form(by_rows, _ACCESS // bits)
        found = form_of(self.view, bits, by_rows)
        return found if found is not None and found.is_row_major is by_rows else None

    def matrices(self) -> Sequence[Any]:
        """Return the tensors of all problems."""
        return _taken_apart(sliceable(self.name, self.tensor, self.view), self.view)

    def packed(self, bits: int, by_rows: bool = True) -> Stacked:
        """Return the operand with copies of what does not lie so."""
        return Stacked(self.name, copied(self.name, self.tensor, self.view, self.view.shape or (), by_rows))

    @property
    def like(self) -> tuple[Any, TensorView]:
        """A tensor, and its view, that results are like."""
        return self.tensor, self.view


class Divided(Part):
    """A matrix whose rows (axis 0) or columns (axis 1) are divided among the problems."""

    has_indices = False

    def __init__(self, name: str, tensor: Any, axis: int, offsets: Offsets) -> None:
        self.name, self.tensor, self.axis, self.offsets = name, tensor, axis, offsets
        self.views = (view_of(name, tensor),)
        self.lengths = offsets.lengths(name, self.total)

    @property
    def view(self) -> TensorView:
        """How the tensor looks."""
        return self.views[0]

    @property
    def total(self) -> int:
        """The extent that is divided."""
        return (self.view.shape or (0, 0))[self.axis]

    def __len__(self) -> int:
        return len(self.offsets)

    def extents(self) -> NDArray[np.int64]:
        """Return the rows and columns of each matrix."""
        other = np.full(len(self), (self.view.shape or ())[1 - self.axis], np.int64)
        return np.stack((self.lengths, other) if self.axis == 0 else (other, self.lengths), 1)

    def _form(self, bits: int, used: Bools, by_rows: bool) -> Form | None:
        if not used.any():
            return Form(by_rows, _ACCESS // bits)
        found = form_of(self.view, bits, by_rows)
        if found is None or found.is_row_major is not by_rows:
            return None
        if self.axis == (0 if by_rows else 1):  # whole lines belong to a problem, and begin where lines do
            return found
        if self.offsets.ends is None:  # which may be anything
            return Form(by_rows, 1)
        starts = (self.offsets.ends - self.lengths)[used]
        return Form(by_rows, math.gcd(found.alignment, *starts.tolist(), *self.lengths[used].tolist()))

    def matrices(self) -> Sequence[Any]:
        """Return the tensors of all problems."""
        return divided(sliceable(self.name, self.tensor, self.view), self.view, self.axis, self.lengths)

    def packed(self, bits: int, by_rows: bool = True) -> Divided:
        """Return the operand with copies of what does not lie so."""
        made = copied(self.name, self.tensor, self.view, self.view.shape or (), by_rows)
        return Divided(self.name, made, self.axis, self.offsets)

    @property
    def like(self) -> tuple[Any, TensorView]:
        """A tensor, and its view, that results are like."""
        return self.tensor, self.view


def divided(tensor: Any, view: TensorView, axis: int, lengths: NDArray[np.int64]) -> Sequence[Any]:
    """Return the parts of a tensor along an axis, of these lengths, as views."""
    ends = np.cumsum(lengths).tolist()
    if view.library == "torch":  # one call, of all that it has
        total = (view.shape or ())[axis]
        parts: Sequence[Any] = tensor.split([*lengths.tolist(), total - (ends[-1] if ends else 0)], axis)
        return parts[:-1]
    starts = [0, *ends[:-1]]
    if axis == 0:
        return [tensor[start:end] for start, end in zip(starts, ends, strict=True)] if ends else []
    return [tensor[:, start:end] for start, end in zip(starts, ends, strict=True)] if ends else []


def _taken_apart(tensor: Any, view: TensorView) -> Sequence[Any]:
    """Return what a tensor has along its first dimension, as views."""
    if view.library == "torch":
        parts: Sequence[Any] = tensor.unbind(0)
        return parts
    return [tensor[number] for number in range((view.shape or (0,))[0])]


def sliceable(name: str, tensor: Any, view: TensorView) -> Any:
    """Return a tensor of which slices can be taken."""
    if view.library == "spec":
        wrap(name, tensor)  # which says that it has no memory
    if view.library == "dlpack":
        if view.device is None:
            return view.owner[0]
        raise ArgumentError(
            f"{name} is of a library that is known by DLPack alone, and has no slices: pass torch.from_dlpack({name}) "
            f"or cupy.from_dlpack({name})"
        )
    return tensor


def element_of_all(part: Part) -> Element:
    """Return the element type of all tensors of an operand.

    Raises
    ------
    ArgumentError
        Two types, or one that kernels do not take.
    """
    first = part.views[0]
    for number, view in enumerate(part.views):
        if view.dtype_name != first.dtype_name:
            raise ArgumentError(
                f"{part.name} must be of one type, got {part.name}[0] of {first.dtype_name} and {part.name}[{number}] "
                f"of {view.dtype_name}: convert one"
            )
    return element_of(part.name, first)


def form_of_all(part: Part, bits: int, used: Bools) -> Form:
    """Return the form of all matrices of an operand, or raise with the remedy.

    Vectors lie by rows and by columns: the form is taken in which more elements are aligned.
    """
    found = [form for by_rows in (True, False) if (form := part.form(bits, used, by_rows)) is not None]
    if found:
        return max(found, key=lambda form: form.alignment)
    remedy = "pass a contiguous copy, or allow_copy=True to pycutlass.grouped_matmul"
    if (one := part.without_form(bits, used)) is not None:
        name, view = one
        raise ArgumentError(
            f"{name} of shape {view.shape} has strides {view.strides}, and kernels take adjacent elements along rows "
            f"or columns: {remedy}"
        )
    raise ArgumentError(
        f"some of {part.name} lie by rows and others by columns, and the kernel of a group takes one layout: {remedy}"
    )
