"""Which problems a GEMM kernel can compute, and what its operands look like then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pycutlass import _core
from pycutlass.calls import counted
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.families import GEMV, KernelFamily
from pycutlass.families.other_family import as_ampere, listed
from pycutlass.library import TensorDescription, TileDescription
from pycutlass.operands import (
    Matrix,
    MisalignedError,
    check_alike,
    check_extents,
    check_listed,
    empty_matrix_of,
    is_vector,
    matrix_of,
    vector_of,
)
from pycutlass.operands.epilogue import packed_port, port_name, port_operand_of
from pycutlass.operands.pointers import check_no_table, held_matrices
from pycutlass.operation.narrower import explained
from pycutlass.operation.problems import GemmProblemSize
from pycutlass.operation.support import (
    FEW_MATRICES,
    GRID_LIMIT,
    check_grid,
    check_k,
    check_serial_sums,
    check_tiles,
    padded_tiles,
    why_not_selected,
)
from pycutlass.spec import TensorSpec, nowhere, view_of
from pycutlass.tensor import TensorView
from pycutlass.types import Element

__all__ = [
    "Described",
    "check_matrix",
    "check_operands",
    "check_size",
    "check_slices",
    "launched_k",
    "least_k",
    "output",
    "outputs",
    "size_of",
]

_Mode = _core.GemmMode
_BATCHED = (_Mode.Batched, _Mode.Array)


class Described(Protocol):
    """What the rules read of a GEMM operation."""

    compute_capability: int
    A: TensorDescription
    B: TensorDescription
    C: TensorDescription
    D: TensorDescription
    tile_description: TileDescription
    epilogue_functor: Any
    swizzling_functor: Any
    swap_ab: bool

    @property
    def family(self) -> KernelFamily:
        """The family of kernels."""

    @property
    def is_stream_k(self) -> bool:
        """Whether the kernel schedules by stream-K."""

    @property
    def swizzle_size(self) -> int:
        """By how many tiles the kernel goes to and fro."""

    @property
    def partial(self) -> Described:
        """The kernel of parallel split-K."""

    def accumulator_type(self) -> Element:
        """Return the accumulator's element type."""


def check_size(operation: Described, size: GemmProblemSize) -> None:
    """Raise ArgumentError where `operation` cannot compute `size` whatever the tensors are."""
    check_extents("problem_size", size.extents, operation.tile_description.threadblock_shape)
    mode, slices = size.gemm_mode, size.split_k_slices
    if mode not in operation.family.modes:
        modes = listed(f"Mode.{each.name}" for each in operation.family.modes)
        raise ArgumentError(f"{operation.family.name} kernels run in {modes}, not in {mode}")
    if operation.is_stream_k and mode not in (_Mode.Gemm, _Mode.Batched):
        raise ArgumentError(
            f"stream-K kernels run in Mode.Gemm and Mode.Batched, not in {mode}: for it, describe the kernel with "
            f"swizzling_functor=cutlass.IdentitySwizzle1"
        )
    _check_ports(operation, size)
    if mode == _Mode.Array:
        try:
            operation.family.check_array(operation)
        except DescriptionError as error:
            raise ArgumentError(str(error)) from None
    if operation.D != operation.C:
        _check_stand_in(operation.C, operation.D, size.m, size.n)
    if slices > 1:
        check_slices(operation, launched_k(operation, size), slices, mode)
    if mode == _Mode.Gemm:
        check_serial_sums(operation, slices)
    if mode == _Mode.GemmSplitKParallel and size.m and size.n:
        try:
            matrix_of("D", operation.partial.C, nowhere(), size.m, size.n)  # partial sums, which are packed
        except MisalignedError as error:
            raise explained(operation, error) from None
    _check_grid(operation, size)


def _check_ports(operation: Described, size: GemmProblemSize) -> None:
    """Raise ArgumentError for modes in which parts of sums would pass an epilogue that has tensors of its own."""
    epilogue, mode = operation.epilogue_functor, size.gemm_mode
    if mode == _Mode.GemmSplitKParallel:  # whose partial sums another kernel makes, without the epilogue
        if reason := _why_not_in_parallel(epilogue):
            raise ArgumentError(reason)
        return
    if epilogue.columns(2) < 2 and size.n % 2:
        raise ArgumentError(
            f"the epilogue {epilogue!r} combines pairs of neighbouring columns, so that N must be even; got N={size.n}"
        )
    reduced = ", ".join(port.name for port in epilogue.outputs if port.form != "matrix")
    if reduced and not (size.m and size.n):
        raise ArgumentError(
            f"the epilogue {epilogue!r} makes {reduced} of the elements of D, and D of {size.m} x {size.n} has no "
            f"elements: leave such problems out"
        )
    if reason := why_not_selected(operation, size.n):
        raise ArgumentError(reason)
    if mode == _Mode.Array and not epilogue.takes_lists:
        raise ArgumentError(
            f"the epilogue {epilogue!r} reads no tables of addresses, which Mode.Array has: use Mode.Batched, or write "
            f"it as a function with pycutlass.epilogue_function"
        )


