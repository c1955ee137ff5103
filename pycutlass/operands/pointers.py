"""Operands of ``Mode.Array``: one matrix for each problem, anywhere in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError
from pycutlass.library import TensorDescription
from pycutlass.operands import Matrix, check_alike, check_listed, is_vector, matrix, vector
from pycutlass.operands.reordered import UNCHANGED, Reordering
from pycutlass.remedies import is_target
from pycutlass.tensor import TensorView, wrap

__all__ = [
    "PointerArray",
    "PointerTable",
    "address_table",
    "check_no_table",
    "held_matrices",
    "pointer_operand",
]


@dataclass(frozen=True)
class PointerArray:
    """As many matrices as there are problems, with one leading dimension.

    The kernel gets a table of their addresses, which the launch makes.
    """

    name: str
    description: TensorDescription
    matrices: tuple[Matrix, ...]

    batch_stride = 0
    form = _core.FORMS["addresses"]

    @property
    def parts(self) -> tuple[Matrix, ...]:
        """Every matrix."""
        return self.matrices

    @property
    def view(self) -> TensorView:
        """The first matrix's memory, owned together with all others."""
        first = self.matrices[0].view
        owners = tuple(each.view.owner for each in self.matrices)
        return TensorView(first.pointer, first.dtype_name, None, None, first.device, first.library, owners)

    @property
    def ld(self) -> int:
        """Leading dimension of every matrix."""
        return self.matrices[0].ld

    @property
    def bytes(self) -> int:
        """Bytes of one matrix."""
        return self.matrices[0].bytes

    @property
    def packed_ld(self) -> int:
        """Leading dimension of contiguous copies."""
        return self.matrices[0].packed_ld

    @property
    def packed_batch_stride(self) -> int:
        """Nothing: the table says where each matrix is."""
        return 0

    @property
    def packed_bytes(self) -> int:
        """Bytes of all contiguous copies, one after the other."""
        return sum(each.packed_bytes for each in self.matrices)

    def packed(self) -> NDArray[Any]:
        """Return host memory of all matrices as contiguous bytes."""
        return np.concatenate([each.packed() for each in self.matrices])

    def unpack(self, packed: NDArray[Any]) -> None:
        """Write contiguous bytes into the host memory of all matrices."""
        for each, part in zip(self.matrices, np.split(packed, len(self.matrices)), strict=True):
            each.unpack(part)

    def addresses(self, base: int) -> list[int]:
        """Return where each matrix is: its own memory, or its place in a packed copy at `base`."""
        if self.view.device is not None:
            return [each.view.pointer for each in self.matrices]
        step = self.matrices[0].packed_bytes
        return [base + index * step for index in range(len(self.matrices))]

    def host_array(self) -> NDArray[Any]:
        """Return a copy of host memory as an array of shape (batch, rows, columns)."""
        return np.stack([each.host_array() for each in self.matrices])

    def store(self, values: NDArray[Any]) -> None:
        """Write an array of shape (batch, rows, columns) to host memory."""
        for each, value in zip(self.matrices, values, strict=True):
            each.store(value)


@dataclass(frozen=True)
class PointerTable:
    """A table of addresses that the user keeps on the device. What they point at is the user's word."""

    name: str
    description: TensorDescription
    view: TensorView
    ld: int
    bytes: int

    batch_stride = packed_batch_stride = packed_ld = packed_bytes = 0
    form = _core.FORMS["addresses"]

    @property
    def parts(self) -> tuple[PointerTable, ...]:
        """The table itself."""
        return (self,)

    def addresses(self, base: int) -> None:
        """Return None: the operand is the table itself."""

    def packed(self) -> NDArray[Any]:
        """Raise: a table on the host is of no use to a kernel."""
        raise ArgumentTypeError(
            f"the table of addresses {self.name} must be on the GPU; pass a list of tensors instead"
        )

    def unpack(self, packed: NDArray[Any]) -> None:
        """Raise, as `packed` does."""
        self.packed()

    def host_array(self) -> NDArray[Any]:
        """Raise, as `packed` does."""
        return self.packed()

    def store(self, values: NDArray[Any]) -> None:
        """Raise, as `packed` does."""
        self.packed()


def pointer_operand(
    name: str,
    description: TensorDescription,
    tensors: Any,
    rows: int,
    columns: int,
    batch: int,
    *,
    bias: bool | None,
    reorder: Reordering = UNCHANGED,
) -> PointerArray | PointerTable:
    """Return operand `name` of ``Mode.Array``, checked.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Not one tensor for each problem, different leading dimensions or places, or tensors that do not fit.
    """
    if not isinstance(tensors, Sequence) or isinstance(tensors, str | bytes):
        apart = _taken_apart(name, description, tensors, rows, columns, batch, bias)
        if apart is None:
            if not reorder.takes_anything:
                raise ArgumentError(
                    f"operand {name} is {description.order}, and nobody can see whether what a table of addresses "
                    f"points at has its columns in the order of the kernel: apply reorder_column to all, and pass "
                    f"reordered=True"
                )
            return _table(name, description, tensors, rows, columns, batch, name == "C" and bool(bias))
        tensors = apart
    check_listed(name, tensors, batch)
    as_bias = name == "C" and (is_vector(description, tensors[0], rows, columns) if bias is None else bias)
    wrap_one = vector if as_bias else matrix
    matrices = tuple(
        reorder.operand(functools.partial(_one, wrap_one, f"{name}[{number}]", description, rows, columns), tensor)
        for number, tensor in enumerate(tensors)
    )
    check_alike(name, matrices)
    return PointerArray(name, description, matrices)


