"""Matrix operands: what the user gave, checked against what the operation was described with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pycutlass.calls import shown
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError
from pycutlass.integers import shape_of, whole
from pycutlass.library import TensorDescription
from pycutlass.remedies import alignment_of, laid_out, transposed
from pycutlass.tensor import TensorView, wrap

__all__ = [
    "LARGEST_EXTENT",
    "Matrix",
    "check_alignment",
    "check_bias",
    "check_count",
    "check_dtype",
    "check_extents",
    "empty_matrix",
    "is_vector",
    "matrix",
    "vector",
]

_LD_LIMIT = 2**31  # CUTLASS keeps leading dimensions of its 2.x layouts in 32 bits
LARGEST_EXTENT = 2**31 - 1  # and coordinates as well


@dataclass(frozen=True)
class Matrix:
    """A checked operand: one matrix, or a batch of them at a constant stride.

    Attributes
    ----------
    name : str
        A, B, C or D.
    description : TensorDescription
        Its element type, layout and alignment.
    view : TensorView
        The memory.
    rows, columns : int
        Extents of one matrix.
    ld : int
        Leading dimension in elements: the step between rows (RowMajor), columns (ColumnMajor) or groups of 32 columns
        or rows (interleaved). 0 for a vector, which stands for a matrix of equal lines.
    batch : int
        Number of matrices.
    batch_stride : int
        Step between them in elements; 0 where all are the same one.
    """

    name: str
    description: TensorDescription
    view: TensorView
    rows: int
    columns: int
    ld: int
    batch: int = 1
    batch_stride: int = 0

    @property
    def parts(self) -> tuple[Matrix, ...]:
        """What it is made of, with a tensor each."""
        return (self,)

    @property
    def line(self) -> int:
        """Elements that are adjacent: a row, a column or a group of interleaved ones."""
        order = self.description.order
        extent = self.columns if order.is_row_major else self.rows
        return extent * order.interleave

    @property
    def lines(self) -> int:
        """Lines in memory, a leading dimension apart; one for a vector."""
        if self.ld == 0:
            return 1
        order = self.description.order
        return (self.rows if order.is_row_major else self.columns) // order.interleave

    @property
    def matrices(self) -> int:
        """Matrices in memory, a batch stride apart."""
        return self.batch if self.batch_stride else 1

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        elements = (self.matrices - 1) * self.batch_stride + (self.lines - 1) * self.ld + self.line
        return elements * self.description.type.bits // 8

    @property
    def packed_ld(self) -> int:
        """Leading dimension of a contiguous copy."""
        return self.line if self.ld else 0

    @property
    def packed_batch_stride(self) -> int:
        """Batch stride of a contiguous copy."""
        return self.lines * self.line if self.batch_stride else 0

    @property
    def packed_bytes(self) -> int:
        """Bytes of a contiguous copy."""
        return self.matrices * self.lines * self.line * self.description.type.bits // 8

    def host_array(self) -> NDArray[Any]:
        """Return host memory as an array of shape (batch, rows, columns), without a copy; (rows, columns) alone."""
        return self._as_matrices(self._host_lines())

    def store(self, values: NDArray[Any]) -> None:
        """Write an array of the shape of `host_array` to host memory."""
        order = self.description.order
        values = values.reshape(self.matrices, self.rows, self.columns)
        lines: NDArray[Any] = values if order.is_row_major else values.transpose(0, 2, 1)
        if order.interleave > 1:
            lines = lines.reshape(self.matrices, self.lines, order.interleave, -1).transpose(0, 1, 3, 2)
        self._host_lines()[...] = lines.reshape(self.matrices, self.lines, self.line)

    def addresses(self, base: int) -> None:
        """Return None: the kernel gets the address itself, not a table of addresses."""

    def packed(self) -> NDArray[Any]:
        """Return host memory as contiguous bytes in the declared layout."""
        return np.ascontiguousarray(self._host_lines()[: self.matrices]).reshape(-1).view(np.uint8)

    def unpack(self, packed: NDArray[Any]) -> None:
        """Write contiguous bytes in the declared layout into host memory."""
        values = packed.view(self.description.type.dtype)
        self._host_lines()[...] = values.reshape(self.matrices, self.lines, self.line)

    def _host_lines(self) -> NDArray[Any]:
        """Host memory as an array of shape (matrices, lines, line)."""
        shape, strides = (self.matrices, self.lines, self.line), (self.batch_stride, self.ld, 1)
        return self.view.host_array(shape, strides, self.description.type.dtype)

    def _as_matrices(self, lines: NDArray[Any]) -> NDArray[Any]:
        order = self.description.order
        if order.interleave > 1:
            groups = lines.reshape(self.matrices, self.lines, self.line // order.interleave, order.interleave)
            lines = groups.transpose(0, 1, 3, 2).reshape(self.matrices, -1, self.line // order.interleave)
        values = lines if order.is_row_major else lines.transpose(0, 2, 1)
        if self.batch == 1:
            return np.asarray(values[0])
        return np.broadcast_to(values, (self.batch, *values.shape[1:])) if self.matrices == 1 else values


def matrix(name: str, description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int = 1) -> Matrix:
    """Return operand `name` of `rows` x `columns`, checked.

    A tensor of two dimensions must have these extents and strides of the declared layout; a leading dimension larger
    than the extent is honoured. In a batch it has three, (batch, rows, columns), with any step between the matrices,
    or two, which all the batch shares. A flat tensor must have exactly as many elements, packed in the declared
    layout. A raw pointer is packed.

    Raises
    ------
    ArgumentTypeError
        Another element type, or no tensor at all.
    ArgumentError
        Extents or strides that do not fit.
    AlignmentError
        Pointer, extent or leading dimension less aligned than described.
    """
    view = wrap(name, tensor)
    check_dtype(name, description, view)
    order = description.order
    line = (columns if order.is_row_major else rows) * order.interleave
    packed = Matrix(name, description, view, rows, columns, line, batch, rows * columns if batch > 1 else 0)
    _check_interleave(packed)
    if view.shape is None or view.strides is None:
        result = packed
    elif len(view.shape) == 1:
        result = _flat(packed)
    else:
        result = _strided(packed)
    if result.ld >= _LD_LIMIT:
        raise ArgumentError(
            f"the leading dimension of operand {name} is {result.ld:,}; CUTLASS takes less than {_LD_LIMIT:,}"
        )
    check_alignment(result)
    return result


def empty_matrix(
    name: str, description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int = 1
) -> Matrix:
    """Return an operand without elements: neither its address nor its strides mean anything.

    Raises
    ------
    ArgumentTypeError
        Another element type, or no tensor at all.
    ArgumentError
        Other extents. A C may also be a bias.
    """
    view = wrap(name, tensor)
    check_dtype(name, description, view)
    packed = Matrix(name, description, view, rows, columns, 0)
    shape = view.shape
    if shape is not None and name[0] not in "Cs":
        known = {(rows, columns), (0,), (1, rows, columns), (batch, rows, columns)}
        if tuple(shape) not in known and not (
            len(shape) > 2 and shape[-1] == columns and math.prod(shape[:-1]) == rows
        ):
            wanted = (rows, columns) if batch == 1 else (batch, rows, columns)
            raise ArgumentError(
                f"operand {name} must have shape {wanted}, and so no elements, for this problem size; got shape "
                f"{tuple(shape)}"
            )
    return Matrix(name, description, view, rows, columns, packed.line)


def vector(name: str, description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int = 1) -> Matrix:
    """Return a bias: a vector along the contiguous direction of the layout, which stands for equal lines of a matrix.

    It has `columns` elements for RowMajor, `rows` for ColumnMajor; in a batch also (batch, elements).

    Raises
    ------
    ArgumentTypeError, ArgumentError, AlignmentError
        As for `matrix`.
    """
    view = wrap(name, tensor)
    check_dtype(name, description, view)
    result = Matrix(name, description, view, rows, columns, 0, batch, 0)
    if view.shape is not None and view.strides is not None:
        result = _bias(result, view.shape, view.strides)
        _check_batch_stride(result, result.ld, result.batch_stride)
    check_alignment(result)
    return result


def is_vector(description: TensorDescription, tensor: Any, rows: int, columns: int, batch: int = 1) -> bool:
    """Return whether `tensor` has the elements of a bias and not those of a whole matrix.

    Raises
    ------
    ArgumentError
        It may be either: one matrix that a batch shares has the shape of biases where the batch is as large as it.
    """
    shape = shape_of(tensor)
    if shape is None:
        return False
    line = columns if description.is_row_major else rows
    elements = math.prod(shape)
    if batch > 1 and len(shape) == 2:
        as_matrix, as_biases = tuple(shape) == (rows, columns), tuple(shape) == (batch, line)
        if as_matrix and as_biases:
            raise ArgumentError(
                f"operand C of shape {tuple(shape)} may be one matrix that all {batch} problems share, or a bias for "
                f"each of them: say bias=False or bias=True"
            )
        if as_matrix or as_biases:
            return as_biases
    if elements == rows * columns * batch or (elements == rows * columns and len(shape) == 2):
        return False
    return elements in (line, line * batch)


def check_bias(bias: Any) -> bool | None:
    """Return what arguments were given as `bias`, whether C is one; raise ArgumentTypeError for the bias itself."""
    if bias is not None and not isinstance(bias, bool | np.bool_):
        raise ArgumentTypeError(
            f"bias says whether C is a bias: it is True, False or None (each tensor tells), got {type(bias).__name__}. "
            f"Pass the bias itself as C."
        )
    return None if bias is None else bool(bias)


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return `value`, the number of something, as an integer of at least `least`.

    Raises
    ------
    ArgumentError
        It is out of range.
    ArgumentTypeError
        Anything but an integer.
    """
    count = whole(value)
    if count is None:
        raise ArgumentTypeError(f"{name} must be an integer, got {shown(value)}")
    if not least <= count <= LARGEST_EXTENT:
        raise ArgumentError(f"{name} must be from {least} to {LARGEST_EXTENT:,}, got {count:,}")
    return count


