"""What is tuned: a kind of GEMM with its extents."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

from pycutlass import cutlass
from pycutlass.calls import public, shown
from pycutlass.device import Device
from pycutlass.enums import MathOperation
from pycutlass.epilogue import EpilogueFunctor
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.integers import as_int
from pycutlass.library import TensorDescription
from pycutlass.plan import Candidate, GemmKind, ranking
from pycutlass.plan.gemm import Gemm
from pycutlass.plan.measured import problem_record

__all__ = ["Problem", "considered", "problems_of", "with_options"]

_EXTENTS = ("m", "n", "k")
_MOST = 100_000  # problems of one call
_FEWER_ELEMENTS = (1, 2, 4, 8)


@public
@dataclass(frozen=True)
class Problem:
    """A GEMM to be tuned.

    Parameters
    ----------
    kind : GemmKind
        Types, layouts, alignments and epilogue: a functor. It runs with alpha = 1 and beta = 0, and C is not read.
    m, n, k : int
        Extents.
    batch : int, optional
        Number of matrices, where it is a batch.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Extents that are no positive integers, or another kind of epilogue.

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

    def __post_init__(self) -> None:
        if not isinstance(self.kind, GemmKind):
            raise ArgumentTypeError(f"kind must be a pycutlass.plan.GemmKind, got {shown(self.kind)}")
        if not isinstance(self.kind.epilogue, EpilogueFunctor):
            raise ArgumentTypeError(
                f"the tuner makes the operands of epilogue functors alone, and the epilogue is "
                f"{shown(self.kind.epilogue)}: tune the same kind with a functor, such as LinearCombination"
            )
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
    def name(self) -> str:
        """How progress and reports call it."""
        batch = "" if self.batch is None else f"{self.batch} x "
        types = " x ".join(each.type.short for each in (self.kind.A, self.kind.B))
        return f"{batch}{self.m}x{self.n}x{self.k} {types} -> {self.kind.D.type.short}"

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k * (self.batch or 1)

    @property
    def bytes(self) -> float:
        """What has to be read and written at least."""
        sizes = {"A": self.m * self.k, "B": self.k * self.n, "D": self.m * self.n}
        bits: float = sum(getattr(self.kind, name).type.bits * size for name, size in sizes.items())
        return bits / 8 * (self.batch or 1)

    def record(self) -> dict[str, Any]:
        """Return what the database calls it."""
        return problem_record(self.kind, *self.extents, self.batch)


def problems_of(given: Any) -> list[Problem]:
    """Return what is to be tuned as a list: of one problem or several, or of plans.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        There is nothing, or something else among them.
    """
    if isinstance(given, Problem | Gemm):
        return [_problem(given)]
    wrong = f"what is tuned must be a Problem, a pycutlass.Gemm, or several; got {shown(given)}"
    if isinstance(given, str | bytes):
        raise ArgumentTypeError(wrong)
    try:
        listed = list(itertools.islice(given, _MOST + 1))
    except Exception as error:  # of whoever walks along them
        raise ArgumentTypeError(wrong) from error
    if len(listed) > _MOST:
        raise ArgumentError(f"at most {_MOST:,} problems are tuned at once, got more")
    problems = [_problem(each) for each in listed]
    if not problems:
        raise ArgumentError("there is no problem to tune: the list of problems is empty")
    return problems


def _problem(given: Any) -> Problem:
    if isinstance(given, Gemm):
        return Problem(given.kind, *given.size, given.batch)
    if not isinstance(given, Problem):
        raise ArgumentTypeError(f"what is tuned must be a Problem, a pycutlass.Gemm, or several; got {shown(given)}")
    return given


def considered(problem: Problem, options: Any, gpu: Device) -> list[tuple[Candidate, GemmKind, float]]:
    """Return the candidates that are to be compiled, with the microseconds that are predicted, the best first.

    Raises
    ------
    ArgumentError
        No kernel takes the problem, or none within the options.
    """
    found: dict[Candidate, tuple[GemmKind, float]] = {}
    for kind in _kinds(problem.kind, options):
        for each in ranking(kind, *problem.extents, problem.batch, gpu):
            if options.split_k_slices is None or each.candidate.split_k_slices in options.split_k_slices:
                found.setdefault(each.candidate, (kind, each.microseconds))
    if not found:
        slices = "" if options.split_k_slices is None else f" with split_k_slices in {options.split_k_slices}"
        raise ArgumentError(f"no kernel takes {problem.name}{slices}: there is nothing to tune")
    best = sorted(((made, kind, time) for made, (kind, time) in found.items()), key=lambda each: each[2])
    return best[: options.most_candidates]


def with_options(problem: Problem, options: Any) -> Problem:
    """Return the problem that the options mean: without 3xTF32, one TF32 product."""
    kind = problem.kind
    if options.use_3xtf32 or kind.math_operation is not MathOperation.multiply_add_fast_f32:
        return problem
    return dataclasses.replace(
        problem,
        kind=dataclasses.replace(
            kind,
            A=TensorDescription(cutlass.tfloat32, kind.A.layout, kind.A.alignment),
            B=TensorDescription(cutlass.tfloat32, kind.B.layout, kind.B.alignment),
            element_a=cutlass.tfloat32,
            element_b=cutlass.tfloat32,
            math_operation=MathOperation.multiply_add,
        ),
    )


def _kinds(kind: GemmKind, options: Any) -> list[GemmKind]:
    """Return the kind, and with `profile_all_alignments` those of which A and B have lesser alignments."""
    if not options.profile_all_alignments:
        return [kind]
    found = [kind]
    for most in sorted(_FEWER_ELEMENTS, reverse=True):
        try:
            lesser: dict[str, Any] = {name: _at_most(getattr(kind, name), most) for name in ("A", "B")}
            changed = dataclasses.replace(kind, **lesser)
        except DescriptionError:  # no such alignment of this type
            continue
        if changed not in found:
            found.append(changed)
    return found


def _at_most(tensor: TensorDescription, alignment: int) -> TensorDescription:
    if tensor.alignment <= alignment:
        return tensor
    return TensorDescription(tensor.element, tensor.layout, alignment)
