"""Which groups of problems a kernel can compute, and what their operands look like then."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.calls import counted, shown
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import attribute, items_of, several, shape_of
from pycutlass.operands import LARGEST_EXTENT, check_extents
from pycutlass.operands.epilogue import packed_port
from pycutlass.operation.gemm_support import Described, check_matrix
from pycutlass.operation.problems import GemmProblemSize
from pycutlass.operation.support import check_k, why_not_selected
from pycutlass.spec import TensorSpec, nowhere, view_of
from pycutlass.tensor import wrap

__all__ = [
    "EXTENTS",
    "Sizes",
    "as_sequence",
    "check_count_of",
    "check_operands",
    "check_sizes",
    "count_tiles",
    "epilogue_outputs",
    "extents_of",
    "outputs",
    "shared",
]

Sizes = NDArray[np.int32]

#: Which of M, N, K are the rows and the columns of an operand; of pairs of columns D has half as many (`extents_of`).
EXTENTS = {"A": (0, 2), "B": (2, 1), "C": (0, 1), "D": (0, 1)}
_MAX_TILES = 2**31 - 1  # which kernels count in 32 bits


def check_sizes(operation: Described, problem_sizes: Any) -> Sizes:
    """Return the sizes of all problems as an array, checked.

    Raises
    ------
    ArgumentTypeError
        Not a sequence of triples of integers.
    ArgumentError
        No problem at all, an extent out of range, or more tiles than a launch counts.
    """
    if isinstance(problem_sizes, GemmProblemSize):
        problem_sizes = problem_sizes.extents  # which is one size
    if not isinstance(problem_sizes, np.ndarray) and (one := several(problem_sizes, 3)) is not None:
        raise ArgumentTypeError(
            f"problem_sizes must be a list with one size for each problem, got one size: pass a list of problem sizes, "
            f"such as [{one}]"
        )
    sizes = _array_of_sizes(as_sequence("problem_sizes", _host_array(problem_sizes)))
    if not len(sizes):
        A, B, C = (getattr(operation, name).type.dtype_name for name in "ABC")
        a, b, d = (f"[np.empty(0, {'ml_dtypes' if kind == 'bfloat16' else 'np'}.{kind})]" for kind in (A, B, C))
        raise ArgumentError(
            f"problem_sizes is empty: a group needs at least one problem. For a group without any work, pass "
            f"[(0, 0, 0)] and one empty tensor in each list, such as A={a}, B={b} and D={d}"
        )
    if sizes.min() < 0 or sizes.max() > LARGEST_EXTENT:
        number = int(np.flatnonzero(((sizes < 0) | (sizes > LARGEST_EXTENT)).any(axis=1))[0])
        raise ArgumentError(
            f"problem_sizes[{number}] must have M, N and K from 0 to {LARGEST_EXTENT:,}, got "
            f"{tuple(sizes[number].tolist())}"
        )
    check_extents(
        "the largest of problem_sizes", sizes.max(axis=0).tolist(), operation.tile_description.threadblock_shape
    )
    _check_pairs(operation, sizes)
    _check_reduced(operation, sizes)
    _check_selected(operation, sizes)
    checked = np.array(sizes, np.int32, order="C")
    if (tiles := count_tiles(operation, checked)) > _MAX_TILES:
        raise ArgumentError(
            f"the problems have {tiles:,} output tiles, and a launch counts at most {_MAX_TILES:,}: use a larger "
            f"threadblock_shape, or several launches"
        )
    return checked


def _check_pairs(operation: Described, sizes: Sizes) -> None:
    """Raise ArgumentError where a problem has a column without a neighbour that it would be combined with."""
    epilogue = operation.epilogue_functor
    if epilogue.columns(2) < 2 and (sizes[:, 1] % 2).any():
        number = int(np.flatnonzero(sizes[:, 1] % 2)[0])
        raise ArgumentError(
            f"the epilogue {epilogue!r} combines pairs of neighbouring columns, so that N must be even; got "
            f"N={sizes[number, 1]} in problem_sizes[{number}]"
        )


def _check_reduced(operation: Described, sizes: Sizes) -> None:
    """Raise ArgumentError where a problem without elements has results of reductions: nothing would be left in them."""
    outputs = [port for port in operation.epilogue_functor.outputs if port.form != "matrix"]
    for number in np.flatnonzero(sizes[:, :2].min(axis=1) == 0).tolist() if outputs else ():
        m, n, _ = sizes[number].tolist()
        results = {"column": m, "row": n, "scalar": 1}
        if reduced := [port.name for port in outputs if results.get(port.form, 0)]:
            raise ArgumentError(
                f"the epilogue {operation.epilogue_functor!r} reduces D to {', '.join(reduced)}, and D of "
                f"problem_sizes[{number}], {m} x {n}, has no elements: leave such problems out"
            )


def _check_selected(operation: Described, sizes: Sizes) -> None:
    """Raise ArgumentError where `top_k` cannot select from rows of a problem; one without rows is of any width."""
    if not any(port.selected for port in operation.epilogue_functor.outputs):
        return
    for number, (m, n, _) in enumerate(sizes.tolist()):
        if m and (reason := why_not_selected(operation, n, where=f" in problem_sizes[{number}]")):
            raise ArgumentError(reason)


def count_tiles(operation: Described, sizes: Sizes) -> int:
    """Return the number of output tiles of all problems."""
    rows, columns, _ = operation.tile_description.threadblock_shape
    if operation.C.layout is _core.ColumnMajor:
        rows, columns = columns, rows  # a column-major C is computed as its transpose
    tiles = -(-sizes[:, 0].astype(np.int64) // rows) * -(-sizes[:, 1].astype(np.int64) // columns)
    return int(tiles.sum())


def check_operands(operation: Described, sizes: Sizes, given: Mapping[str, Any]) -> None:
    """Raise where a tensor does not fit, and where no tensor would.

    Parameters
    ----------
    given : mapping
        Lists of TensorSpecs or tensors, one for each problem, under some of A, B, C and D. What is not there is taken
        as packed.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Something does not fit.
    """
    products = sizes[sizes.min(axis=1) > 0, 2]
    if products.size:
        check_k(operation.epilogue_functor, int(products.max()))
    for name in EXTENTS:
        for label, rows, columns, tensor in _each(name, extents_of(operation, name, sizes), given.get(name), sizes):
            description = operation.C if name == "D" else getattr(operation, name)
            view = nowhere() if tensor is None else view_of(label, tensor)
            check_matrix(label, description, view, rows, columns)


def outputs(operation: Described, sizes: Sizes) -> list[TensorSpec]:
    """Return the D of each problem, packed in the layout of C; of pairs with N / 2 columns."""
    dtype, order, extents = operation.C.type.dtype_name, operation.C.order, extents_of(operation, "D", sizes).tolist()
    if order.interleave > 1:
        return [TensorSpec((m * n,), dtype) for m, n in extents]
    return [TensorSpec((m, n), dtype, (n, 1) if order.is_row_major else (1, m)) for m, n in extents]


def epilogue_outputs(operation: Described, sizes: Sizes) -> dict[str, list[TensorSpec]]:
    """Return what the epilogue writes beside D for each problem, packed, by name."""
    return {
        port.name: [packed_port(port.beside(operation.C), m, n, 1, is_batched=False) for m, n, _ in sizes.tolist()]
        for port in operation.epilogue_functor.outputs
    }


def extents_of(operation: Described, name: str, sizes: Sizes) -> Sizes:
    """Return the rows and the columns of an operand in each problem, as an array of shape (problems, 2)."""
    extents: Sizes = sizes[:, EXTENTS[name]]
    if name == "D" and operation.epilogue_functor.columns(2) < 2:
        return np.stack((extents[:, 0], extents[:, 1] // 2), 1)
    return extents


def _each(name: str, extents: Sizes, tensors: Any, sizes: Sizes) -> Iterator[tuple[str, int, int, Any]]:
    """Yield label, rows, columns and tensor of each problem; without tensors, of the first of each extent."""
    if tensors is None:
        for number in sorted(np.unique(extents, axis=0, return_index=True)[1].tolist()):
            rows, columns = extents[number].tolist()
            yield f"{name}[{number}]", rows, columns, None
        return
    listed = as_sequence(f"operand {name}", tensors, shared(name, sizes))
    check_count_of(name, tensors, len(listed), sizes)
    for number, (rows, columns) in enumerate(extents.tolist()):
        yield f"{name}[{number}]", rows, columns, listed[number]


def check_count_of(name: str, given: Any, count: int, sizes: Sizes) -> None:
    """Raise ArgumentError unless what was given as an operand, of `count` tensors, has one for each problem."""
    if count == len(sizes):
        return
    is_list = isinstance(given, list | tuple)
    if is_list and count and (count, *(shape_of(given[0]) or ())) == tuple(sizes[0, EXTENTS[name]].tolist()):
        is_list = False  # one matrix, whose rows were taken for bias vectors
    one = "" if is_list and count != 1 else shared(f"{name}[0]" if is_list else name, sizes)
    raise ArgumentError(
        f"operand {name} has {counted(count, 'tensor')}, and problem_sizes {counted(len(sizes), 'problem')}: a group "
        f"needs one tensor for each problem in each list{one}"
    )


def shared(given: str, sizes: Sizes) -> str:
    """Return how what was given, ``A`` or ``A[0]``, stands for all problems, if they are of one extent."""
    name = given[0]
    if name == "D" or len(np.unique(sizes[:, EXTENTS[name]], axis=0)) > 1:
        return ""
    return f"; for one {name} of all problems pass {name}=[{given}] * {len(sizes)}"


def _host_array(sizes: Any) -> Any:
    """Return the problem sizes of a tensor as an array; anything else as it is."""
    if isinstance(sizes, Sequence | np.ndarray) or attribute(sizes, "__dlpack__") is None:
        return sizes
    view = wrap("problem_sizes", sizes)
    if view.device is not None:
        raise ArgumentError(
            f"problem_sizes is on GPU {view.device}, and the arguments are made on the host: pass problem_sizes.cpu(), "
            f"which waits for the GPU, or leave the sizes there (GemmGroupedArguments.from_device)"
        )
    kind = np.dtype(view.dtype_name) if view.dtype_name in ("int32", "int64") else None
    if kind is None or view.shape is None or view.strides is None:
        raise ArgumentTypeError(f"problem_sizes must be integers, int32 or int64, got a tensor of {view.dtype_name}")
    return view.host_array(view.shape, view.strides, kind).copy()


def _array_of_sizes(sizes: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """Return an array of shape (problems, 3) of integers, which may be out of range."""
    if isinstance(sizes, np.ndarray) or (len(sizes) and isinstance(sizes[0], tuple | list)):
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # NumPy makes no array of it
            array = np.asarray(sizes)
            if array.dtype.kind in "iu" and array.ndim == 2 and array.shape[1] == 3:  # no need to look at each
                return array
    return np.array([_size(number, size) for number, size in enumerate(sizes)], object).reshape(-1, 3)


def _size(number: int, size: Any) -> tuple[int, int, int]:
    extents = several(size, 3)
    if extents is None:
        raise ArgumentTypeError(
            f"problem_sizes[{number}] must be cutlass.gemm.GemmCoord(M, N, K) or three integers, got {shown(size)}"
            f"{f': pass {size.extents}' if isinstance(size, GemmProblemSize) else ''}"
        )
    m, n, k = extents
    return m, n, k


def as_sequence(name: str, values: Any, further: str = "") -> Sequence[Any] | NDArray[Any]:
    """Return a list or an array of sizes; a single tensor is none, though one could walk along it."""
    if isinstance(values, np.ndarray) and values.ndim and name == "problem_sizes":
        return values
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | range):
        one = "size" if name == "problem_sizes" else "tensor"
        raise ArgumentTypeError(
            f"{name} must be a list with one {one} for each problem, got {type(values).__name__}{further}"
        )
    return values if type(values) in (list, tuple) else items_of(values, sys.maxsize - 1) or ()