def check_extents(name: str, size: Sequence[int], tile: Sequence[int]) -> None:
    """Raise ArgumentError where M, N or K, rounded up to whole tiles, leave the 32 bits that kernels count in."""
    for letter, extent, step in zip("MNK", size, (max(tile[:2]), max(tile[:2]), tile[2]), strict=True):
        most = LARGEST_EXTENT + 1 - step
        if extent > most:
            raise ArgumentError(
                f"{name} has {letter}={extent:,}: rounded up to tiles of {step} it leaves the 32 bits that kernels "
                f"count in; use at most {most:,}"
            )


def check_dtype(name: str, description: TensorDescription, view: TensorView) -> None:
    """Raise ArgumentTypeError where a tensor has another element type than described."""
    wanted = description.type.dtype_name
    if view.dtype_name is None or view.dtype_name == wanted:
        return
    raise ArgumentTypeError(
        f"operand {name} must be {wanted}, as the operation describes it ({description.type}); got a {view.library} "
        f"tensor of {view.dtype_name}. Convert the tensor, or describe {name} with its type."
    )


def check_alignment(operand: Matrix) -> None:
    """Raise AlignmentError where an operand is less aligned than described."""
    name, alignment, view = operand.name, operand.description.alignment, operand.view
    fits = alignment_of(operand.description.type.bits, view.pointer, operand.line, operand.ld, operand.batch_stride)
    line_name = "number of columns" if operand.description.is_row_major else "number of rows"
    copied = "a new array for D" if name.startswith("D") else f"a copy of {name}"
    packed = f"Pass {copied} that is packed"
    for what, value, remedy in (
        (line_name, operand.line, "Pad the tensor"),
        # The extent is aligned, so packed memory is too.
        ("leading dimension", operand.ld, packed),
        ("batch stride", operand.batch_stride, packed),
    ):
        if value % alignment:
            raise AlignmentError(
                f"operand {name} is described with alignment {alignment}: its {what} must be a multiple of that, got "
                f"{value}. {remedy}, or describe {name} with alignment {max(fits, 1)}."
            )
    if view.pointer % operand.description.alignment_bytes:
        smaller = f"describe {name} with alignment {fits}, or " if fits else ""
        raise AlignmentError(
            f"operand {name} is described with alignment {alignment}, so its address must be a multiple of "
            f"{operand.description.alignment_bytes} bytes; got {view.pointer:#x}. To mend it, {smaller}pass {copied}, "
            f"which begins at an aligned address."
        )


