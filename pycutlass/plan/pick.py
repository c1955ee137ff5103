"""The first candidate that takes a problem: what there is until candidates are listed and ranked by a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pycutlass import _core
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.library import TileDescription
from pycutlass.plan.candidate import Candidate
from pycutlass.plan.kind import GemmKind

__all__ = ["Ranked", "pick", "ranking"]

_TENSOR_OP = ((16, 8, 32), (16, 8, 16), (16, 8, 8), (8, 8, 4))
_PLANES = (((128, 128), (2, 2, 1)), ((64, 64), (2, 2, 1)), ((64, 32), (2, 1, 1)))


@dataclass(frozen=True)
class Ranked:
    """A candidate for a problem, with what is predicted of it."""

    candidate: Candidate
    microseconds: float
    waves: int
    note: str


def ranking(kind: GemmKind, m: int, n: int, k: int, batch: int | None = None, gpu: Any = None) -> tuple[Ranked, ...]:
    """Return the candidates that take a problem."""
    taken = []
    for candidate in _candidates(kind):
        if candidate.operation.supports(candidate.size(m, n, k, batch)):
            taken.append(Ranked(candidate, 0.0, 1, "not predicted"))
    return tuple(taken)


def pick(
    kind: GemmKind,
    m: int,
    n: int,
    k: int,
    batch: int | None = None,
    gpu: Any = None,
    is_compiled: Callable[[Candidate], bool] | None = None,
) -> Candidate:
    """Return the first candidate that takes a problem."""
    found = ranking(kind, m, n, k, batch, gpu)
    if not found:
        raise ArgumentError(f"there is no kernel for {m}x{n}x{k} (M x N x K) of this kind: {kind}")
    return found[0].candidate


def _candidates(kind: GemmKind) -> Iterator[Candidate]:
    is_full = kind.element_a is _core.float32 and kind.math_operation.name == "multiply_add"
    simt = [(shape, _core.OpClass.Simt) for shape in ((1, 1, 1), (1, 1, 4))]
    for shape, opcode in ([] if is_full else [(shape, _core.OpClass.TensorOp) for shape in _TENSOR_OP]) + simt:
        for plane, warps in _PLANES:
            for depth in (64, 128, 32):
                for stages in (3, 2):
                    try:
                        instruction = kind.instruction(shape, opcode)
                        threadblock = (*plane, depth * 8 // instruction.a.bits)
                        yield Candidate(kind.operation(TileDescription(threadblock, stages, warps, instruction)))
                    except DescriptionError:
                        continue
