"""What a region is: a product of a model with what follows it, which one kernel computes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from torch.utils._sympy import functions

from pycutlass.epilogue import EpilogueFunction
from pycutlass.errors import ArgumentError
from pycutlass.spec import TensorSpec

__all__ = [
    "Extent",
    "Problem",
    "Region",
    "RegionInput",
    "RegionOutput",
    "TensorForm",
    "computed",
    "evaluated",
    "followers",
    "short_name",
]

_NORM = re.compile(r"^(_native_batch_norm_legit_no_training|native_batch_norm|cudnn_batch_norm)(?=_\d+$|$)")

#: An extent: a number, or an expression of symbols, such as ``"s27"`` or ``"64*s27"``.
Extent = int | str


@dataclass(frozen=True)
class TensorForm:
    """How a tensor of a product looks.

    Attributes
    ----------
    dtype : str
        Type of its elements, as torch calls it: ``"float16"``.
    shape : tuple of int or str
        Extents, of which some may be symbols.
    order : tuple of int
        Its axes, from the one with the largest steps to the one whose elements are adjacent: (0, 1) of a matrix that
        lies row by row, (1, 0) of one by columns, (0, 2, 3, 1) of images in the memory format channels_last.
    alignment : int
        How many elements a kernel can load at once, at most, by the extents that are known.
    """

    dtype: str
    shape: tuple[Extent, ...]
    order: tuple[int, ...]
    alignment: int

    def spec(self, **symbols: int) -> TensorSpec:
        """Return the tensor without memory, packed in its order, with numbers for symbols.

        Raises
        ------
        ArgumentError
            A symbol that has no number.
        """
        shape = tuple(evaluated(each, symbols) for each in self.shape)
        strides, step = [0] * len(shape), 1
        for axis in reversed(self.order):
            strides[axis], step = step, step * max(1, shape[axis])
        return TensorSpec(shape, self.dtype, tuple(strides))


@dataclass(frozen=True)
class Problem:
    """The product of a region: D = epilogue(A x B), or of images and filters.

    Attributes
    ----------
    kind : str
        ``"mm"``, ``"bmm"``, ``"conv2d"`` or ``"grouped"``.
    a, b, d : TensorForm
        Of (M, K), (K, N) and (M, N); of "bmm" with the batch before; of "conv2d" (N, C, H, W), (K, C / groups, R, S)
        and (N, K, P, Q); of "grouped" (M, K), (groups, K, N) and (M, N), of rows that are divided.
    stride, padding, dilation : tuple of 2 int
        Of a convolution.
    groups : int
        Of a convolution.
    ranges : mapping
        For each symbol its least and its greatest number, None where there is none.
    """

    kind: str
    a: TensorForm
    b: TensorForm
    d: TensorForm
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    ranges: tuple[tuple[str, int, int | None], ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of what the extents depend on."""
        return tuple(name for name, _, _ in self.ranges)

    @property
    def size(self) -> tuple[Extent, Extent, Extent]:
        """M, N and K of a matrix product, of groups with the M of all together."""
        return self.a.shape[-2], self.b.shape[-1], self.a.shape[-1]

    def bound(self, **symbols: int) -> Problem:
        """Return the problem with numbers for all symbols.

        Raises
        ------
        ArgumentError
            A symbol without a number.
        """

        def fixed(form: TensorForm) -> TensorForm:
            return replace(form, shape=tuple(evaluated(each, symbols) for each in form.shape))

        return replace(self, a=fixed(self.a), b=fixed(self.b), d=fixed(self.d), ranges=())

    def __str__(self) -> str:
        """Return the extents and the types."""
        if self.kind == "conv2d":
            shapes = " * ".join("x".join(map(str, form.shape)) for form in (self.a, self.b))
            return f"{shapes} {self.a.dtype}"
        batch = f"{self.a.shape[0]} of " if self.kind == "bmm" else ""
        groups = f" in {self.b.shape[0]} groups" if self.kind == "grouped" else ""
        return f"{batch}{'x'.join(map(str, self.size))} {self.a.dtype}{groups}"