def _check_interleave(operand: Matrix) -> None:
    order = operand.description.order
    across = operand.rows if order.is_row_major else operand.columns
    if across % order.interleave:
        raise ArgumentError(
            f"operand {operand.name} is {order.name}: its number of {'rows' if order.is_row_major else 'columns'} must "
            f"be a multiple of {order.interleave}, got {across}"
        )


def _flat(packed: Matrix) -> Matrix:
    view, name = packed.view, packed.name
    assert view.shape is not None and view.strides is not None
    elements, one = packed.batch * packed.rows * packed.columns, packed.rows * packed.columns
    if view.strides[0] != 1 and view.shape[0] != 1:
        raise ArgumentError(f"a flat operand {name} must be contiguous, got a step of {view.strides[0]} elements")
    if view.shape[0] != elements:
        if view.shape[0] == one and name != "D":
            return replace(packed, batch_stride=0)
        times = f"{packed.batch} x " if packed.batch > 1 else ""
        or_bias = (
            f", or as a bias {packed.line}" if name[0] in "Cs" and packed.description.order.interleave == 1 else ""
        )
        raise ArgumentError(
            f"a flat operand {name} must have exactly {times}{packed.rows} x {packed.columns} = {elements} elements, "
            f"packed in the declared layout{or_bias}; got {view.shape[0]}"
        )
    return packed


