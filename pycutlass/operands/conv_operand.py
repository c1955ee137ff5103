"""What a tensor is to be in a convolution."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pycutlass import _core
from pycutlass.library import TensorDescription
from pycutlass.operands.operand import Matrix
from pycutlass.operands.refusals import rule_of
from pycutlass.tensor import TensorView

__all__ = ["ConvOperand", "Extent"]

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
        of_torch = view.library == "torch"
        ld, step, broken = self.rule.check(view.pointer, view.shape, view.strides, self.extent, of_torch)
        return replace(self._matrix(view), ld=ld, batch_stride=step), broken

    def _matrix(self, view: TensorView) -> Matrix:
        """Return the matrix of pixels by channels; groups of channels are a batch of interleaved matrices."""
        n, h, w, c = self.extent
        if self.description.layout is _core.TensorNC32HW32:
            return Matrix(self.name, self.description, view, h * w, c, 0, n)
        return Matrix(self.name, self.description, view, n * h * w, c, 0)
