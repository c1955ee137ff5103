"""The likely fastest kernel for a convolution, without measuring.

A convolution is a matrix product whose operands are gathered on the fly, so the model of GEMMs predicts it, with what
its kernels do otherwise: they go through the taps of the filter one after the other, each of which begins a k-tile of
its own, and memory holds a pixel once, however many taps read it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from pycutlass import _core
from pycutlass.calls import public
from pycutlass.device import Device
from pycutlass.enums import GroupMode
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan.constants import Constants, constants_of
from pycutlass.plan.conv_candidate import Conv2dCandidate, one_group
from pycutlass.plan.conv_candidates import conv2d_candidates
from pycutlass.plan.conv_kind import Conv2dKind
from pycutlass.plan.conv_remedies import why_none
from pycutlass.plan.features import Floats
from pycutlass.plan.model import Model
from pycutlass.plan.pick import where_planned
from pycutlass.plan.predicted import Predicted, Ranked
from pycutlass.plan.prediction import Prediction
from pycutlass.plan.traffic import bytes_of_sum

__all__ = ["conv2d_fastest", "conv2d_pick", "conv2d_ranking", "conv2d_refused"]

_Operator, _Algorithm = _core.ConvOperator, _core.IteratorAlgorithm
#: How much longer a k-tile takes whose taps each thread looks up: the first layer of ResNet-50 took so much longer by
#: fixed_channels on an H200 (docs/gpu-results.md) than the model says without it.
_LOOKED_UP = 2.1


@public
def conv2d_ranking(
    kind: Conv2dKind, problem_size: _core.Conv2dProblemSize, gpu: Device | None = None
) -> tuple[Ranked[Conv2dCandidate], ...]:
    """Return all candidates that take a convolution, the likely fastest first.

    The analytic algorithm comes last: it is for what no other takes.

    Parameters
    ----------
    kind : Conv2dKind
        What is computed.
    problem_size : cutlass.conv.Conv2dProblemSize
        The problem. Its slices of split-K do not count: they are chosen.
    gpu : pycutlass.device.Device, optional
        Where, as of `ranking`.

    Returns
    -------
    tuple of Ranked
        Nothing where no kernel takes the problem.

    Raises
    ------
    ArgumentTypeError
        Something else than described.
    DeviceError
        There is no GPU, and nobody names one.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.device import Device
    >>> from pycutlass.plan import Conv2dKind, conv2d_ranking
    >>> f16, f32, conv = cutlass.float16, cutlass.float32, cutlass.conv
    >>> nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> math = pycutlass.MathOperation.multiply_add
    >>> kind = Conv2dKind(conv.Operator.fprop, nhwc, nhwc, nhwc, f16, f16, f32, math, functor)
    >>> size = conv.Conv2dProblemSize(N=32, H=56, W=56, C=64, K=64, R=3, S=3, pad_h=1, pad_w=1)
    >>> conv2d_ranking(kind, size, Device(0, "NVIDIA A100", 80, 108))[0].candidate.operation.iterator_algorithm.name
    'optimized'
    """
    predicted = _predicted(kind, problem_size, gpu)
    return tuple(predicted.ranked(place) for place in predicted.supported())


def conv2d_fastest(kind: Conv2dKind, problem_size: _core.Conv2dProblemSize, gpu: Device | None = None) -> float | None:
    """Return the microseconds of the likely fastest candidate for a problem; None where no kernel takes it."""
    predicted = _predicted(kind, problem_size, gpu)
    best = next(predicted.supported(), None)
    return None if best is None else predicted.ranked(best).microseconds


@public
def conv2d_pick(kind: Conv2dKind, problem_size: _core.Conv2dProblemSize, gpu: Device | None = None) -> Conv2dCandidate:
    """Return the likely fastest candidate for a convolution, the same in every process.

    Parameters
    ----------
    kind, problem_size, gpu
        As of `conv2d_ranking`.

    Raises
    ------
    ArgumentError
        No kernel takes the problem; the message says what the nearest ones lack.
    ArgumentTypeError, DeviceError
        As of `conv2d_ranking`.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.device import Device
    >>> from pycutlass.plan import Conv2dKind, conv2d_pick
    >>> f16, f32, conv = cutlass.float16, cutlass.float32, cutlass.conv
    >>> nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> math = pycutlass.MathOperation.multiply_add
    >>> kind = Conv2dKind(conv.Operator.wgrad, nhwc, nhwc, nhwc, f16, f16, f32, math, functor)
    >>> size = conv.Conv2dProblemSize(N=32, H=56, W=56, C=64, K=64, R=3, S=3, pad_h=1, pad_w=1)
    >>> conv2d_pick(kind, size, Device(0, "NVIDIA A100", 80, 108)).is_parallel
    True
    """
    predicted = _predicted(kind, problem_size, gpu)
    best = next(predicted.supported(), None)
    if best is None:
        raise ArgumentError(why_none(predicted, kind, problem_size, where_planned(gpu).compute_capability))
    return predicted.candidates[best]


def conv2d_refused(
    kind: Conv2dKind, problem_size: _core.Conv2dProblemSize, gpu: Device | None = None
) -> dict[str, list[str]]:
    """Return the names of candidates that do not take a problem, by the reason."""
    return _predicted(kind, problem_size, gpu).refused()


def _predicted(kind: Conv2dKind, problem: _core.Conv2dProblemSize, gpu: Device | None) -> Predicted[Conv2dCandidate]:
    """Return what the model says of all candidates."""
    if not isinstance(kind, Conv2dKind):
        raise ArgumentTypeError(f"kind must be a Conv2dKind, got {type(kind).__name__}")
    if not isinstance(problem, _core.Conv2dProblemSize):
        raise ArgumentTypeError(f"problem_size must be a cutlass.conv.Conv2dProblemSize, got {type(problem).__name__}")
    where = where_planned(gpu)
    found = conv2d_candidates(kind, where.compute_capability)
    is_last = np.array([_is_for_the_rest(each) for each in found], np.bool_)
    model = _model(kind, where.compute_capability, constants_of(where).when_queued)
    of_all = _prediction(_Problems(kind, found, model), problem)
    return Predicted(found, of_all, lambda each: each.supports(problem), is_last)


def _is_for_the_rest(candidate: Conv2dCandidate) -> bool:
    """Return whether a kernel is for what no other takes: the analytic algorithm, but for groups that only it has."""
    operation = candidate.operation
    return operation.iterator_algorithm is _Algorithm.analytic and operation.group_mode is None


@lru_cache(maxsize=64)  # as many as there are lists of candidates; each has a few arrays of their length
def _model(kind: Conv2dKind, capability: int, constants: Constants) -> Model:
    return Model(kind, conv2d_candidates(kind, capability), constants)


def _prediction(kernels: _Problems, problem: _core.Conv2dProblemSize) -> Prediction:
    """Return how long each takes; what is launched once for each group takes as many times as long."""
    whole = kernels.predict(problem)
    is_by_group = np.array([each.is_by_group for each in kernels.candidates], np.bool_)
    if problem.groups == 1 or not is_by_group.any():
        return whole
    single = kernels.predict(one_group(problem))
    terms = [field.name for field in fields(Prediction)]
    pairs = ((problem.groups * getattr(single, name), getattr(whole, name)) for name in terms)
    return Prediction(*(np.where(is_by_group, *pair) for pair in pairs))


@dataclass(frozen=True)
class _Problems:
    """The matrix products that convolutions are to each candidate of a kind."""

    kind: Conv2dKind
    candidates: tuple[Conv2dCandidate, ...]
    model: Model

    def predict(self, p: _core.Conv2dProblemSize) -> Prediction:
        """Return how long each takes for a problem in one launch."""
        outputs, taps = p.N * p.P * p.Q, max(1, p.R * p.S)
        moved = self._bytes(p)
        if self.kind.direction is _Operator.wgrad:
            return self._predict(p.K, p.R * p.S * p.C, max(1, outputs), moved)
        if self.kind.direction is _Operator.dgrad:
            # For strides above 1, pixels that the same taps reach are a product of their own.
            classes = p.stride_h * p.stride_w
            pixels = p.N * math.ceil(p.H / p.stride_h) * math.ceil(p.W / p.stride_w)
            taps = max(1, math.ceil(p.R / p.stride_h) * math.ceil(p.S / p.stride_w))
            k = np.array([taps * _channels(each, p.K) for each in self.candidates], np.float64)
            return self._predict(pixels, p.C, k, moved, classes)
        k = np.array([_depth(each, p, taps) for each in self.candidates], np.float64)
        return self._predict(outputs, p.K, k, moved)

    def _predict(
        self, m: int, n: int, k: int | Floats, moved: tuple[float, float, float], count: int = 1
    ) -> Prediction:
        a, b, d = (each / count for each in moved)
        return self.model.predict(max(1, m), max(1, n), k, count, (a, b, d))  # no elements take as long as one

    def _bytes(self, p: _core.Conv2dProblemSize) -> tuple[float, float, float]:
        """Return the bytes of A, B, and of D with what the epilogue moves beside it, as memory holds them."""
        kind = self.kind
        x, y = max(1, p.N * p.H * p.W * p.C), max(1, p.N * p.P * p.Q * p.K)
        w = max(1, p.K * p.R * p.S * (p.C // p.groups))
        a, b, d = {_Operator.fprop: (x, w, y), _Operator.dgrad: (y, w, x), _Operator.wgrad: (y, x, w)}[kind.direction]
        of_sum = bytes_of_sum(kind.epilogue, kind.C, kind.D)
        return a * kind.A.type.bits / 8, b * kind.B.type.bits / 8, d * of_sum


def _channels(candidate: Conv2dCandidate, channels: int) -> int:
    """Return how many channels a kernel multiplies for each tap: whole tiles in each slice."""
    depth, slices = candidate.operation.tile_description.threadblock_shape[2], candidate.split_k_slices
    return max(1, math.ceil(math.ceil(channels / slices) / depth)) * depth * slices


def _depth(candidate: Conv2dCandidate, p: _core.Conv2dProblemSize, taps: int) -> float:
    """Return the K that a kernel of fprop goes through (cutlass/conv/conv2d_problem_size.h)."""
    operation, depth = candidate.operation, candidate.operation.tile_description.threadblock_shape[2]
    if operation.iterator_algorithm is _Algorithm.few_channels:
        return _LOOKED_UP * math.ceil(max(1, taps * p.C) / depth) * depth
    if operation.iterator_algorithm is _Algorithm.fixed_channels:
        return _LOOKED_UP * math.ceil(taps / max(1, depth // max(1, p.C))) * depth
    deep: float = taps * _channels(candidate, p.C // p.groups)
    if operation.group_mode is GroupMode.MultipleGroup:  # the groups of a tile one after the other
        deep *= max(1, operation.tile_description.threadblock_shape[1] // max(1, p.K // p.groups))
    return deep