def _strided(packed: Matrix) -> Matrix:
    view, name = packed.view, packed.name
    assert view.shape is not None and view.strides is not None
    if packed.description.order.interleave > 1:
        raise ArgumentError(
            f"operand {name} is {packed.description.order.name}, which no tensor of {len(view.shape)} dimensions is: "
            f"pass it flat, packed in that layout"
        )
    shape, strides = view.shape, view.strides
    batch_stride = 0
    if len(shape) == 3 and packed.batch > 1:
        if shape[0] != packed.batch:
            _wrong_shape(packed)
        batch_stride, shape, strides = strides[0], shape[1:], strides[1:]
    if len(shape) > 2 and all(extent == 1 for extent in shape[:-2]):
        shape, strides = shape[-2:], strides[-2:]
    if len(shape) > 2 and name[0] != "B" and shape[-1] == packed.columns and math.prod(shape[:-1]) == packed.rows:
        shape, strides = (packed.rows, packed.columns), (_row_step(packed), strides[-1])
    if shape != (packed.rows, packed.columns):
        _wrong_shape(packed)
    ld = _leading_dimension(packed, strides)
    _check_batch_stride(packed, ld, batch_stride)
    if (ld, batch_stride) == (packed.ld, packed.batch_stride):
        return packed
    return replace(packed, ld=ld, batch_stride=batch_stride)


def _wrong_shape(packed: Matrix) -> NoReturn:
    shape = (packed.rows, packed.columns) if packed.batch == 1 else (packed.batch, packed.rows, packed.columns)
    elements = packed.batch * packed.rows * packed.columns
    view, row_major = packed.view, packed.description.is_row_major
    assert view.shape is not None and view.strides is not None
    remark = ""
    if packed.name in ("A", "B", "C", "D") and len(view.shape) == 3 and view.shape[1:] == shape:
        remark = f". For a batch of such matrices, pass gemm_mode=cutlass.gemm.Mode.Batched, batch={view.shape[0]}"
    if len(view.shape) == 2 and view.shape[::-1] == shape:
        remedy = transposed(packed.name, view.library, view.shape, view.strides, view.dtype_name, row_major)
        remark = f": the transposed matrix. To multiply by that, {remedy}"
    raise ArgumentError(
        f"operand {packed.name} must have shape {shape}, or be flat with {elements} elements, for this problem size; "
        f"got shape {tuple(view.shape)}{remark}"
    )


def _row_step(packed: Matrix) -> int:
    """Return how many elements rows are apart in a tensor of more than two dimensions; all but the last are rows."""
    shape, strides = packed.view.shape, packed.view.strides
    assert shape is not None and strides is not None
    kept = [(extent, step) for extent, step in zip(shape[:-1], strides[:-1], strict=True) if extent != 1]
    for (_, outer), (extent, inner) in itertools.pairwise(kept):
        if outer != extent * inner:
            raise ArgumentError(
                f"operand {packed.name} of shape {tuple(shape)} stands for a matrix of {packed.rows} rows, which must "
                f"be a constant step apart; it has strides {tuple(strides)}. Take it as a batch (Mode.Batched)."
            )
    return kept[-1][1] if kept else strides[-2]


