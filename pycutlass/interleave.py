"""Matrices of int8 in interleaved layouts: 32 columns (or rows) stored together, as the interleaved kernels read them.

The functions take and return arrays of numpy, cupy or torch, on the host or on a GPU, and always copy.

What has been reordered is known by its memory: that of an array which `reorder_column` returned, its views and what
shares it in another library, as long as nothing else has been written there. Columns change places within blocks of 32
columns by 32 rows, so what consists of whole blocks of a reordered matrix is one itself, and what cuts through a block
is none. A copy has no mark. It is told from a plain matrix by its contents, of which digests are kept, and refused
unless the caller says what it is: one matrix may be another with its columns exchanged, as matrices with a single 1
are, so equal contents prove nothing. A digest needs the contents on the host, so whoever asks for it waits for the GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int, shape_of

__all__ = [
    "deinterleave_columns",
    "interleave_columns",
    "interleave_rows",
    "is_reordered",
    "permute_columns",
    "reorder_column",
]

_GROUP = 32
_BLOCK = _GROUP * _GROUP
#: Digests of blocks that are kept, 256 MiB of int8 (and some 40 MiB of memory); the oldest go first, and copies of what
#: had them are taken as plain, which the log says.
_KEPT = 1 << 18

_Blocks = tuple[bytes, ...]


class _Mark(NamedTuple):
    """What `reorder_column` has returned: who owns the memory, how much there is, and what was in its blocks.

    `fixed` are the digests of blocks that are the same in both orders, such as one of zeros: they tell nothing.
    """

    owner: weakref.ref[Any]
    size: int
    blocks: _Blocks
    fixed: frozenset[bytes]


# Of the process, as arrays go from any thread to any arguments. Dicts, which keep their order.
_digests: dict[bytes, None] = {}
_marks: dict[tuple[str, int], _Mark] = {}
_lock = threading.Lock()


@public
def interleave_columns(matrix: Any) -> Any:
    """Return a matrix of (rows, columns) packed as ``cutlass.ColumnMajorInterleaved32``, flat.

    Parameters
    ----------
    matrix : array of shape (rows, columns)
        Columns must be a multiple of 32.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No such matrix, or no array.
    """
    rows, columns = _extents("interleave_columns", matrix)
    _check_groups("interleave_columns", "columns", columns)
    return _flat(matrix.reshape(rows, columns // _GROUP, _GROUP).swapaxes(0, 1))


@public
def deinterleave_columns(packed: Any, rows: int, columns: int) -> Any:
    """Return what `interleave_columns` packed, as a matrix of (rows, columns).

    Parameters
    ----------
    packed : array
        Of rows * columns elements.
    rows, columns : int
        Extents of the matrix; columns must be a multiple of 32.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Extents that do not fit the elements or the layout, or no array.
    """
    shape = _shape("deinterleave_columns", "packed", packed)
    rows, columns = _extent("rows", rows), _extent("columns", columns)
    _check_groups("deinterleave_columns", "columns", columns)
    if math.prod(shape) != rows * columns:
        raise ArgumentError(
            f"deinterleave_columns makes a matrix of {rows} x {columns}, which has {rows * columns:,} elements; packed "
            f"has {math.prod(shape):,} in shape {shape}: give the extents of the matrix that was packed"
        )
    return _flat(packed.reshape(columns // _GROUP, rows, _GROUP).swapaxes(0, 1)).reshape(rows, columns)


@public
def interleave_rows(matrix: Any) -> Any:
    """Return a matrix of (rows, columns) packed as ``cutlass.RowMajorInterleaved32``, flat.

    Parameters
    ----------
    matrix : array of shape (rows, columns)
        Rows must be a multiple of 32.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No such matrix, or no array.
    """
    rows, columns = _extents("interleave_rows", matrix)
    _check_groups("interleave_rows", "rows", rows)
    return _flat(matrix.reshape(rows // _GROUP, _GROUP, columns).swapaxes(1, 2))


@public
def reorder_column(packed: Any) -> Any:
    """Return B of an interleaved GEMM with its columns permuted as the kernel reads them; twice is no change.

    Arguments know the result by its memory, and take it as it is, and so they do its slices of whole blocks, such as
    one matrix of a batch. Others they reorder themselves, at each launch or copy: reorder a weight once, on the device
    where it is used. Copies of the result, and slices through a block of 32 columns by 32 rows, are refused without
    ``reordered=``.

    The epilogue writes straight from registers, where eight neighbouring columns of the product are four threads with
    two each: within 32 columns, (4, 4, 2) becomes (4, 4, 2) with the first two exchanged
    (cutlass/util/host_reorder.h).

    Parameters
    ----------
    packed : array
        B packed as ``cutlass.RowMajorInterleaved32``: what `interleave_rows` returns, or shape (K / 32, N, 32). The
        filter of an interleaved convolution, (C / 32, R, S, K, 32), is reordered alike. The N columns, or K filters,
        must be a multiple of 32.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An array that is not packed so, or no array.
    """
    reordered = permute_columns(packed)
    before, after = _blocks(packed), _blocks(reordered)
    if before is None or after is None:
        return reordered
    fixed = frozenset(old for old, new in zip(before, after, strict=True) if old == new)
    with _lock:
        if set(after) <= fixed or _marked(packed, before) is True:  # both orders are one, or this is plain again
            return reordered
        is_plain = _marked(packed, before) is False and _digests.keys().isdisjoint(before)
        _keep(digest for digest in after if digest not in fixed)
        if is_plain:  # else nobody knows: a copy of what was reordered, or what happens to be equal
            _mark(reordered, after, fixed)
    return reordered


def permute_columns(packed: Any) -> Any:
    """Do what `reorder_column` does, and leave no mark: nothing waits for the GPU."""
    shape = _shape("reorder_column", "packed", packed)
    if len(shape) == 1:
        fits = shape[0] % _GROUP**2 == 0
    else:
        fits = len(shape) > 2 and shape[-1] == _GROUP and shape[-2] % _GROUP == 0
    if not fits:
        raise ArgumentError(
            f"columns are reordered in groups of {_GROUP}, of an array packed as RowMajorInterleaved32: flat with a "
            f"multiple of {_GROUP**2} elements, as interleave_rows returns it, or of shape (K / {_GROUP}, N, {_GROUP}) "
            f"with N a multiple of {_GROUP}, or for a filter (C / {_GROUP}, R, S, K, {_GROUP}) with K one; got shape "
            f"{shape}. Pack a matrix with interleave_rows first, and pad its columns."
        )
    return _flat(packed.reshape(-1, 4, 4, 2, _GROUP).swapaxes(1, 2)).reshape(shape)


def is_reordered(array: Any, name: str = "B") -> bool:
    """Return whether `array`, in whatever shape, is whole blocks of what `reorder_column` has returned.

    Raises
    ------
    ArgumentError
        That cannot be told: the array cuts through blocks, some of them have been written since, or contents that
        `reorder_column` has returned are elsewhere, in a copy or in a plain matrix that happens to be equal. The
        message calls the array operand `name`.
    """
    blocks = _blocks(array)
    if blocks is None:
        return False
    with _lock:
        marked = _marked(array, blocks)
        if marked is True or (marked is False and _digests.keys().isdisjoint(blocks)):
            return marked
    say = "Pass reordered=True if reorder_column has been applied, else reordered=False."
    if marked is None:
        raise ArgumentError(
            f"operand {name} lies in the memory of what reorder_column has returned, and is not part of it: it begins "
            f"or ends within a block of {_GROUP} columns by {_GROUP} rows, or some of its blocks have been written "
            f"since. Take the part of the plain matrix, and reorder that. {say}"
        )
    raise ArgumentError(
        f"operand {name} has the contents of a matrix that reorder_column has returned, or of a part of one, in other "
        f"memory: it may be a copy, or a plain matrix that happens to be equal. {say}"
    )


def _mark(array: Any, blocks: _Blocks, fixed: frozenset[bytes]) -> None:
    """Remember the memory of an array that is reordered; whoever calls holds the lock."""
    for place in [place for place, mark in _marks.items() if mark.owner() is None]:
        del _marks[place]
    with contextlib.suppress(TypeError):  # of arrays that have no weak references
        _marks[_place(array)] = _Mark(weakref.ref(_owner(array)), _bytes(array), blocks, fixed)


def _marked(array: Any, blocks: _Blocks) -> bool | None:
    """Return whether the memory of `array`, all of it, is reordered; None where that cannot be told.

    Whoever calls holds the lock.
    """
    (device, start), size = _place(array), _bytes(array)
    for (place, first), mark in _marks.items():
        if place == device and first < start + size and start < first + mark.size and mark.owner() is not None:
            if not _is_contiguous(array):
                return None
            block = mark.size // len(mark.blocks)
            skipped, cut = divmod(start - first, block)
            if cut or skipped < 0 or size != len(blocks) * block or skipped + len(blocks) > len(mark.blocks):
                return None
            pairs = zip(blocks, mark.blocks[skipped:], strict=False)
            unchanged = {found == left for found, left in pairs if found != left or left not in mark.fixed}
            return None if len(unchanged) > 1 else unchanged <= {True}
    return False


def _place(array: Any) -> tuple[str, int]:
    """Return where an array of numpy, torch or cupy begins."""
    if isinstance(array, np.ndarray):
        return "cpu", array.ctypes.data
    if hasattr(array, "data_ptr"):
        return str(array.device), array.data_ptr()
    return f"cuda:{array.device.id}", array.data.ptr


def _owner(array: Any) -> Any:
    """Return what lives as long as the memory of `array`: the array that it is a view of, or the storage of torch."""
    if hasattr(array, "untyped_storage"):  # views that were made in inference mode do not know what they are views of
        return array.untyped_storage()
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array


def _bytes(array: Any) -> int:
    return int(array.numel() * array.element_size() if hasattr(array, "data_ptr") else array.nbytes)


def _is_contiguous(array: Any) -> bool:
    return bool(array.is_contiguous() if hasattr(array, "data_ptr") else array.flags.c_contiguous)


def _keep(digests: Iterable[bytes]) -> None:
    """Add digests as the newest; whoever calls holds the lock."""
    for digest in digests:
        _digests.pop(digest, None)
        _digests[digest] = None
    while len(_digests) > _KEPT:
        del _digests[next(iter(_digests))]


def _blocks(array: Any) -> _Blocks | None:
    """Return a digest of each block of the contents; None of an array of a library that is not known here."""
    if hasattr(array, "detach"):
        array = array.detach().cpu().numpy()  # of torch
    elif hasattr(array, "get"):
        array = array.get()  # of cupy
    if not isinstance(array, np.ndarray):
        return None
    contents, block = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, _BLOCK * array.itemsize
    starts = range(0, len(contents), block)
    return tuple(hashlib.blake2b(contents[each : each + block], digest_size=16).digest() for each in starts)


def _shape(who: str, name: str, array: Any) -> tuple[int, ...]:
    """Return the shape of an array of numpy, cupy or torch, which are known here by what they can do."""
    shape = None if isinstance(array, type) else shape_of(array)
    if shape is None or not all(hasattr(array, each) for each in ("reshape", "swapaxes")):
        instead = f"; pass numpy.asarray({name}, numpy.int8)" if isinstance(array, list | tuple) else ""
        raise ArgumentTypeError(
            f"{who} takes an array of numpy, cupy or torch as {name}, got {type(array).__name__}{instead}"
        )
    return shape


def _extents(who: str, matrix: Any) -> tuple[int, int]:
    shape = _shape(who, "matrix", matrix)
    if len(shape) != 2:
        raise ArgumentError(
            f"{who} packs one matrix of shape (rows, columns), got shape {shape}: reshape it, or pack the matrices of "
            f"a batch one by one"
        )
    return shape[0], shape[1]


def _extent(name: str, value: Any) -> int:
    extent = as_int(value)
    if extent is None:
        raise ArgumentTypeError(f"{name} must be an integer, got {shown(value)}")
    if extent < 0:
        raise ArgumentError(f"{name} must not be negative, got {extent}")
    return extent


def _check_groups(who: str, name: str, extent: int) -> None:
    if extent % _GROUP:
        raise ArgumentError(
            f"{who}: {_GROUP} {name} are stored together, so their number must be a multiple of {_GROUP}, got "
            f"{extent}: pad the matrix to {-(-extent // _GROUP) * _GROUP} {name}"
        )


def _flat(array: Any) -> Any:
    """Return a flat copy of `array`, also where reshaping would make a view."""
    if not hasattr(array, "clone"):
        return array.copy().reshape(-1)
    return (array.clone() if array.is_contiguous() else array.contiguous()).reshape(-1)
