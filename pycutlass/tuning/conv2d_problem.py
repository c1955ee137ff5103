"""A convolution that is tuned: a kind with its problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycutlass import _core
from pycutlass.calls import public, shown
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan import Conv2dCandidate, Conv2dKind, Ranked, conv2d_pick, conv2d_ranking
from pycutlass.plan.conv_problem import with_images
from pycutlass.plan.records import conv2d_record
from pycutlass.tuning.conv2d_work import Conv2dWork
from pycutlass.tuning.tunable import Tunable, check_kind

__all__ = ["Conv2dProblem"]


@public
@dataclass(frozen=True)
class Conv2dProblem(Tunable):
    """A convolution to be tuned.

    Parameters
    ----------
    kind : Conv2dKind
        Direction, types, alignments and epilogue: a functor or a function. What it reads is drawn.
    problem_size : cutlass.conv.Conv2dProblemSize
        Its extents, padding, stride and dilation. Slices of split-K do not count: they are chosen.
    source : str, optional
        The C that a functor reads, as of `Problem`; a bias has an element for each channel.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A problem without elements, or something else than described.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import Conv2dKind
    >>> from pycutlass.tuning import Conv2dProblem
    >>> f16, f32, conv = cutlass.float16, cutlass.float32, cutlass.conv
    >>> nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> math = pycutlass.MathOperation.multiply_add
    >>> kind = Conv2dKind(conv.Operator.fprop, nhwc, nhwc, nhwc, f16, f16, f32, math, functor)
    >>> size = conv.Conv2dProblemSize(N=32, H=56, W=56, C=64, K=128, R=3, S=3, pad_h=1, pad_w=1)
    >>> Conv2dProblem(kind, size).name
    'fprop 32x56x56x64 by 128 of 3x3, padding 1, f16 x f16 -> f16'
    """

    kind: Conv2dKind
    problem_size: _core.Conv2dProblemSize
    source: str | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind, Conv2dKind, self.source)
        if self.source == "bias" and self.kind.direction is _core.ConvOperator.wgrad:
            raise ArgumentError(
                "source='bias' has an element for each channel, and a gradient of filters takes none: use 'matrix'"
            )
        if not isinstance(self.problem_size, _core.Conv2dProblemSize):
            raise ArgumentTypeError(
                f"problem_size must be a cutlass.conv.Conv2dProblemSize, got {shown(self.problem_size)}"
            )
        own = with_images(self.problem_size, self.problem_size.N)  # others may change theirs
        object.__setattr__(self, "problem_size", own)
        if min(math.prod(shape) for shape in self.work().shapes[0]) < 1:
            raise ArgumentError(f"{self.problem_size!r} has an operand without elements: there is nothing to measure")

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        p = self.problem_size
        return 2.0 * p.N * p.P * p.Q * p.K * p.R * p.S * (p.C // p.groups)

    def record(self) -> dict[str, Any]:
        """Return what the database calls it."""
        return conv2d_record(self.kind, self.problem_size, self.source)

    def ranked(self, gpu: Device) -> Sequence[Ranked[Conv2dCandidate]]:
        """Return all candidates that take it, the likely fastest first."""
        return conv2d_ranking(self.kind, self.problem_size, gpu)

    def picked(self, gpu: Device) -> Conv2dCandidate:
        """Return the likely fastest candidate, or raise ArgumentError with what the nearest ones lack."""
        return conv2d_pick(self.kind, self.problem_size, gpu)

    def work(self) -> Conv2dWork:
        """Return what measures it."""
        return Conv2dWork(self.kind, self.problem_size)

    def __hash__(self) -> int:
        return hash((self.kind, repr(self.problem_size), self.source))  # which has none of its own
