"""Why a vector is refused, in words: a bias, or a row, a column or results of tiles of an epilogue."""

from __future__ import annotations

import math

from pycutlass.operands.operand import Matrix
from pycutlass.remedies import MARKERS, EpilogueName, copied, empty, is_target, spread

__all__ = ["column", "otherwise", "vector"]


def column(operand: Matrix) -> str:
    """Return what is said of a column that is given as a row of as many elements."""
    name, of_function = operand.name, isinstance(operand.name, EpilogueName)
    for_rows = "annotate the parameter as a Column"
    if not of_function:
        for_rows = spread(name, operand.view.library, operand.rows, operand.columns, True)
    return (
        f"{'operand' if of_function else 'a bias'} {name}{'' if of_function else ' of RowMajor'} is a row of "
        f"{operand.line} elements that stands for all rows; got shape {_shape(operand)}, a column, which is as long. "
        f"Pass {name}.reshape(-1) if it is that row; for one element for each row, {for_rows}."
    )


def vector(operand: Matrix) -> str:
    """Return what is said of a tensor that is not the vector that it must be."""
    name = operand.name
    tiles = name.tiles if isinstance(name, EpilogueName) else 0
    or_many = f", or ({operand.batch}, {operand.line})" if operand.batch > 1 else ""
    must = f"be a contiguous vector of {operand.line} elements{or_many}"
    if operand.batch > 1 and is_target(name):  # each matrix has results of its own
        must = f"have shape ({operand.batch}, {operand.line}), contiguous"
    what = "operand" if isinstance(name, EpilogueName) else "a bias"
    if operand.rows == operand.columns == 1 and not tiles:
        count = f"have {operand.batch} elements, one for each matrix of the batch, or" if operand.batch > 1 else "be of"
        return f"{what} {name} must {count} one element; got shape {_shape(operand)}"
    direction, remedy = operand.bias_direction, _as_vector(operand)
    if tiles:
        direction = f"{operand.line // tiles} for each of the {tiles} tiles, those of the first tile first"
        remedy = _of_tiles(operand, tiles)
    remedy = remedy or _other_annotation(operand)
    got = f"got shape {_shape(operand)} with strides {_strides(operand)}"
    return f"{what} {name} must {must}, {direction}; {got}{f'. {remedy}.' if remedy else ''}"


def otherwise(operand: Matrix) -> str:
    """Return which annotation takes what is given for a parameter, for the end of a message; "" where none does."""
    remedy = _other_annotation(operand)
    return f". {remedy}" if remedy else ""


def _other_annotation(operand: Matrix) -> str:
    """Return which annotation takes a tensor that is given for a parameter of an epilogue function; "" for none.

    In the kernel the parameter would be something else, so that is for the author of the function to say.
    """
    name, batch = operand.name, (operand.batch,) if operand.batch > 1 else ()
    if not isinstance(name, EpilogueName) or name.written or name.form not in ("row", "column", "matrix"):
        return ""
    called, given = name.partition("[")[0], tuple(extent for extent in _shape(operand) if extent != 1)
    if operand.view.shape is None or 0 in given:
        return ""
    if not given:
        return f"For a single number write {called}: Scalar"
    rows, columns = operand.rows, operand.columns
    if name.halved and given[-1] == 2 * columns:
        return f"It is combined with what pairs returns, which has {columns} columns"
    found = {"row": (columns,), "column": (rows,), "matrix": (rows, columns)}
    for form, extents in found.items():
        if form != name.form and given in (extents, (*batch, *extents)):
            return f"For a tensor of that shape write {called}: {MARKERS[form]}"
    return f"For a tensor of that shape write {called}: {MARKERS['number']}" if given == batch else ""


def _as_vector(operand: Matrix) -> str:
    """Return what to do about a tensor that has the elements of a vector; "" for others."""
    name, library, shape = operand.name, operand.view.library, _shape(operand)
    many = (operand.batch, operand.line)
    if tuple(n for n in shape if n > 1) in ((operand.line,), many):
        code = "" if is_target(name) else copied(name, library, 1, True)
        return f"Pass {code}" if code else ""
    if operand.batch > 1 and shape == many[::-1]:
        if library == "spec":
            return f"Give a TensorSpec of shape {many}"
        if is_target(name):
            return f"Make {name} as {empty(name, library, many, None, True)} and read the result as {name}.T"
        return f"Pass {copied(f'{name}.T', library, 2, True) or 'a contiguous copy of the transposed matrix'}"
    if operand.batch > 1 and is_target(name):  # of which all matrices would write the same
        return ""
    # The pixels of a convolution, say.
    return f"Pass {name}.reshape(-1)" if math.prod(shape) == operand.line and _is_packed(operand) else ""


def _of_tiles(operand: Matrix, tiles: int) -> str:
    """Return what to pass for the results of tiles where a matrix of them was given; "" for other shapes.

    Kernels write those of a tile one behind the other, so that a matrix with a column for each tile has them in another
    order, though it has as many elements.
    """
    name, library, shape = operand.name, operand.view.library, _shape(operand)
    of_batch, inner = (operand.batch,) if operand.batch > 1 else (), (tiles, operand.line // tiles)
    given = tuple(n for n in shape if n > 1)
    if given not in ((*of_batch, *inner), (*of_batch, *inner[::-1])):
        return ""
    if library == "spec":
        return f"Give a TensorSpec of shape {(*of_batch, operand.line)}"
    if given == (*of_batch, *inner) and _is_packed(operand):
        flat, of_each = (f"{operand.batch}, -1", " of each matrix") if of_batch else ("-1", "")
        return f"Pass {name}.reshape({flat}): row i{of_each} of {name} is of tile i then"
    made = empty(name, library, (*of_batch, operand.line), None, True)
    split = ", ".join(map(str, (*of_batch, *inner)))
    as_given = "" if given == (*of_batch, *inner) else ".swapaxes(1, 2)" if of_batch else ".T"
    return f"Make {name} as {made} and read the result as {name}.reshape({split}){as_given}"


def _is_packed(operand: Matrix) -> bool:
    shape = _shape(operand)
    return _strides(operand) == tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _shape(operand: Matrix) -> tuple[int, ...]:
    return tuple(operand.view.shape or ())


def _strides(operand: Matrix) -> tuple[int, ...]:
    return tuple(operand.view.strides or ())