@dataclass(frozen=True)
class RegionInput:
    """A tensor or a number that the epilogue of a region takes beside the product.

    Attributes
    ----------
    name : str
        Of the function's parameter.
    form : str
        ``"row"``, ``"column"``, ``"matrix"``, ``"number"`` (one in memory for each matrix) or ``"scalar"``.
    node : str
        Where it comes from in the graph of the model.
    dtype : str
        As torch calls it; of a scalar ``"float64"``.
    shape : tuple of int or str
        As the kernel takes it.
    """

    name: str
    form: str
    node: str
    dtype: str
    shape: tuple[Extent, ...]


@dataclass(frozen=True)
class RegionOutput:
    """What a region writes.

    Attributes
    ----------
    name : str
        Of the function's output: ``"D"``, or that of another one.
    node : str
        The node of the model's graph that it stands for.
    dtype : str
        As torch calls it.
    shape : tuple of int or str
        As the model has it.
    """

    name: str
    node: str
    dtype: str
    shape: tuple[Extent, ...]


@dataclass(frozen=True)
class Region:
    """A product of a model with what follows it.

    Attributes
    ----------
    name : str
        Of the submodule that computes it, ``"pycutlass_0"``.
    kind : str
        ``"mm"``, ``"bmm"``, ``"conv2d"`` or ``"grouped"``.
    product : str
        The product's node in the graph of the model.
    fused : tuple of str
        The other nodes that the kernel computes, in their order.
    function : EpilogueFunction
        What happens to the product.
    problem : Problem
        What is multiplied.
    inputs : tuple of RegionInput
        What the function takes beside the product, in the order of its parameters.
    outputs : tuple of RegionOutput
        What is written, D first.
    source : str
        Where the product stands in the model's source: ``'file.py", line 3, in forward'`` and the line; "" if unknown.
    gain : float or None
        Which share of the time of torch's operators is predicted to be saved; None where nothing was predicted.
    is_measured : bool
        Whether a database has the time of the region, which `gain` is then of.
    handle : str
        The function with the types of its outputs, as the region's operator takes it.
    """

    name: str
    kind: str
    product: str
    fused: tuple[str, ...]
    function: EpilogueFunction
    problem: Problem
    inputs: tuple[RegionInput, ...]
    outputs: tuple[RegionOutput, ...]
    source: str = ""
    gain: float | None = None
    handle: str = field(default="", repr=False)
    is_measured: bool = False

    @property
    def gain_from(self) -> str:
        """What `gain` comes from, for tables."""
        return "as measured" if self.is_measured else "by prediction"

    def __str__(self) -> str:
        """Return a line: what is computed, and of what size."""
        gain = "" if self.gain is None else f", {self.gain:.0%} faster {self.gain_from}"
        return f"{self.name}: {computed(self)}, {self.problem}{gain}"


def followers(region: Region) -> list[str]:
    """Return what a region computes behind its product, without nodes that only take one of several results."""
    return [name for name in region.fused if not name.startswith("getitem")]


def computed(region: Region) -> str:
    """Return what a region computes, in a line."""
    return " + ".join(map(short_name, (region.product, *followers(region))))


def short_name(name: str) -> str:
    """Return the name of a node, of a batch norm as people call it."""
    return _NORM.sub("batch_norm", name)


def evaluated(extent: Extent, symbols: Mapping[str, int]) -> int:
    """Return the number that an extent is, with numbers for its symbols.

    Raises
    ------
    ArgumentError
        A symbol without a number.
    """
    if isinstance(extent, int):
        return extent
    expression = _expression(extent)
    absent = sorted(str(each) for each in expression.free_symbols if str(each) not in symbols)
    if absent:
        raise ArgumentError(f"the extent {extent} needs a number for {', '.join(absent)}: pass {absent[0]}=...")
    return int(expression.subs({each: symbols[str(each)] for each in expression.free_symbols}))


def _expression(text: str) -> Any:
    """Return an extent as torch's symbolic shapes have it."""
    known = {each.__name__: each for each in (functions.FloorDiv, functions.Mod, functions.PythonMod)}
    return import_module("sympy").sympify(text, locals=known)  # torch brings it along
