"""The operands of a group: what they are lists or parts of, and the problems that they make."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass.calls import counted
from pycutlass.epilogue import Epilogue, Port
from pycutlass.errors import ArgumentError
from pycutlass.integers import as_int, attribute, items_of, shape_of
from pycutlass.operands.epilogue import check_type_of_all, is_plain_number
from pycutlass.operands.epilogue import taken_apart as port_taken_apart
from pycutlass.plan.forms import Columns, Form
from pycutlass.plan.group_parts import (
    Divided,
    Listed,
    Part,
    Stacked,
    Vectors,
    divided,
    element_of_all,
    form_of_all,
    sliceable,
)
from pycutlass.plan.offsets import Offsets
from pycutlass.spec import view_of
from pycutlass.tensor import TensorView
from pycutlass.types import Element

__all__ = ["Group"]

_LARGEST = 2**31 - 1
#: Which of M, N and K offsets divide, by the dimensions of xs and ws; lists of matrices have three, as stacks do.
_DIVIDED = {(2, 3): 0, (3, 2): 1, (2, 2): 2}
#: Along which axis xs, ws and results are divided then.
_AXES: Mapping[int | None, tuple[int | None, int | None, int | None]] = {
    **{0: (0, None, 0), 1: (None, 1, 1), 2: (1, 0, None), None: (None, None, None)}
}
_FORMS = (
    "xs and ws are lists of matrices, or stacks of three dimensions; with offs one or both are matrices: xs of "
    "(total, K) and ws of (groups, K, N), or xs of (M, total) and ws of (total, N)"
)


class Group:
    """The operands of a group.

    Parameters
    ----------
    xs, ws : list of tensor, or tensor
        A and B of all problems.
    offsets : Offsets or None
        Where the parts of divided matrices end.
    cs, bias : optional
        C of all problems, as matrices, or as vectors.

    Attributes
    ----------
    A, B : Part
        The operands.
    C : Part or None
        What kernels read as C: matrices, or a bias alone.
    bias : Vectors or None
        A bias that is a tensor of the epilogue.
    axis : int or None
        Which of M, N and K is divided; None where nothing is.
    sizes : array of shape (problems, 3)
        M, N and K; where the device alone knows them, of even parts.
    used : array of bool
        Which problems have results.
    """

    def __init__(self, xs: Any, ws: Any, offsets: Offsets | None = None, cs: Any = None, bias: Any = None) -> None:
        dimensions = _dimensions("xs", xs), _dimensions("ws", ws)
        self.offsets, self.axis = offsets, _divided_axis(dimensions, offsets, cs)
        along = _AXES[self.axis]
        self.A, self.B = self._part("xs", xs, along[0]), self._part("ws", ws, along[1])
        if len(self.A) != len(self.B):
            raise ArgumentError(
                f"xs is of {counted(len(self.A), 'problem')} and ws of {len(self.B)}: a problem has one of each"
            )
        of_a, of_b = self.A.extents(), self.B.extents()
        if len(wrong := np.flatnonzero(of_a[:, 1] != of_b[:, 0])):
            number = int(wrong[0])
            raise ArgumentError(
                f"xs of shape {tuple(of_a[number].tolist())} and ws of shape {tuple(of_b[number].tolist())} have "
                f"different K in problem {number}: {of_a[number, 1]} columns of xs and {of_b[number, 0]} rows of ws"
            )
        self.sizes: NDArray[np.int64] = np.stack((of_a[:, 0], of_b[:, 1], of_a[:, 1]), 1)
        self._check_sizes()
        self.used: NDArray[np.bool_] = self.sizes[:, :2].min(axis=1, initial=_LARGEST) > 0
        self.C, self.bias = self._sources(cs, bias)

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self.sizes)

    @property
    def is_on_device(self) -> bool:
        """Whether the device alone knows the sizes."""
        return self.offsets is not None and self.offsets.ends is None

    @property
    def summed(self) -> NDArray[np.bool_]:
        """Which problems have elements of A and B, and results."""
        return self.used & (self.sizes[:, 2] > 0)

    def elements(self) -> tuple[Element, Element]:
        """Return the types of A and B."""
        return element_of_all(self.A), element_of_all(self.B)

    def forms(self) -> tuple[Form, Form]:
        """Return the forms of A and B, or raise with the remedy."""
        of_a, of_b = self.elements()
        return form_of_all(self.A, of_a.bits, self.summed), form_of_all(self.B, of_b.bits, self.summed)

    def form_of_c(self, of_d: Form) -> Form | None:
        """Return the form of C, which must be that of D, or raise with the remedy."""
        if self.bias is not None and self.bias.form(element_of_all(self.bias).bits, self.used, True) is None:
            raise ArgumentError(_not_adjacent(self.bias.name))
        if self.C is None:
            return None
        found = self.C.form(element_of_all(self.C).bits, self.used, of_d.is_row_major)
        if found is None:
            lies = "by rows" if of_d.is_row_major else "by columns"
            if isinstance(self.C, Vectors):
                raise ArgumentError(_not_adjacent(self.C.name))
            raise ArgumentError(
                f"{self.C.name} does not lie {lies}, as the results do, and C and D of a group have one layout: pass a "
                f"copy that does, or an out that lies as {self.C.name} does"
            )
        return found

    def form_of_new(self, out: Element, columns: Columns) -> Form:
        """Return the form of new results, which are packed rows."""
        lines = [columns(n) for n in self.sizes[self.used, 1].tolist()]
        if self.axis == 1 and isinstance(self.B, Divided):
            if self.is_on_device:
                return Form(True, 1)
            lines += [self.B.total, *np.cumsum(self.sizes[:, 1]).tolist()]
        return Form(True, math.gcd(128 // out.bits, *lines))

    def copy_what_must_be(self, target: Part | None) -> None:
        """Take copies of operands that no kernel takes, by rows, and of a C that lies otherwise than D, as D lies."""
        of_a, of_b = self.elements()
        self.A, self.B = _taken(self.A, of_a.bits, self.summed), _taken(self.B, of_b.bits, self.summed)
        if self.bias is not None and self.bias.form(bits := element_of_all(self.bias).bits, self.used, True) is None:
            self.bias = self.bias.packed(bits)
        by_rows = target is None or target.form(element_of_all(target).bits, self.used, True) is not None
        if self.C is None:
            return
        bits, by_rows = element_of_all(self.C).bits, by_rows or isinstance(self.C, Vectors)
        if self.C.form(bits, self.used, by_rows) is None:
            self.C = self.C.packed(bits, by_rows)

    @property
    def has_matrices(self) -> bool:
        """Whether matrices are added."""
        return self.C is not None and not isinstance(self.C, Vectors)

    @property
    def has_bias(self) -> bool:
        """Whether a bias is added."""
        return self.bias is not None or isinstance(self.C, Vectors)

    def put_bias_beside(self) -> None:
        """Have a bias that is alone as a tensor of the epilogue, in place of C."""
        if isinstance(self.C, Vectors):
            self.C, self.bias = None, self.C

    # Results

    def shape(self, columns: Columns) -> tuple[int, ...] | None:
        """Return the shape of the tensor that holds all results; None where they are a list."""
        if self.axis is None and not (isinstance(self.A, Stacked) and isinstance(self.B, Stacked)):
            return None
        rows, wide = self.A.last_extents[0], self.B.last_extents[1]
        return (rows, columns(wide)) if self.axis in (0, 1) else (len(self), rows, columns(wide))

    def result(self, given: Any, columns: Columns) -> Part:
        """Return what is written, checked against the problems.

        Parameters
        ----------
        given : tensor, TensorSpec, or list
            Where results go.
        columns : callable
            Returns how many columns of D there are, of N.
        """
        part = self._laid_out("out", given)
        self._check_extents(part, columns)
        return part

    @property
    def like(self) -> tuple[Any, TensorView]:
        """A tensor, and its view, that results are like; of a group without problems either operand may have none."""
        return (self.A if self.A.views else self.B).like

    @property
    def axis_total(self) -> int:
        """The extent that offs divides."""
        return self.B.total if isinstance(self.B, Divided) else self.A.total if isinstance(self.A, Divided) else 0

    @property
    def rest(self) -> int:
        """How many rows or columns of results belong to no group, at the end; all where nobody knows."""
        if self.axis not in (0, 1):
            return 0
        return self.axis_total - (0 if self.is_on_device else int(self.sizes[:, self.axis].sum()))

    # Tensors of the epilogue

    def ports(self, epilogue: Epilogue, given: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
        """Return the tensors that an epilogue has beside C and D: a list of each, with one for each problem."""
        ports, written = [port for port in epilogue.ports if port.name in given], epilogue.outputs
        return {port.name: self.port(port, given[port.name], port in written) for port in ports}

    def port(self, port: Port, given: Any, written: bool) -> Sequence[Any]:
        """Return one of them: a list with a tensor for each problem."""
        got = ""
        if is_plain_number(given):
            got = f"{type(given).__name__} {given:g}. What is a number itself is a Scalar"
        if isinstance(given, list | tuple):
            found: Sequence[Any] | None = items_of(given, sys.maxsize - 1)
            got = f"a list of {counted(len(found or ()), 'tensor')}"
        else:
            found = self._divided_port(port, given, written)
            if found is None:
                found = port_taken_apart(port, given, written=written)
            if found is not None:
                got = f"shape {shape_of(given)}, which is of {counted(len(found), 'problem')}"
        if found is not None and len(found) == len(self):
            return found
        axis, total = self._divided_axis(port), self.axis_total
        or_divided = "" if axis is None else f", or one with {total} {('rows', 'columns')[axis]}, which offs divides"
        if axis is not None and not port.is_matrix:
            or_divided = f", or one of shape ({total},), which offs divides"
        of_numbers = f", of shape ({len(self)},)" if port.form in ("number", "scalar") else ""
        is_one = found is None and len(shape_of(given) or ()) == (2 if port.is_matrix else 1)
        shared = f". For one that all share, pass [{port.name}] * {len(self)}" if is_one and not written else ""
        raise ArgumentError(
            f"{port.name}, a {port.form} of the epilogue, must be a list with one tensor for each of "
            f"{counted(len(self), 'problem')}, or one tensor that holds them{of_numbers}{or_divided}; got "
            f"{got or f'shape {shape_of(given)}'}{shared}"
        )

    def _divided_axis(self, port: Port) -> int | None:
        """Return the axis along which a tensor of the epilogue may be divided as D is; None where it may not."""
        along = {"matrix": (0, 1), "top_k": (0, None), "column": (0, None), "row": (None, 0)}.get(port.form)
        return None if along is None or self.offsets is None or self.axis not in (0, 1) else along[self.axis]

    def _divided_port(self, port: Port, given: Any, written: bool) -> Sequence[Any] | None:
        """Return the parts of a tensor that is divided as D is; None of any other."""
        axis, shape = self._divided_axis(port), shape_of(given) or ()
        if axis is None or self.offsets is None:
            return None
        is_column = port.form == "column" and shape == (self.axis_total, 1)  # which one product takes as well
        if len(shape) != (2 if port.is_matrix else 1) and not is_column:
            return None
        check_type_of_all(port, given, written=written)
        view = view_of(port.name, given)
        lengths = self.offsets.lengths(port.name, shape[axis])
        return divided(sliceable(port.name, given, view), view, axis, lengths)

    # How operands are read

    def _check_sizes(self) -> None:
        if self.sizes.size and self.sizes.max() > _LARGEST:
            raise ArgumentError(f"M, N and K must be at most {_LARGEST:,}, got {self.sizes.max():,}")
        for axis, part, what in ((0, self.B, "N"), (1, self.A, "M")):
            others = part.extents()[:, 1 - axis]
            if self.axis == axis and len(np.unique(others)) > 1:
                raise ArgumentError(
                    f"{part.name} must have one {what}, since all results are in one matrix; got "
                    f"{', '.join(map(str, np.unique(others).tolist()))}: give lists of both, and no offs"
                )

    def _part(self, name: str, given: Any, axis: int | None) -> Part:
        if isinstance(given, list | tuple):
            return Listed(name, given)
        if axis is None or self.offsets is None:
            return Stacked(name, given)
        return Divided(name, given, axis, self.offsets)

    def _sources(self, cs: Any, bias: Any) -> tuple[Part | None, Vectors | None]:
        """Return C, of matrices of the extents of D, and a bias beside it; a bias alone is C."""
        if isinstance(cs, list | tuple):
            cs = items_of(cs, sys.maxsize - 1)
        vectors = None if bias is None else self._vectors(bias)
        matrices: Part | None = None
        if isinstance(cs, tuple) and cs and len(shape_of(cs[0]) or ()) == 1:
            if vectors is not None:
                raise ArgumentError(
                    "cs are vectors, and so a bias, and bias is another one: add them, and give the sum"
                )
            vectors = Vectors("cs", cs)
        elif cs is not None:
            matrices = self._laid_out("cs", cs)
        for part in (matrices, vectors):
            if part is not None:
                self._check_extents(part, lambda n: n)
        return (vectors, None) if matrices is None else (matrices, vectors)

    def _vectors(self, bias: Any) -> Vectors:
        """Return a bias: one vector for all problems, a matrix with a row for each, or a list."""
        if isinstance(bias, list | tuple):
            return Vectors("bias", bias)
        view = view_of("bias", bias)
        dimensions = len(view.shape or ())
        if dimensions == 2:
            return Vectors.of_rows("bias", bias, view)
        if dimensions == 1 and self.axis == 1 and self.offsets is not None:
            if self.is_on_device:
                raise ArgumentError(
                    "bias is divided as ws is, and offs is on the GPU: add it in a kernel behind the group, or pass "
                    "offs.tolist(), which waits for the GPU"
                )
            return Vectors.of_parts("bias", bias, view, self.offsets)
        if dimensions == 1:
            return Vectors("bias", [bias] * len(self), [view] * len(self))
        raise ArgumentError(
            f"bias must be a vector of one number for each column, a matrix with a row for each problem, or a list of "
            f"vectors; got shape {view.shape}"
        )

    def _laid_out(self, name: str, given: Any) -> Part:
        """Return an operand of the extents of D, in the form that results have."""
        axis = _AXES[self.axis][2]
        if isinstance(given, list | tuple) or _dimensions(name, given) == (3 if axis is None else 2):
            return self._part(name, given, axis)
        form = "a list of matrices or a tensor of three dimensions" if axis is None else "a matrix or a list of them"
        further = ". A bias is passed as bias" if name == "cs" else ""
        raise ArgumentError(f"{name} must be {form}, got shape {shape_of(given)}{further}")

    def _check_extents(self, part: Part, columns: Columns) -> None:
        """Raise unless an operand has the extents of D in every problem, a bias in every one that has results."""
        if len(part) != len(self):
            raise ArgumentError(
                f"{part.name} is of {counted(len(part), 'problem')}, and xs of {len(self)}: a problem has one of each"
            )
        whole = self.shape(columns)
        if isinstance(part, Divided) and part.view.shape != whole:
            raise ArgumentError(f"{part.name} must have shape {whole}, got {part.view.shape}")
        is_bias = isinstance(part, Vectors)
        wanted = [(1 if is_bias else m, columns(n)) for m, n, _ in self.sizes.tolist()]
        found = list(map(tuple, part.extents().tolist()))
        for number, (expected, got) in enumerate(zip(wanted, found, strict=True)):
            if expected == got or (is_bias and not self.used[number]):
                continue
            shape = f"{expected[1]} elements, one for each column" if is_bias else f"shape {expected}"
            raise ArgumentError(f"{part.name} must have {shape} in problem {number}, got {got[1] if is_bias else got}")


def _not_adjacent(name: str) -> str:
    return (
        f"{name} has elements that are not adjacent, and a bias is read along rows: pass a contiguous copy, or "
        f"allow_copy=True to pycutlass.grouped_matmul"
    )


def _taken(part: Part, bits: int, used: NDArray[np.bool_]) -> Part:
    """Return an operand that kernels take, a copy where they do not take it as it is."""
    has_form = any(part.form(bits, used, by_rows) is not None for by_rows in (True, False))
    return part if has_form else part.packed(bits)


def _divided_axis(dimensions: tuple[int, int], offsets: Offsets | None, cs: Any) -> int | None:
    """Return which of M, N and K offsets divide."""
    axis = _DIVIDED.get(dimensions)
    if axis is not None and offsets is None and _are_ends(cs):
        raise ArgumentError(
            f"{'xs' if dimensions[0] == 2 else 'ws'} is one matrix, and offs, which divides it, is missing; cs, the "
            f"third parameter, is of integers, as offs are: pass them by name, offs=..."
        )
    if axis is not None and offsets is None:
        raise ArgumentError(
            f"{'xs' if dimensions[0] == 2 else 'ws'} is one matrix, and offs, which divides it, is missing: {_FORMS}. "
            f"One product is pycutlass.matmul"
        )
    if axis is None and offsets is not None:
        raise ArgumentError(f"offs is given, and there is no matrix that it divides: leave it out. {_FORMS}")
    return axis


def _are_ends(cs: Any) -> bool:
    """Return whether what is given as C has the form that offsets have, which no C has."""
    if isinstance(cs, list | tuple):
        return len(cs) > 0 and all(as_int(each) is not None for each in cs)
    return len(shape_of(cs) or ()) == 1 and "int" in str(attribute(cs, "dtype"))


def _dimensions(name: str, given: Any) -> int:
    """Return 2 for a matrix, and 3 for a stack of matrices or a list of them."""
    if isinstance(given, list | tuple):
        return 3
    if given is None:
        raise ArgumentError(f"{name} is missing: {_FORMS}")
    shape = view_of(name, given).shape
    if shape is None or len(shape) not in (2, 3):
        raise ArgumentError(f"{name} must be a list of matrices, a matrix, or a stack of matrices; got shape {shape}")
    return len(shape)
