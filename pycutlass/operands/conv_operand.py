"""What a tensor is to be in a convolution."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pycutlass import _core
from pycutlass.library import TensorDescription
from pycutlass.operands.operand import Matrix
from pycutlass.operands.refusals import rule_of
from pycutlass.tensor import TensorView

__all__ = ["ConvOperand", "Extent", "is_ambiguous"]

Extent = tuple[int, int, int, int]


@dataclass(frozen=True)
class ConvOperand:
    """An operand of a convolution, before it has a tensor.

    Attributes
    ----------
    name : str
        A, B, C or D.
    role : str
        What users call it: activation, filter, output, ...
    description : TensorDescription
        Its element type, layout and alignment.
    extent : tuple of 4 int
        (N, H, W, C), or (K, R, S, C) of a filter.
    byte_limit : int
        What it must span less than.
    packed : bool
        Whether the kernel takes no gaps between pixels.
    or_bias : str
        What messages say of a bias in its place.
    """

    name: str
    role: str
    description: TensorDescription
    extent: Extent
    byte_limit: int
    packed: bool
    or_bias: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in memory."""
        n, h, w, c = self.extent
        if self.description.layout is _core.TensorNC32HW32:
            return (n, c // 32, h, w, 32)
        return (c // 32, h, w, n, 32) if self.description.layout is _core.TensorC32RSK32 else self.extent

    @property
    def rule(self) -> _core.ConvRule:
        """What decides whether a tensor fits."""
        layout = _core.ConvLayout[self.description.order.name]
        return _core.ConvRule(rule_of(self.description), layout, self.byte_limit, self.packed)

    def check(self, view: TensorView) -> tuple[Matrix, str]:
        """Return a tensor as this operand, and the name of the rule that it breaks; an empty one where it fits."""
        shape, strides, of_torch = view.shape, view.strides, view.library == "torch"
        if not of_torch and is_ambiguous(self.extent) and shape == self.extent and strides is not None:
            # In either order: it is (N, H, W, C), and the rule keeps to one order where that is torch's.
            shape, strides, of_torch = _channels_first(shape), _channels_first(strides), True
        ld, step, broken = self.rule.check(view.pointer, shape, strides, self.extent, of_torch)
        return replace(self._matrix(view), ld=ld, batch_stride=step), broken

    def _matrix(self, view: TensorView) -> Matrix:
        """Return the matrix of pixels by channels; groups of channels are a batch of interleaved matrices."""
        n, h, w, c = self.extent
        if self.description.layout is _core.TensorNC32HW32:
            return Matrix(self.name, self.description, view, h * w, c, 0, n)
        return Matrix(self.name, self.description, view, n * h * w, c, 0)


def is_ambiguous(extent: Extent) -> bool:
    """Return whether (N, H, W, C) and (N, C, H, W) are the same numbers, so that strides alone tell them apart."""
    return extent[1] == extent[2] == extent[3]


def _channels_first(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return what there is for each axis of (N, H, W, C), as (N, C, H, W)."""
    n, h, w, c = axes
    return n, c, h, w
