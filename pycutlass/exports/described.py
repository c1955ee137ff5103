"""What a plan is to a program without Python: tensors, scalars, and which kernel is launched how for each M."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pycutlass.epilogue import Epilogue
from pycutlass.errors import ArgumentError
from pycutlass.operation import Operation
from pycutlass.types import Element

__all__ = ["EXTENT_M", "Described", "ExportedTensor", "Variant", "range_to"]

#: An extent that each launch chooses, as pycutlass/exports/c/library.h writes it.
EXTENT_M = -1


@dataclass(frozen=True)
class ExportedTensor:
    """A tensor of a plan.

    Attributes
    ----------
    name : str
        a, b, c, bias, out, or as the epilogue calls it.
    element : Element
        Its type.
    layout : str
        ``"rows"``, ``"columns"``, ``"line"`` or ``"pixels"``.
    extents : tuple of int
        Its shape, with `EXTENT_M` for M, or the number of images.
    written : bool
        Whether kernels write it.
    shared : bool
        Whether one of it may stand for all matrices of a batch.
    in_place : bool
        Whether it may be D itself.
    """

    name: str
    element: Element
    layout: str
    extents: tuple[int, ...]
    written: bool = False
    shared: bool = False
    in_place: bool = False

    def shape(self, m: int) -> tuple[int, ...]:
        """Return its shape for one M."""
        return tuple(m if extent == EXTENT_M else extent for extent in self.extents)


@dataclass(frozen=True)
class Variant:
    """The kernel for a range of M, and how it is launched, as pycutlass/exports/c/kernel.h has it.

    Attributes
    ----------
    least, most : int
        The range.
    operation, reduction : Operation
        The kernel, and what adds up partial sums, if anything does.
    mode, slices, max_swizzle, raster_order : int
        As its call record has them.
    is_pdl : bool
        Whether it may start while the kernel ahead of it ends.
    alignment : tuple of int
        Of each tensor, in elements.
    byte_limit : int
        What tensors must span less than; 0 sets no limit.
    m_step : int
        What M must be a multiple of.
    largest : int
        The largest M that the kernel takes.
    """

    least: int
    most: int
    operation: Operation
    reduction: Operation | None
    mode: int
    slices: int
    max_swizzle: int
    raster_order: int
    is_pdl: bool
    alignment: tuple[int, ...]
    byte_limit: int
    m_step: int
    largest: int
    sum_bytes: int

    @property
    def kernels(self) -> tuple[Operation, ...]:
        """What has to be compiled."""
        return (self.operation,) if self.reduction is None else (self.operation, self.reduction)


@dataclass(frozen=True)
class Described:
    """A plan, as it is exported.

    Attributes
    ----------
    name : str
        By which a library has it.
    what : str
        The problem in words.
    family : str
        ``"gemm"``, ``"fprop"``, ``"dgrad"`` or ``"wgrad"``.
    m : int
        The M that the plan was made with.
    n, k, batch : int
        Of a GEMM; `batch` is 0 without one.
    conv : tuple of int
        Of a convolution: what its record has from n to dilation_w, mode and groups.
    tensors : tuple of ExportedTensor
        In the order in which a launch takes them.
    roles : tuple of 4 int
        Which of them are A, B, C and D; -1 for none.
    first_port : int
        From there on they are the epilogue's.
    scalars : dict
        Of the epilogue, with their values.
    epilogue : Epilogue
        Between the sums and D.
    variants : tuple of Variant
        The ones for the least M first.
    """

    name: str
    what: str
    family: str
    m: int
    n: int
    k: int
    batch: int
    conv: tuple[int, ...]
    tensors: tuple[ExportedTensor, ...]
    roles: tuple[int, int, int, int]
    first_port: int
    scalars: dict[str, float]
    epilogue: Epilogue
    variants: tuple[Variant, ...]

    @property
    def target_tensor(self) -> ExportedTensor:
        """D."""
        return self.tensors[self.roles[3]]

    @property
    def by_rows(self) -> bool:
        """Whether rows of D are contiguous."""
        return self.target_tensor.layout != "columns"

    @cached_property
    def most_extent(self) -> int:
        """The largest M that any launch may have."""
        return min(variant.largest for variant in self.variants)

    @cached_property
    def kernels(self) -> tuple[Operation, ...]:
        """What has to be compiled, each once."""
        return tuple(dict.fromkeys(kernel for variant in self.variants for kernel in variant.kernels))

    def variant_of(self, m: int) -> Variant:
        """Return the variant for one M, as a library chooses it."""
        for variant in self.variants:
            if variant.least == variant.most == m:
                return variant
        return next((variant for variant in self.variants if m <= variant.most), self.variants[-1])

    def with_variant(self, m: int) -> Described:
        """Return the same with the one kernel for an M."""
        return replace(self, variants=(self.variant_of(m),), m=m)


def range_to(most: int) -> int:
    """Return the least M of the range that ends with `most`, as `pycutlass.plan.readings.range_of` makes ranges."""
    step = 1 << max(0, (most - 1).bit_length() - 4) if most > 1 else 1
    return most - step + 1


def checked_scalars(names: Iterable[str], values: Any) -> dict[str, float]:
    """Return the scalars of a launch by name, or raise ArgumentError for one in device memory."""
    scalars = {}
    for name, value, pointer in zip(names, values.values, values.pointers, strict=True):
        if pointer:
            raise ArgumentError(
                f"{name} is in device memory, whose address means nothing to another program: make the plan with a "
                f"number; a launch of a library may have an address in its place"
            )
        scalars[name] = float(value)
    return scalars


def check_extents(name: str, shapes: Sequence[tuple[int, ...]], ms: tuple[int, int]) -> tuple[int, ...]:
    """Return an extent for each dimension of a tensor, of its shapes for two M.

    Raises
    ------
    ArgumentError
        An extent follows from M in another way.
    """
    extents = []
    for first, second in zip(*shapes, strict=True):
        if first == second:
            extents.append(first)
        elif (first, second) == ms:
            extents.append(EXTENT_M)
        else:
            raise ArgumentError(
                f"{name} has {first} elements where M is {ms[0]} and {second} where it is {ms[1]}: a plan whose "
                f"epilogue writes results of tiles cannot be exported. Export one without {name}, or format='bundle'"
            )
    return tuple(extents)
