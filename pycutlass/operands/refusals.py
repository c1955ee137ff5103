"""Why an operand is refused, in words: `_core.OperandRule` decides, and names the rule that is broken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pycutlass import _core
from pycutlass.calls import counted
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.library import TensorDescription
from pycutlass.operands.checks import check_dtype
from pycutlass.operands.operand import Matrix
from pycutlass.operands.vector_refusals import column, otherwise, vector
from pycutlass.remedies import (
    alignment_of,
    copied,
    empty,
    interleaved,
    is_target,
    laid_out,
    may_be_bias,
    spread,
    transposed,
)
from pycutlass.tensor import NoViewError, TensorView, look_at

__all__ = ["SENTENCES", "MisalignedError", "OtherLayoutError", "check_element", "refusal", "rule_of", "viewed"]


class MisalignedError(AlignmentError):
    """An operand is less aligned than described; whoever knows the operation says how to describe it instead.

    Parameters
    ----------
    rule : str
        What is wrong.
    padded : str
        What to do about the tensor.
    name : str
        The operand.
    fits : int
        The alignment that its memory has, in elements; 0 for none.
    extent : int or None
        The extent that is no multiple of the alignment, which other operands may share.
    """

    def __init__(self, rule: str, padded: str, name: str, fits: int, extent: int | None = None) -> None:
        self.rule, self.padded, self.name, self.fits, self.extent = rule, padded, name, fits, extent
        super().__init__(self.text())

    def text(self, narrower: str = "") -> str:
        """Return the message, with the description that would do."""
        return f"{self.rule}. {self.padded}{f', or {narrower}' if narrower else ''}."


class OtherLayoutError(ArgumentError):
    """An operand has the other layout; whoever knows the operation says whether it can be described with it.

    Parameters
    ----------
    name : str
        The operand.
    layout : type
        The layout that it has.
    alone : str
        The message where no such operation exists.
    described : str
        The message where one does, with `OFFER` in the place of the description.
    """

    OFFER = "<description>"

    def __init__(self, name: str, layout: Any, alone: str, described: str) -> None:
        self.name, self.layout, self.alone, self.described = name, layout, alone, described
        super().__init__(alone)

    def text(self, described: str, apart: bool) -> str:
        """Return the message that offers operand `described`, of which D is `apart`, with the other layout."""
        follows = ", which D follows," if is_target(self.name) and described == "C" and not apart else ""
        return self.described.replace(self.OFFER, f"describe {described}{follows} as {self.layout.__name__}")


def rule_of(description: TensorDescription) -> _core.OperandRule:
    """Return what decides whether a tensor fits a description."""
    order = description.order
    return _core.OperandRule(
        order.is_row_major, description.type.bits, description.alignment, interleave=order.interleave
    )


def refusal(operand: Matrix, broken: str) -> PyCutlassError:
    """Return the exception for an operand that breaks a rule, with the leading dimension and batch stride it has."""
    sentence = SENTENCES.get(broken)
    if sentence is None:
        return PyCutlassError(
            f"operand {operand.name} breaks a rule that has no sentence, {broken!r} (shape {operand.view.shape}, "
            f"strides {operand.view.strides}): this is a bug of pycutlass, please report it"
        )
    error = sentence(operand)
    return ArgumentError(error) if isinstance(error, str) else error


#: Rules of extents, which a copy of the same extents breaks again, and those of them that a D made anew keeps.
_OF_EXTENTS = ("shape", "flat elements", "dimensions", "interleave", "column", "vector", "line alignment")
_OF_SHAPE = _OF_EXTENTS[:3]


def check_element(operand: Matrix, broken: str) -> None:
    """Raise where the tensor has another element type than described, with what else is wrong with it."""
    name, view, wanted = operand.name, operand.view, operand.description.type
    if view.dtype_name is None or (view.dtype_name == wanted.dtype_name and wanted.bits >= 8):
        return
    shape, row_major = _shape(operand), operand.description.is_row_major
    made = empty(name, view.library, _extents(operand) if broken in _OF_SHAPE else shape, wanted.dtype_name, row_major)
    copy = None
    if broken not in ("", *_OF_EXTENTS) or 0 in _strides(operand):  # else a cast keeps a layout that is right
        copy = copied(name, view.library, len(shape), _has_rows(operand), wanted.dtype_name) or None
    remains = broken in _OF_EXTENTS and not (is_target(name) and broken in _OF_SHAPE)
    besides = str(refusal(operand, broken)) if remains else ""
    check_dtype(name, operand.description, view, made, copy, besides)


def viewed(name: str, description: TensorDescription, tensor: Any, shape: tuple[int, ...]) -> TensorView:
    """Return the view of an operand of `shape`, or say what to pass in its place."""
    try:
        return look_at(name, tensor)
    except NoViewError as error:
        shape = shape if description.order.interleave == 1 else (math.prod(shape),)
        rows = description.is_row_major if description.order.rank == 2 else None
        raise ArgumentTypeError(error.text(shape, description.type.dtype_name, rows)) from None


def _extents(operand: Matrix) -> tuple[int, ...]:
    """Return the shape that an operand must have: flat for interleaved layouts, three extents in a batch."""
    batch, matrix = operand.batch, (operand.rows, operand.columns)
    if operand.description.order.interleave > 1:
        return (batch * math.prod(matrix),)
    return matrix if batch == 1 else (batch, *matrix)


def _interleave(operand: Matrix) -> str:
    order = operand.description.order
    across = operand.rows if order.is_row_major else operand.columns
    return (
        f"operand {operand.name} is {order.name}: its number of {'rows' if order.is_row_major else 'columns'} must "
        f"be a multiple of {order.interleave}, got {across}"
    )


def _flat_step(operand: Matrix) -> str:
    return f"a flat operand {operand.name} must be contiguous, got a step of {_strides(operand)[0]} elements"


def _flat_elements(operand: Matrix) -> str:
    name, given = operand.name, _shape(operand)[0]
    elements = operand.batch * operand.rows * operand.columns
    times = f"{operand.batch} x " if operand.batch > 1 else ""
    is_bias = _is_bias(operand, given)
    takes_bias = may_be_bias(name) and operand.description.order.interleave == 1 and not is_bias
    or_bias = f", or {operand.line} elements as a bias, {operand.bias_direction}" if takes_bias else ""
    return (
        f"a flat operand {name} must have exactly {times}{operand.rows} x {operand.columns} = {elements} elements, "
        f"packed in the declared layout{or_bias}; got {given}{_NO_BIAS if is_bias else _across(operand, given)}"
        f"{otherwise(operand)}"
    )


_NO_BIAS = ", the elements of a bias, and bias=False was given: leave bias out, or pass a whole matrix"


def _across(operand: Matrix, elements: int) -> str:
    """Return what to do about as many elements as a bias along the other dimension would have; "" for other numbers."""
    row_major = operand.description.is_row_major
    across = operand.rows if row_major else operand.columns
    if not may_be_bias(operand.name) or operand.description.order.interleave > 1 or elements != across:
        return ""
    whole = spread(operand.name, operand.view.library, operand.rows, operand.columns, row_major)
    axis, layout = ("row", "RowMajor") if row_major else ("column", "ColumnMajor")
    return f", one for each {axis}, which no bias of {layout} is: {whole}"


def _is_bias(operand: Matrix, elements: int) -> bool:
    """Return whether an operand with so many elements was not taken as a bias because bias=False was given."""
    return may_be_bias(operand.name) and elements in (operand.line, operand.batch * operand.line)


def _dimensions(operand: Matrix) -> str:
    name, order, shape = operand.name, operand.description.order, _shape(operand)
    lines, extents = "rows" if order.is_row_major else "columns", (operand.rows, operand.columns)
    remedy = interleaved(name, operand.view.library, shape, extents, operand.batch, order.is_row_major)
    return (
        f"operand {name} is {order.name}, where {order.interleave} {lines} are stored together; a tensor of "
        f"{len(shape)} dimensions cannot be that: {remedy}"
    )


def _wrong_shape(operand: Matrix) -> str | PyCutlassError:
    wanted, name, view, shape = _extents(operand), operand.name, operand.view, _shape(operand)
    elements, matrix = math.prod(wanted), (operand.rows, operand.columns)
    rule = f"operand {name} must have shape {wanted}, or be flat with {elements} elements, for this problem size; "
    rule += f"got shape {shape}"
    if _is_bias(operand, math.prod(shape)):
        return rule + _NO_BIAS
    if name in ("A", "B", "C", "D") and len(shape) == 3 and shape[1:] == wanted:
        return f"{rule}. For a batch of such matrices, pass gemm_mode=cutlass.gemm.Mode.Batched, batch={shape[0]}"
    if len(shape) > 1 and shape[-2:] == matrix[::-1] and shape[:-2] in ((), wanted[:-2]) and not _is_shared(operand):
        given = name, view.library, shape, _strides(operand), operand.description.is_row_major
        alone, described = (
            f"{rule}: the transposed {'matrix' if len(shape) == 2 else 'matrices'}. {transposed(*given, offer)}"
            for offer in ("", OtherLayoutError.OFFER)
        )
        return alone if alone == described else _other(operand, alone, described)
    if _is_shared(operand):
        return f"{rule}. To fix it, {laid_out(name, view.library, wanted, operand.description.is_row_major)}"
    if len(shape) == 3 and shape[1:] == matrix and len(wanted) == 3:
        return f"{rule}. For {shape[0]} problems pass batch={shape[0]}"
    across = _across(operand, math.prod(shape)) if sum(extent != 1 for extent in shape) == 1 else ""
    return rule + (across or otherwise(operand))


def _is_shared(operand: Matrix) -> bool:
    """Return whether a result of one matrix is given where each problem of a batch needs its own."""
    return is_target(operand.name) and operand.batch > 1 and len(_shape(operand)) == 2


def _rows_apart(operand: Matrix) -> str:
    name, matrix = operand.name, (operand.rows, operand.columns)
    remedy = laid_out(name, operand.view.library, matrix, operand.description.is_row_major)
    if operand.view.library != "spec" and not is_target(name):
        remedy = f"pass {name}.reshape({operand.rows}, {operand.columns}), which copies it"
        if name == "A" and len(_shape(operand)) == 3:
            batch, rows, _ = _shape(operand)
            remedy += (
                f", or multiply a batch, which does not: M={rows}, gemm_mode=cutlass.gemm.Mode.Batched, "
                f"batch={batch}, and D of three dimensions as well"
            )
    return (
        f"operand {operand.name} of shape {_shape(operand)} stands for a matrix of {operand.rows} rows, which must "
        f"be a constant step apart; it has strides {_strides(operand)}. {remedy[0].upper()}{remedy[1:]}."
    )


def _other(operand: Matrix, alone: str, described: str) -> OtherLayoutError:
    """Return the exception for an operand of the other layout."""
    layout = _core.ColumnMajor if operand.description.is_row_major else _core.RowMajor
    return OtherLayoutError(operand.name, layout, alone, described)


def _not_adjacent(operand: Matrix, or_described: str = "") -> str:
    view, row_major = operand.view, operand.description.is_row_major
    remedy = laid_out(operand.name, view.library, view.shape or (), row_major)
    return (
        f"operand {operand.name} is described as {operand.description.order.name}, which needs a step of 1 along "
        f"{'columns' if row_major else 'rows'}; the tensor of shape {view.shape} has strides "
        f"{view.strides}. To fix it, {remedy}{or_described}."
    )


def _other_layout(operand: Matrix) -> PyCutlassError:
    return _other(operand, _not_adjacent(operand), _not_adjacent(operand, f", or {OtherLayoutError.OFFER}"))


def _anew(operand: Matrix) -> str:
    """Return what to do about memory that cannot be used: nobody would read a copy of what is written."""
    remedy = laid_out(operand.name, operand.view.library, _shape(operand), _has_rows(operand))
    return remedy[0].upper() + remedy[1:]


def _has_rows(operand: Matrix) -> bool:
    """Return whether the last dimension of a tensor is to be adjacent, as that of biases is, whatever the layout."""
    shape, matrix = _shape(operand), (operand.rows, operand.columns)
    return operand.description.is_row_major or (operand.batch, operand.line) == shape != matrix


def _reversed(operand: Matrix) -> str:
    return (
        f"the leading dimension of operand {operand.name} is {operand.ld}, and it must not be negative: the tensor is "
        f"reversed (strides {operand.view.strides}). {_anew(operand)}."
    )


def _self_overlap(operand: Matrix) -> str:
    return (
        f"the leading dimension of operand {operand.name} is {operand.ld}, less than its {operand.line} contiguous "
        f"elements: the tensor overlaps itself (strides {operand.view.strides}). {_anew(operand)}."
    )


def _large_ld(operand: Matrix) -> str:
    return f"the leading dimension of operand {operand.name} is {operand.ld:,}; CUTLASS takes less than {2**31:,}"


def _batch_reversed(operand: Matrix) -> str:
    return (
        f"the batch stride of operand {operand.name} is {operand.batch_stride}; it must not be negative. "
        f"{_anew(operand)}."
    )


def _batch_overlap(operand: Matrix) -> str:
    extent = (operand.lines - 1) * operand.ld + operand.line
    remedy = f"Pass a {operand.name} of its own memory for each"
    if is_target(operand.name):
        row_major, shape = operand.description.is_row_major, _extents(operand)
        if operand.ld == 0:  # a vector of each matrix
            row_major, shape = True, (operand.batch, operand.line)
        remedy = laid_out(operand.name, operand.view.library, shape, row_major)
    return (
        f"the matrices of operand {operand.name} overlap each other: they are {operand.batch_stride} elements apart "
        f"and {extent} long. {remedy[0].upper()}{remedy[1:]}."
    )


def _line_alignment(operand: Matrix) -> MisalignedError:
    line = "column" if operand.description.is_row_major else "row"
    more = counted(-operand.line % operand.description.alignment, line)
    padded = f"Pad the tensor with {more}{'' if is_target(operand.name) else ' of zeros'}"
    return _misaligned(operand, f"number of {line}s", operand.line, padded, operand.line)


def _ld_alignment(operand: Matrix) -> MisalignedError:
    return _misaligned(operand, "leading dimension", operand.ld, _packed(operand))


def _batch_alignment(operand: Matrix) -> MisalignedError:
    return _misaligned(operand, "batch stride", operand.batch_stride, _packed(operand))


def _misaligned(operand: Matrix, what: str, value: int, remedy: str, extent: int | None = None) -> MisalignedError:
    rule = (
        f"operand {operand.name} is described with alignment {operand.description.alignment}: its {what} must be a "
        f"multiple of that, got {value}"
    )
    return MisalignedError(rule, remedy, operand.name, _alignment(operand), extent)


def _address_alignment(operand: Matrix) -> MisalignedError:
    rule = (
        f"operand {operand.name} is described with alignment {operand.description.alignment}, so its address must be a "
        f"multiple of {operand.description.alignment_bytes} bytes; got {operand.view.pointer:#x}"
    )
    return MisalignedError(rule, _packed(operand), operand.name, _alignment(operand))


def _alignment(operand: Matrix) -> int:
    """Return the alignment that an operand has."""
    bits = operand.description.type.bits
    return alignment_of(bits, operand.view.pointer, operand.line, operand.ld, operand.batch_stride)


def _packed(operand: Matrix) -> str:
    """Return what to do about a tensor with gaps, or one that begins anywhere: the layout is right, and stays."""
    name, library, shape = operand.name, operand.view.library, _shape(operand)
    if operand.description.order.rank == 2:
        if is_target(name):
            return _anew(operand)
        code = copied(name, library, len(shape), _has_rows(operand), anew=True)
    elif library == "torch":
        code = f"torch.empty_like({name})" if is_target(name) else f"{name}.clone()"
    else:
        module = {"numpy": "np", "cupy": "cupy"}.get(library)
        code = f"{module}.empty_like({name})" if is_target(name) else f'{name}.copy(order="K")'
        code = code if module else ""
    if is_target(name):
        return f"Make {name} as {code} and read the result from there" if code else f"Pass a new {name} that is packed"
    return f"Pass {code}" if code else f"Pass a packed copy of {name}"


def _shape(operand: Matrix) -> tuple[int, ...]:
    return tuple(operand.view.shape or ())


def _strides(operand: Matrix) -> tuple[int, ...]:
    return tuple(operand.view.strides or ())


#: A sentence for each rule, by the name that `_core.OperandRule` has for it.
SENTENCES: dict[str, Callable[[Matrix], str | PyCutlassError]] = {
    "interleave": _interleave,
    "flat step": _flat_step,
    "flat elements": _flat_elements,
    "dimensions": _dimensions,
    "shape": _wrong_shape,
    "rows apart": _rows_apart,
    "adjacent": _not_adjacent,
    "other layout": _other_layout,
    "reversed": _reversed,
    "self overlap": _self_overlap,
    "ld limit": _large_ld,
    "batch reversed": _batch_reversed,
    "batch overlap": _batch_overlap,
    "column": column,
    "vector": vector,
    "line alignment": _line_alignment,
    "ld alignment": _ld_alignment,
    "batch alignment": _batch_alignment,
    "address alignment": _address_alignment,
}