def _check_stand_in(C: TensorDescription, D: TensorDescription, m: int, n: int) -> None:
    """Check that a tensor map of C can be made: kernels have one whether they read C or not."""
    name, extent = ("N", n) if C.is_row_major else ("M", m)
    if extent % C.alignment:
        takes_D = D.is_row_major and n % D.alignment == 0  # which is then like C, and RowMajor
        raise ArgumentError(
            f"{name} must be a multiple of {C.alignment}, the alignment of C, also where C is not read; got {extent}: "
            f"{'describe C as D, or ' if takes_D else ''}pad D with "
            f"{counted(-extent % C.alignment, 'column' if C.is_row_major else 'row')}"
        )


def check_slices(operation: Described, k: int, slices: int, mode: Any = _Mode.Gemm) -> None:
    """Raise ArgumentError where K cannot be divided into `slices` slices."""
    if not operation.family.splits_k and not operation.is_stream_k:
        _check_native_slices(operation, k, slices, mode)
    if slices > 1 and operation.A.order.interleave > 1:
        # Partial sums would be interleaved s32, which no kernel writes; and CUTLASS forgets the end of a slice that is
        # no multiple of 32.
        raise ArgumentError(
            f"kernels of {operation.A.order} write cutlass.int8 alone and do not split K; got split_k_slices={slices}: "
            f"leave out split_k_slices"
        )
    step = operation.family.slice_step(operation.A, operation.B)
    most = -(-k // step)
    if slices > most:
        raise ArgumentError(
            f"K={k} has {most} parts of {step} elements, the least that a slice takes: split_k_slices must be at most "
            f"{most}, got {slices}"
        )
    if slices > GRID_LIMIT:
        raise ArgumentError(f"split_k_slices must be at most {GRID_LIMIT}, the extent of a grid along z; got {slices}")


def _check_native_slices(operation: Described, k: int, slices: int, mode: Any) -> None:
    """Check slices of a Hopper-native kernel without stream-K: in parallel, as a batch of equal parts."""
    if operation.family is GEMV:
        raise ArgumentError(
            f"the warps of a {operation.family.name} kernel divide K among themselves: leave out split_k_slices, got "
            f"{slices}"
        )
    if mode != _Mode.GemmSplitKParallel:
        changes = as_ampere(operation.tile_description, operation)
        raise ArgumentError(
            f"{operation.family.name} kernels split K by stream-K, or in Mode.GemmSplitKParallel; got "
            f"split_k_slices={slices} in {mode}: leave out split_k_slices{_or_sliced(operation)}"
            f"{f', or for an Ampere-style kernel {changes}' if changes else ''}"
        )
    step, depth = operation.family.slice_step(operation.A, operation.B), _steps_of_slices(operation)

    def divides(count: int) -> bool:
        return count == 1 or k % (count * step) == 0 or (depth is not None and count <= -(-k // depth))

    if not divides(slices):
        whole = "equal slices" if depth is None else f"slices of whole steps of {depth} elements, or into equal slices"
        remedy = "" if depth else ", or stream-K, whose slices may differ"
        raise ArgumentError(
            f"{operation.family.name} kernels divide K into {whole} of a multiple of {step} elements; got K={k} in "
            f"{slices} slices: use split_k_slices={next(filter(divides, range(slices, 0, -1)))}{remedy}"
        )


def _or_sliced(operation: Described) -> str:
    """Return how else a Hopper-native kernel can divide K, for the end of a message."""
    if operation.family.takes_stream_k(operation):
        return ", or describe swizzling_functor=cutlass.ThreadblockSwizzleStreamK"
    if _why_not_in_parallel(operation.epilogue_functor):
        return ""
    try:
        _ = operation.partial
    except DescriptionError:  # no kernel writes these sums
        return ""
    return ", or use Mode.GemmSplitKParallel, whose partial sums a ReductionOperation adds up"


def _why_not_in_parallel(epilogue: Any) -> str:
    """Return why an epilogue cannot be left to the reduction of parallel split-K, or ""."""
    instead = "use split_k_slices in Mode.Gemm, or stream-K"
    if epilogue.columns(2) < 2:
        return (
            f"the epilogue {epilogue!r} combines pairs of columns, and parallel split-K leaves the epilogue to a "
            f"reduction, which has D with all columns: {instead}"
        )
    if selected := ", ".join(port.name for port in epilogue.outputs if port.selected):
        return (
            f"the epilogue {epilogue!r} selects the largest of each row to {selected}, and parallel split-K leaves the "
            f"epilogue to a reduction, which has tiles of its own: {instead}"
        )
    return ""


def _steps_of_slices(operation: Described) -> int | None:
    """Return the elements of K of a step, where slices of K need not be equal but may differ by a step, or None."""
    try:
        partial = operation.partial
    except DescriptionError:
        return None
    return partial.tile_description.threadblock_shape[2] if partial.family.takes_slices(partial) else None


def least_k(operation: Described) -> int:
    """Return the least K that a slice takes with any layout and alignment of A and B."""
    described = (operation.A, operation.B)
    return max(*(max(each.alignment, 128 // each.type.bits, each.order.interleave) for each in described))


def launched_k(operation: Described, size: GemmProblemSize) -> int:
    """Return K of the launch: where the user's is 0, zeros in its place have another."""
    return size.k or least_k(operation) * size.split_k_slices


def check_operands(operation: Described, size: GemmProblemSize, given: Mapping[str, Any]) -> None:
    """Raise where a tensor does not fit, and where no tensor would.

    Parameters
    ----------
    given : mapping
        TensorSpecs or tensors under some of A, B, C, D and the names of the epilogue's; in ``Mode.Array`` lists of
        them. What is not there is taken as packed.

    Raises
    ------
    ArgumentError, ArgumentTypeError, AlignmentError
        Something does not fit.
    """
    in_parallel = size.gemm_mode == _Mode.GemmSplitKParallel
    m, n, k = size.extents
    shapes = {"A": (operation.A, m, k), "B": (operation.B, k, n)}
    if not in_parallel:  # which leaves C and D to the reduction, and writes to memory of its own
        shapes |= {"D": (operation.D, m, operation.epilogue_functor.columns(n)), "C": (operation.C, m, n)}
        if m and n:
            check_k(operation.epilogue_functor, k)
    for name, (description, rows, columns) in shapes.items():
        _check_operand(size, name, description, rows, columns, given.get(name))
    if not in_parallel:
        _check_ports_given(operation, size, given)
    if not k:
        k = launched_k(operation, size)
        for name, description, rows, columns in (("A", operation.A, m, k), ("B", operation.B, k, n)):
            _check_operand(size, name, description, rows, columns, None)


def _check_ports_given(operation: Described, size: GemmProblemSize, given: Mapping[str, Any]) -> None:
    """Check the tensors of the epilogue, those that are not given as packed ones."""
    functor = operation.epilogue_functor
    for port in functor.ports:
        written, placed, tensor = port in functor.outputs, port.beside(operation.D), given.get(port.name)
        batch = size.batch
        if tensor is None:
            views = [nowhere()] if port.form == "matrix" else []
        elif size.gemm_mode == _Mode.Array and isinstance(tensor, list | tuple):
            views, batch = [view_of(port_name(port, written=written), each) for each in tensor], 1
        else:
            views = [view_of(port_name(port, written=written), tensor)]
        for view in views:
            port_operand_of(placed, view, size.m, size.n, batch, written=written)


def outputs(operation: Described, size: GemmProblemSize) -> dict[str, TensorSpec]:
    """Return D and what the epilogue writes beside it, packed, by name."""
    made, is_batched = {"D": output(operation, size)}, size.gemm_mode in _BATCHED
    for port in operation.epilogue_functor.outputs:
        placed = port.beside(operation.D)
        made[port.name] = packed_port(placed, size.m, size.n, size.batch, is_batched=is_batched)
    return made


def size_of(A: Any, B: Any, batch: int | None = None) -> GemmProblemSize:
    """Return the problem that two tensors make, (M, K) and (K, N) or batches of them; see `supports` whether it fits.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Tensors of other dimensions, or that do not fit each other.
    """
    a, b = view_of("A", A).shape, view_of("B", B).shape
    if a is None or b is None or not {len(a), len(b)} <= {2, 3}:
        raise ArgumentError(f"A and B must have two dimensions, or three in a batch; got shapes {a} and {b}")
    batches = {shape[0] for shape in (a, b) if len(shape) == 3}
    if a[-1] != b[-2] or len(batches) > 1:
        raise ArgumentError(f"A of (M, K) and B of (K, N) must have one K, and one batch where both have; got {a}, {b}")
    if not batches:
        return GemmProblemSize(a[-2], b[-1], a[-1])
    return GemmProblemSize(a[-2], b[-1], a[-1], _Mode.Batched, batch=batches.pop())


def output(operation: Described, size: GemmProblemSize) -> TensorSpec:
    """Return the D of a problem, packed in its layout: (M, N), in a batch (batch, M, N); of pairs N / 2 columns."""
    m, n = size.m, operation.epilogue_functor.columns(size.n)
    order, dtype_name = operation.D.order, operation.D.type.dtype_name
    if order.interleave > 1:
        return TensorSpec((size.batch * m * n,), dtype_name)
    strides = (n, 1) if order.is_row_major else (1, m)
    if size.gemm_mode in _BATCHED:
        return TensorSpec((size.batch, m, n), dtype_name, (m * n, *strides))
    return TensorSpec((m, n), dtype_name, strides)


def _check_grid(operation: Described, size: GemmProblemSize) -> None:
    """Check the grid of a launch, as CUTLASS's swizzles make it: only large problems need a look."""
    m, n, k, count, tile = size.m, size.n, size.k, size.count, operation.tile_description.threadblock_shape
    what = f"a GEMM of M={m}, N={n}, K={k} in {size.gemm_mode} with count {count}"
    if operation.family.is_persistent:
        if count > FEW_MATRICES:
            along = (n, m) if operation.swap_ab else (m, n)
            check_tiles(what, count * padded_tiles(operation.tile_description, *along, operation.swizzle_size))
        return
    if max(m, n) <= GRID_LIMIT * min(tile[:2]) and count <= GRID_LIMIT:
        return
    if operation.is_stream_k:
        if size.batch > GRID_LIMIT:
            raise ArgumentError(f"{what} has more batches than a grid has threadblocks along z, {GRID_LIMIT}")
        return
    if size.batch > GRID_LIMIT and operation.swizzling_functor is not _core.BatchedIdentitySwizzle:
        raise ArgumentError(
            f"batch must be at most {GRID_LIMIT}, the extent of a grid along z, got {size.batch}: batches go along x "
            f"with swizzling_functor=cutlass.BatchedIdentitySwizzle"
        )
    extents = (n, m, k) if operation.C.layout is _core.ColumnMajor else (m, n, k)
    swizzle = operation.swizzling_functor
    tiled = swizzle.get_tiled_shape(_core.GemmCoord(*extents), _core.GemmCoord(*tile), count)
    try:
        grid = swizzle.get_grid_shape(tiled)
    except ArgumentError as error:
        raise ArgumentError(f"{what} is too large: {error}") from None
    check_grid(what, (grid.x, grid.y, grid.z))


def _check_operand(
    size: GemmProblemSize, name: str, description: TensorDescription, rows: int, columns: int, tensor: Any
) -> None:
    if size.gemm_mode != _Mode.Array:
        view = nowhere() if tensor is None else view_of(name, tensor)
        check_matrix(name, description, view, rows, columns, size.batch)
        return
    views = _listed(name, description, rows, columns, tensor, size.batch)
    if views is None:
        check_no_table(name, view_of(name, tensor), rows, columns, size.batch)
        empty_matrix_of(name, description, view_of(name, tensor), rows, columns, size.batch)
        return
    matrices = [check_matrix(f"{name}[{i}]", description, view, rows, columns) for i, view in enumerate(views)]
    check_alike(name, matrices)


def check_matrix(
    name: str, description: TensorDescription, view: TensorView, rows: int, columns: int, batch: int = 1
) -> Matrix:
    """Return an operand that looks like `view`, checked: a matrix, one without elements, or as C a bias."""
    make: Callable[..., Matrix] = matrix_of
    if not rows or not columns:
        make = empty_matrix_of
    elif name.startswith("C") and is_vector(description, view, rows, columns, batch):
        make = vector_of
    return make(name, description, view, rows, columns, batch)


def _listed(
    name: str, description: TensorDescription, rows: int, columns: int, tensors: Any, batch: int
) -> Sequence[TensorView] | None:
    """Return views of the matrices of an operand in ``Mode.Array``; None for one tensor of matrices without elements.

    Of those that one tensor holds, two stand for all, which are as far apart.
    """
    if tensors is None:
        return [nowhere()]
    if isinstance(tensors, list | tuple):
        check_listed(name, tensors, batch)
        return [view_of(f"{name}[{number}]", tensor) for number, tensor in enumerate(tensors)]
    if not rows or not columns:
        return None
    view, bits = view_of(name, tensors), description.type.bits
    held = held_matrices(description, view, rows, columns, batch)
    if held == "whole":
        return [view]
    if held is not None and view.shape is not None and view.strides is not None:
        shape, strides, step = view.shape[1:], view.strides[1:], view.strides[0]
        if held == "flat":
            shape, strides, step = (rows * columns,), view.strides, rows * columns * view.strides[0]
        apart = step * bits // 8
        return [
            replace(view, pointer=view.pointer + number * apart, shape=shape, strides=strides)
            for number in range(min(batch, 2))
        ]
    if view.shape == (batch,) and view.dtype_name in ("int64", "uint64"):  # addresses, of what nobody knows
        return [nowhere()]
    raise ArgumentTypeError(
        f"operand {name} in Mode.Array must be a list of {batch} tensors, one tensor that holds {batch} matrices, or "
        f"an int64 tensor of {batch} addresses; got shape {view.shape} of {view.dtype_name}"
    )
