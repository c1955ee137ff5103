"""A convolution in the process that measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pycutlass import _core, reference
from pycutlass.epilogue import Port
from pycutlass.operands.epilogue import packed_port
from pycutlass.operation.conv2d_support import products
from pycutlass.plan import Conv2dCandidate, Conv2dKind
from pycutlass.plan.conv_candidate import one_group
from pycutlass.plan.conv_launches import Conv2dLaunch
from pycutlass.plan.conv_problem import extents_of, with_images
from pycutlass.spec import TensorSpec
from pycutlass.tuning.gemm_work import spread
from pycutlass.tuning.tunable import Array, Launch, Operands, Part, Shapes, array_of

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
        of_a, of_b, of_d = extents_of(self.kind.direction, self.problem)
        return [Shapes(of_a, of_b, of_d, of_d)]

    def beside(self, port: Port, number: int) -> TensorSpec:
        """Return what a tensor of the epilogue is, packed: a matrix lies as D does."""
        if port.form == "matrix":
            return TensorSpec(self.shapes[0].d, port.tag)
        product = _core.implicit_gemm_problem_size(self.kind.direction, self.problem)
        return packed_port(port, product.m(), product.n(), 1, is_batched=False)

    def matrix(self, tensor: Array) -> Array:
        """Return a tensor of D's extents with a row for each pixel, or for each filter of a gradient of filters."""
        rows = tensor.shape[0] if self._is_wgrad else math.prod(tensor.shape[:3])
        return tensor.reshape(rows, -1)

    def launcher(self, candidate: Conv2dCandidate, operands: Operands) -> Launch:
        """Return a function that launches all kernels of a candidate, as plans launch them."""
        a, b, c, d = operands.of(0)
        shapes, types = self.shapes[0], (self.kind.A.type, self.kind.B.type, self.kind.D.type)
        A, B, D = (
            array_of(address, TensorSpec(shape, of.tag))
            for address, of, shape in zip((a, b, d), types, (shapes.a, shapes.b, shapes.d), strict=True)
        )
        launch = Conv2dLaunch(candidate, self.problem, (A, B, c, D), operands.scalars, operands.ports_of(0))
        return lambda: launch.run(None)

    def part(self, candidate: Conv2dCandidate, number: int, a: Array, b: Array, share: float) -> Part:
        """Return the sums of some images, or of some filters where the gradient of filters is computed."""
        math_instruction = candidate.operation.tile_description.math_instruction
        a, b = (reference.multiplied(each, math_instruction).astype(np.float64) for each in (a, b))
        if self._is_wgrad:
            filters = spread(self.problem.K, max(_FILTERS, int(self.problem.K * share)))
            rows = slice(None) if len(filters) == self.problem.K else filters
            return Part(rows, self.matrix(self._gradient_of(filters, a, b)))
        images = spread(len(a), max(_IMAGES, int(len(a) * share)))
        sums = self.matrix(np.concatenate([self._image(a[image : image + 1], b) for image in images]))
        pixels = len(sums) // len(images)
        rows = slice(None) if len(images) == len(a) else (images[:, None] * pixels + np.arange(pixels)).reshape(-1)
        return Part(rows, sums)

    def tolerance(self, candidate: Conv2dCandidate, number: int) -> tuple[float, float]:
        """Return the relative and the absolute error that a right kernel may have."""
        slices = 1 if candidate.is_parallel else candidate.split_k_slices
        depth = products(candidate.operation, self.problem)
        return reference.tolerance(candidate.operation, depth, slices=slices)

    @property
    def _is_wgrad(self) -> bool:
        return self.kind.direction is _Operator.wgrad

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