def _one(
    make: Callable[..., Matrix], name: str, description: TensorDescription, rows: int, columns: int, tensor: Any
) -> Matrix:
    """Return one of the matrices."""
    return make(name, description, tensor, rows, columns)


def _taken_apart(
    name: str, description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int, bias: bool | None
) -> list[Any] | None:
    """Return the matrices of a tensor that holds all of them one after the other; None where it is no such tensor."""
    view = wrap(name, tensor)
    if not hasattr(tensor, "__getitem__"):
        return None
    held = held_matrices(description, view, rows, columns, batch, takes_bias=name == "C" and bool(bias))
    if held == "whole":
        return [tensor]
    if held == "stacked":
        return [tensor[number] for number in range(batch)]
    if held == "flat":
        elements = rows * columns
        return [tensor[number * elements : (number + 1) * elements] for number in range(batch)]
    return None


def check_no_table(name: str, view: TensorView, rows: int, columns: int, batch: int) -> None:
    """Raise ArgumentTypeError for a table of addresses of matrices without elements, which have none."""
    if view.shape == (batch,) and view.dtype_name in ("int64", "uint64"):
        raise ArgumentTypeError(
            f"operand {name} is a table of addresses, of matrices of {rows} x {columns}, which have no elements: pass "
            f"a list of {batch} tensors of that shape"
        )


def held_matrices(
    description: TensorDescription, view: TensorView, rows: int, columns: int, batch: int, *, takes_bias: bool = False
) -> Literal["whole", "stacked", "flat"] | None:
    """Return how one tensor holds the matrices of all problems in ``Mode.Array``; None where it does not.

    It is the only matrix itself (``"whole"``), has them along its first dimension (``"stacked"``), or has all their
    elements one after the other (``"flat"``).
    """
    if view.shape is None or view.dtype_name != description.type.dtype_name:
        return None
    shape = tuple(view.shape)
    if shape == (rows, columns) and not takes_bias:  # one matrix, though batch may be one of its extents
        return "whole" if batch == 1 else None
    if len(shape) > 1 and shape[0] == batch:
        return "stacked"
    return "flat" if shape == (batch * rows * columns,) else None


def _table(
    name: str, description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int, bias: bool
) -> PointerTable:
    view = wrap(name, tensor)
    if view.dtype_name not in ("int64", "uint64") or view.shape is None or view.device is None:
        got = "an address" if view.shape is None else f"a {view.library} tensor of {view.dtype_name}, {view.shape}"
        is_bias = name == "C" and view.shape is not None and is_vector(description, tensor, rows, columns)
        if is_bias or (name in "ABC" and view.shape == (rows, columns)):
            got += f". For one {'bias' if is_bias else 'matrix'} of all problems pass [{name}] * {batch}"
        elif view.shape is not None and len(view.shape) == 3 and view.shape[1:] == (rows, columns):
            got += f". For {view.shape[0]} problems pass batch={view.shape[0]}"
        raise ArgumentTypeError(
            f"operand {name} in Mode.Array must be a list of {batch} tensors or addresses, one tensor that holds "
            f"{batch} matrices, or an int64 tensor of {batch} addresses on the GPU; got {got}"
        )
    if view.shape != (batch,):
        raise ArgumentError(f"the table of addresses {name} must have shape ({batch},), got {tuple(view.shape)}")
    packed = Matrix(name, description, view, rows, columns, 1).line
    if packed % description.alignment:
        raise AlignmentError(
            f"operand {name} is described with alignment {description.alignment}: its contiguous extent must be a "
            f"multiple of that, got {packed}"
        )
    return PointerTable(name, description, view, 0 if bias else packed, 8 * batch)


def address_table(
    name: str, description: TensorDescription, tensor: Any, batch: int, ld: int, one: tuple[int, ...] = ()
) -> PointerTable:
    """Return a table of the addresses of tensors that an epilogue has, which are packed; each is of the shape `one`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is no such table.
    """
    view = wrap(name, tensor)
    if view.dtype_name not in ("int64", "uint64") or view.shape is None or view.device is None:
        got = "an address" if view.shape is None else f"a {view.library} tensor of {view.dtype_name}, {view.shape}"
        if one and view.shape == one and not is_target(name):
            got += f". For one {name} of all problems pass [{name}] * {batch}"
        raise ArgumentTypeError(
            f"{name}, which the epilogue has beside C and D, must in Mode.Array be a list of {batch} tensors, one "
            f"tensor that holds {batch} of them along its first dimension, or an int64 tensor of {batch} addresses on "
            f"the GPU; got {got}"
        )
    if view.shape != (batch,):
        raise ArgumentError(f"the table of addresses {name} must have shape ({batch},), got {tuple(view.shape)}")
    if ld % description.alignment:
        raise AlignmentError(
            f"operand {name} is described with alignment {description.alignment}: its contiguous extent must be a "
            f"multiple of that, got {ld}"
        )
    return PointerTable(name, description, view, ld, 8 * batch)
