"""A convolution in the process that measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pycutlass import _core, device, reference
from pycutlass.operation.conv2d_support import products
from pycutlass.plan import Conv2dCandidate, Conv2dKind
from pycutlass.plan.conv_candidate import one_group
from pycutlass.plan.conv_launches import Conv2dLaunch
from pycutlass.plan.conv_problem import extents_of, with_images
from pycutlass.plan.readings import given_scalars
from pycutlass.tensor.device_array import DeviceArray
from pycutlass.tuning.tunable import Array, Launch, Part, Shapes

__all__ = ["Conv2dWork"]

_Operator = _core.ConvOperator
_IMAGES, _FILTERS = 1, 8  # of D that are checked, where the whole would take the host too long


@dataclass(frozen=True)
class Conv2dWork:
    """What is measured of a convolution.

    Attributes
    ----------
    kind : Conv2dKind
        What is computed.
    problem : cutlass.conv.Conv2dProblemSize
        The problem.
    """

    kind: Conv2dKind
    problem: _core.Conv2dProblemSize

    @property
    def shapes(self) -> Sequence[Shapes]:
        """One product, of operands as (N, H, W, C)."""
        return [Shapes(*extents_of(self.kind.direction, self.problem))]

    def launcher(self, candidate: Conv2dCandidate, a: Sequence[int], b: Sequence[int], d: Sequence[int]) -> Launch:
        """Return a function that launches all kernels of a candidate, as plans launch them."""
        types = self.kind.A.type, self.kind.B.type, self.kind.D.type
        A, B, D = (
            DeviceArray(addresses[0], of.dtype_name, shape, ordinal=device.current())
            for addresses, of, shape in zip((a, b, d), types, self.shapes[0], strict=True)
        )
        scalars = given_scalars(self.kind.epilogue, 1, 0, None)
        launch = Conv2dLaunch(candidate, self.problem, (A, B, None, D), scalars, {})
        return lambda: launch.run(None)

    def part(self, candidate: Conv2dCandidate, number: int, a: Array, b: Array, share: float) -> Part:
        """Return what is right in some images, or in some filters where the gradient of filters is computed."""
        math = candidate.operation.tile_description.math_instruction
        a, b = (reference.multiplied(each, math).astype(np.float64) for each in (a, b))
        if self.kind.direction is _Operator.wgrad:
            filters = _spread(self.problem.K, max(_FILTERS, int(self.problem.K * share)))
            return Part((filters,), self._gradient_of(filters, a, b))
        images = _spread(len(a), max(_IMAGES, int(len(a) * share)))
        return Part((images,), np.concatenate([self._image(a[image : image + 1], b) for image in images]))

    def tolerance(self, candidate: Conv2dCandidate, number: int) -> tuple[float, float]:
        """Return the relative and the absolute error that a right kernel may have."""
        slices = 1 if candidate.is_parallel else candidate.split_k_slices
        depth = products(candidate.operation, self.problem)
        return reference.tolerance(candidate.operation, depth, slices=slices)

    def _image(self, a: Array, b: Array) -> Array:
        """Return one image of the result, group by group: one at a time, since products are gathered in memory."""
        one = one_group(with_images(self.problem, 1))
        groups = self.problem.groups
        parts = []
        for of_a, of_b in zip(np.split(a, groups, axis=3), np.split(b, groups, axis=0), strict=True):
            rows, columns = reference.implicit_gemm(self.kind.direction, one, of_a, of_b)
            parts.append((rows @ columns).reshape(1, *extents_of(self.kind.direction, one)[2][1:]))
        return np.concatenate(parts, axis=3)

    def _gradient_of(self, filters: Array, a: Array, b: Array) -> Array:
        """Return the gradient of some filters: the sum over the images, one at a time."""
        p, one = self.problem, one_group(with_images(self.problem, 1))
        in_group = p.K // p.groups
        parts = []
        for group, activation in enumerate(np.split(b, p.groups, axis=3)):
            chosen = filters[filters // in_group == group]
            one.K = len(chosen)
            total = np.zeros((len(chosen), p.R, p.S, p.C // p.groups))
            for image in range(p.N if len(chosen) else 0):
                gradient = a[image : image + 1, ..., chosen]
                rows, columns = reference.implicit_gemm(
                    self.kind.direction, one, gradient, activation[image : image + 1]
                )
                total += (rows @ columns).reshape(total.shape)
            parts.append(total)
        return np.concatenate(parts)


def _spread(count: int, most: int) -> Array:
    """Return at most so many numbers below `count`, from the first to the last."""
    return np.arange(count) if most >= count else np.unique(np.linspace(0, count - 1, most).astype(int))
