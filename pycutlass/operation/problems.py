"""Problems as values: what is to be computed, in sizes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycutlass import _core
from pycutlass.calls import member_meant, public, shown
from pycutlass.epilogue import EpilogueScalars
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int, several
from pycutlass.operands import LARGEST_EXTENT, check_count

__all__ = ["GemmProblemSize", "ReductionProblemSize", "gemm_size", "reduction_size"]

_Mode = _core.GemmMode
_MODES = (_Mode.Gemm, _Mode.GemmSplitKParallel, _Mode.Batched, _Mode.Array)


@public
@dataclass(frozen=True)
class GemmProblemSize:
    """The sizes of a GEMM, or of a batch of them, and how it is computed.

    Parameters
    ----------
    m, n, k : int
        Extents: A has (m, k) elements, B (k, n), C and D (m, n).
    gemm_mode : cutlass.gemm.Mode
        ``Gemm`` (with serial split-K where `split_k_slices` > 1), ``GemmSplitKParallel``, ``Batched`` or ``Array``.
    batch : int
        Number of problems, for ``Batched`` and ``Array``.
    split_k_slices : int
        Slices of K, for ``Gemm`` and ``GemmSplitKParallel``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Numbers out of range or of another kind, or a batch or slices in a mode that has none.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> pycutlass.GemmProblemSize(128, 256, 64, cutlass.gemm.Mode.Batched, batch=3).count
    3
    """

    m: int
    n: int
    k: int
    gemm_mode: _core.GemmMode = _Mode.Gemm
    batch: int = 1
    split_k_slices: int = 1

    def __post_init__(self) -> None:
        m, n, k = _extents((self.m, self.n, self.k), "cutlass.gemm.GemmCoord(M, N, K) or three integers", "M, N and K")
        mode = self.gemm_mode
        if not (isinstance(mode, _Mode) and mode in _MODES):
            known = ", ".join(f"cutlass.gemm.{each}" for each in _MODES)
            near = member_meant(mode, _MODES, "cutlass.gemm.Mode")
            if isinstance(mode, EpilogueScalars):
                near = ". Scalars are given by name: output_op=operation.epilogue_type(alpha, beta)"
            raise ArgumentError(f"gemm_mode must be one of {known}; got {shown(mode)}{near}")
        slices, batch = check_count("split_k_slices", self.split_k_slices), check_count("batch", self.batch)
        batched = mode in (_Mode.Batched, _Mode.Array)
        if batched and slices != 1:
            raise ArgumentError(
                f"split_k_slices belongs to Mode.Gemm and Mode.GemmSplitKParallel, got {slices} in a batch: leave "
                f"split_k_slices out"
            )
        if not batched and batch != 1:
            raise ArgumentError(
                f"batch belongs to Mode.Batched and Mode.Array, got {batch} in {mode}: pass "
                f"gemm_mode=cutlass.gemm.Mode.Batched where A, B and D are tensors of {batch} matrices, and "
                f"gemm_mode=cutlass.gemm.Mode.Array where they are lists of {batch} tensors"
            )
        _keep(self, m=m, n=n, k=k, batch=batch, split_k_slices=slices)

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.m, self.n, self.k

    @property
    def count(self) -> int:
        """Batches, or slices of split-K."""
        return self.batch if self.gemm_mode in (_Mode.Batched, _Mode.Array) else self.split_k_slices


@public
@dataclass(frozen=True)
class ReductionProblemSize:
    """The sizes of a reduction: `partitions` partial sums of `rows` x `columns`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Numbers out of range, or of another kind.

    Examples
    --------
    >>> import pycutlass
    >>> pycutlass.ReductionProblemSize(128, 256, partitions=4)
    ReductionProblemSize(rows=128, columns=256, partitions=4)
    """

    rows: int
    columns: int
    partitions: int = 1

    def __post_init__(self) -> None:
        rows, columns = _extents((self.rows, self.columns), "two integers [M, N]", "M and N")
        partitions = check_count("partitions", self.partitions)
        _keep(self, rows=rows, columns=columns, partitions=partitions)


def gemm_size(size: Any, gemm_mode: Any = _Mode.Gemm, batch: Any = 1, split_k_slices: Any = 1) -> GemmProblemSize:
    """Return what was given as the sizes of a GEMM: a GemmProblemSize, or a GemmCoord or three integers and the rest.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Something else, or a GemmProblemSize that says something else than the rest, where that is no default.
    """
    if not isinstance(size, GemmProblemSize):
        extents = several(size, 3)
        if extents is None:
            raise ArgumentTypeError(
                f"problem_size must be cutlass.gemm.GemmCoord(M, N, K) or three integers, such as (128, 256, 64), or a "
                f"GemmProblemSize; got {shown(size)}{_of_another(size, 'GemmOperationUniversal')}"
            )
        m, n, k = extents
        return GemmProblemSize(m, n, k, gemm_mode, batch, split_k_slices)
    if gemm_mode is not size.gemm_mode and gemm_mode is not _Mode.Gemm:
        raise _said_twice("gemm_mode", size.gemm_mode, gemm_mode)
    for name, value in (("batch", batch), ("split_k_slices", split_k_slices)):
        if as_int(value) not in (1, getattr(size, name)):
            raise _said_twice(name, getattr(size, name), value)
    return size


def reduction_size(size: Any, partitions: Any = 1) -> ReductionProblemSize:
    """Return what was given as the sizes of a reduction: a ReductionProblemSize, or two integers and the partitions.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Something else, or a ReductionProblemSize with other partitions than these, where they are not 1.
    """
    if not isinstance(size, ReductionProblemSize):
        extents = several(size, 2)
        if extents is None:
            raise ArgumentTypeError(
                f"problem_size must be two integers [M, N], such as (128, 256), or a ReductionProblemSize; got "
                f"{shown(size)}{_of_another(size, 'ReductionOperation')}"
            )
        rows, columns = extents
        return ReductionProblemSize(rows, columns, partitions)
    if as_int(partitions) not in (1, size.partitions):
        raise _said_twice("partitions", size.partitions, partitions)
    return size


def _of_another(size: Any, operation: str) -> str:
    """Return which operation a problem of another kind is for."""
    if isinstance(size, _core.Conv2dProblemSize):
        return f", which is for a Conv2dOperation; this is a {operation}"
    if isinstance(size, ReductionProblemSize):
        return f", which is for a ReductionOperation; this is a {operation}"
    if isinstance(size, GemmProblemSize) and operation == "ReductionOperation":
        return f": pass ({size.m}, {size.n}), or ReductionProblemSize({size.m}, {size.n}, partitions)"
    return ""


def _said_twice(name: str, said: Any, value: Any) -> ArgumentError:
    given = shown(value) if type(value) is not type(said) else value
    return ArgumentError(f"problem_size says {name}={said}, and {name}={given} is given besides: give one")


def _keep(problem: Any, **fields: int) -> None:
    """Set fields of a frozen value where they were not plain integers; this is in the way of every launch's start."""
    for name, value in fields.items():
        if type(getattr(problem, name)) is not int:
            object.__setattr__(problem, name, value)


def _extents(given: tuple[Any, ...], kinds: str, letters: str) -> tuple[int, ...]:
    extents = several(given, len(given))
    if extents is None:
        raise ArgumentTypeError(f"problem_size must be {kinds}, got {shown(given)}")
    if min(extents) < 0 or max(extents) > LARGEST_EXTENT:
        got = tuple(extents) if len(extents) == 3 else list(extents)
        raise ArgumentError(f"problem_size must have {letters} from 0 to {LARGEST_EXTENT:,}, got {got}")
    return extents
