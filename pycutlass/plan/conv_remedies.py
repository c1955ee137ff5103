"""Why no kernel takes a convolution, and what to change about it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from pycutlass import _core
from pycutlass.epilogue import LinearCombinationGeneric
from pycutlass.families import Family
from pycutlass.plan.conv_candidate import Conv2dCandidate
from pycutlass.plan.conv_candidates import conv2d_candidates
from pycutlass.plan.conv_kind import Conv2dKind
from pycutlass.plan.kinds import why_unwritten
from pycutlass.plan.predicted import Predicted
from pycutlass.types import element

__all__ = ["why_none"]

_Operator = _core.ConvOperator
_STEPS = (1, 2, 4, 8, 16)  # elements that channels may be multiples of


def why_none(
    predicted: Predicted[Conv2dCandidate], kind: Conv2dKind, problem: _core.Conv2dProblemSize, capability: int
) -> str:
    """Return why no kernel takes the problem, and what to change."""
    what = f"{kind.direction.name} of {problem!r}"
    strides, dilations = (problem.stride_h, problem.stride_w), (problem.dilation_h, problem.dilation_w)
    if kind.direction is _Operator.dgrad and max(strides) > 1 and max(dilations) > 1:
        return (
            f"no kernel computes the gradient of the input of a convolution with stride={strides} and "
            f"dilation={dilations}, both above 1: put stride - 1 zeros between the pixels of grad, and pass stride=1"
        )
    if kind.direction is _Operator.dgrad and max(strides) > 1 and kind.epilogue.is_tree:
        return (
            f"the gradient of the input of a convolution with stride={strides} takes no epilogue function, nor c and a "
            f"bias together: kernels write its pixels in another order. Add the bias to c beforehand, and give the sum "
            f"as c; in place of a function use an activation, or a kernel of its own for what the function computes"
        )
    nearest = _more_aligned(kind, problem, capability)
    if nearest:
        return f"no kernel takes {what} with operands aligned to so few elements: {nearest}"
    if not predicted.candidates:
        return f"there is no kernel for convolutions of this kind{_remedy(kind)}. The kind is {kind}"
    return f"no kernel takes {what}; the nearest lack: {predicted.lacking()}"


def _more_aligned(kind: Conv2dKind, problem: _core.Conv2dProblemSize, capability: int) -> str:
    """Return how operands come to be aligned to as many elements as a kernel needs; nothing where that does not help.

    The fewest channels that have to be added are named.
    """
    if kind.loads_singly:
        return ""
    steps = [step for step in _STEPS if step <= 128 // kind.A.type.bits]
    for of_c, of_k in sorted(itertools.product(steps, steps), key=lambda each: (max(each), each)):
        size = problem.reset_split_k_slices(1)
        size.C, size.K = _up(problem.C, of_c * problem.groups), _up(problem.K, of_k * problem.groups)
        of_a = of_c if kind.direction is _Operator.fprop else of_k
        A, B = replace(kind.A, alignment=max(kind.A.alignment, of_a)), kind.B
        aligned = replace(kind, A=A, B=replace(B, alignment=max(B.alignment, of_c)))
        if aligned == kind or not any(each.supports(size) for each in conv2d_candidates(aligned, capability)):
            continue
        counts = (("C", problem.C, size.C), ("K", problem.K, size.K))
        if to := _padded(counts, problem.groups):
            return to
        return "pass packed copies of them, since their addresses or pixels are less aligned than their channels"
    return ""


def _padded(counts: tuple[tuple[str, int, int], ...], groups: int) -> str:
    """Return which channels to pad, by their names, numbers and what they have to be; of groups those of each."""
    of_each = " / groups" if groups > 1 else ""
    few = [f"{axis}{of_each}={count // groups} to {to // groups}" for axis, count, to in counts if count != to]
    if not few:
        return ""
    padded = f"pad {' and '.join(few)} with zeros"
    if groups == 1:
        return padded
    return (
        f"{padded} in each of the {groups} groups, behind its own channels, and take the own channels of each group of "
        f"the result"
    )


def _up(count: int, step: int) -> int:
    return math.ceil(count / step) * step


def _remedy(kind: Conv2dKind) -> str:
    """Return what to change about a kind of convolution that there are no kernels for."""
    if kind.A.type.is_integer and (kind.A.type.short != "s8" or kind.B.type.short != "s8"):
        return ". Of integers, kernels take int8 alone: convert x and w to int8"
    if kind.A.type.is_integer and kind.direction is not _Operator.fprop:
        return ". Convolutions of int8 are fprop: convert the operands to float16 for gradients"
    if kind.A.type.is_float8:
        return ". Floats of 8 bits are not convolved: convert the operands to float16 or bfloat16"
    if kind.is_full_f32 and kind.epilogue.is_tree and not kind.epilogue.takes_simt:
        return ". Trees of visitors of float32 need tensor cores: pass precision='3xtf32' or 'tf32'"
    if reason := kind.epilogue.why_not(Family.AMPERE_CONV):
        return f". {reason}"
    writes_bytes = not isinstance(kind.epilogue, LinearCombinationGeneric)
    accumulator, out = element(kind.element_accumulator), kind.C.type
    if reason := why_unwritten(kind.A.type, accumulator, out, of_integers=writes_bytes):
        of_activation = "" if writes_bytes or not out.is_integer else ", or the activation in an epilogue function"
        return f"{reason}{of_activation}"
    if kind.is_grouped and kind.epilogue.is_tree:
        return (
            ". Results that epilogue functions make of all channels are for one group of them: leave them to another "
            "kernel, or convolve group by group"
        )
    return ""
