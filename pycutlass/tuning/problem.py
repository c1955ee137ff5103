"""A GEMM that is tuned: a kind with its extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycutlass.calls import public, shown
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int
from pycutlass.plan import Candidate, GemmKind, Ranked, pick, ranking
from pycutlass.plan.records import problem_record
from pycutlass.tuning.gemm_work import GemmWork
from pycutlass.tuning.tunable import Tunable, check_kind

__all__ = ["Problem"]

_EXTENTS = ("m", "n", "k")


@public
@dataclass(frozen=True)
class Problem(Tunable):
    """A GEMM to be tuned.

    Parameters
    ----------
    kind : GemmKind
        Types, layouts, alignments and epilogue: a functor or a function. What it reads is drawn.
    m, n, k : int
        Extents.
    batch : int, optional
        Number of matrices, where it is a batch.
    source : str, optional
        The C that a functor reads with beta = 1: ``"matrix"``, or ``"bias"`` for a vector along its rows. Default: it
        runs with beta = 0, and C is not read.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Extents that are no positive integers, another kind of epilogue, or a C that it does not read.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import GemmKind
    >>> from pycutlass.tuning import Problem
    >>> f16, f32 = cutlass.float16, cutlass.float32
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> kind = GemmKind(row, row, row, row, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)
    >>> Problem(kind, 64, 128, 256).name
    '64x128x256 f16 x f16 -> f16'
    """

    kind: GemmKind
    m: int
    n: int
    k: int
    batch: int | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind, GemmKind, self.source)
        for name in (*_EXTENTS, *(() if self.batch is None else ("batch",))):
            value = as_int(getattr(self, name))
            if value is None:
                raise ArgumentTypeError(f"{name} must be an integer, got {shown(getattr(self, name))}")
            if value < 1:
                raise ArgumentError(f"{name} must be at least 1, got {value}: there is nothing to measure")
            object.__setattr__(self, name, value)

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.m, self.n, self.k

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k * (self.batch or 1)

    def record(self) -> dict[str, Any]:
        """Return what the database calls it."""
        return problem_record(self.kind, *self.extents, self.batch, self.source)

    def ranked(self, gpu: Device) -> Sequence[Ranked[Candidate]]:
        """Return all candidates that take it, the likely fastest first."""
        return ranking(self.kind, *self.extents, self.batch, gpu)

    def picked(self, gpu: Device) -> Candidate:
        """Return the likely fastest candidate, or raise ArgumentError with what the nearest ones lack."""
        return pick(self.kind, *self.extents, self.batch, gpu)

    def work(self) -> GemmWork:
        """Return what measures it."""
        return GemmWork(self.extents, self.batch, self.kind.epilogue.columns(self.n))