def _leading_dimension(packed: Matrix, strides: tuple[int, ...]) -> int:
    name, row_major = packed.name, packed.description.is_row_major
    adjacent, ld = (strides[1], strides[0]) if row_major else (strides[0], strides[1])
    if adjacent != 1 and packed.line != 1:
        other = "ColumnMajor" if row_major else "RowMajor"
        remedy = laid_out(name, packed.view.library, packed.view.shape or (), packed.view.dtype_name, row_major)
        raise ArgumentError(
            f"operand {name} is described as {packed.description.order.name}, which needs a step of 1 along "
            f"{'columns' if row_major else 'rows'}; the tensor of shape {packed.view.shape} has strides "
            f"{packed.view.strides}. To mend it, {remedy}, or describe {name} as {other}."
        )
    if packed.lines == 1:
        return packed.line  # one line: its step means nothing, and libraries put anything there
    if ld < 0:
        raise ArgumentError(
            f"the leading dimension of operand {name} is {ld}, and it must not be negative: the tensor is reversed "
            f"(strides {packed.view.strides}). Pass a copy."
        )
    if ld < packed.line:
        raise ArgumentError(
            f"the leading dimension of operand {name} is {ld}, less than its {packed.line} contiguous elements: the "
            f"tensor overlaps itself (strides {packed.view.strides}). Pass a copy."
        )
    return ld


def _check_batch_stride(packed: Matrix, ld: int, batch_stride: int) -> None:
    if batch_stride < 0:
        raise ArgumentError(
            f"the batch stride of operand {packed.name} is {batch_stride}; it must not be negative: pass a copy"
        )
    if packed.name != "D" or packed.batch == 1:
        return
    span = (packed.lines - 1) * ld + packed.line
    if batch_stride < span and _meet(packed, ld, batch_stride):
        raise ArgumentError(
            f"the matrices of operand D overlap each other: they are {batch_stride} elements apart and {span} long. "
            f"Pass a D of its own memory for each."
        )


def _meet(packed: Matrix, ld: int, batch_stride: int) -> bool:
    """Return whether two matrices of a batch share an element.

    A matrix that is `apart` elements behind another has a line `apart % ld` behind one line of that, and `ld` less
    before the next, as far as there are such lines.
    """
    apart = np.arange(1, packed.batch, dtype=np.int64) * batch_stride
    lines, behind = np.divmod(apart, ld)
    meets = (lines < packed.lines) & (behind < packed.line)
    return bool((meets | ((lines + 1 < packed.lines) & (ld - behind < packed.line))).any())


def _bias(bias: Matrix, shape: tuple[int, ...], strides: tuple[int, ...]) -> Matrix:
    # Of ColumnMajor it could be (1, M), which is a batch of one vector as well.
    if bias.description.is_row_major and bias.rows == bias.columns != 1 and shape[-2:] == (bias.line, 1):
        raise ArgumentError(
            f"a bias {bias.name} of RowMajor is a row of {bias.line} elements that stands for all rows; got shape "
            f"{tuple(shape)}, a column, which is as long. Pass {bias.name}.reshape(-1) if it is that row."
        )
    # Singleton dimensions say nothing: (N,), (1, N) and (batch, 1, N) are taken alike.
    kept = [(extent, step) for extent, step in zip(shape, strides, strict=True) if extent != 1]
    one, many = (bias.line, 1), (bias.batch * bias.line, 1)
    if kept == [one] or (not kept and bias.line == 1):
        return bias
    if bias.batch > 1:
        if kept == [many]:
            return replace(bias, batch_stride=bias.line)
        vectors = kept if bias.line > 1 else [*kept, one]
        if len(vectors) == 2 and vectors[0][0] == bias.batch and vectors[1] == one:
            return replace(bias, batch_stride=vectors[0][1])
    or_many = f", or ({bias.batch}, {bias.line})" if bias.batch > 1 else ""
    raise ArgumentError(
        f"a bias {bias.name} must be a contiguous vector of {bias.line} elements{or_many}; got shape {tuple(shape)} "
        f"with strides {tuple(strides)}"
    )
