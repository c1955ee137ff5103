"""Random descriptions of kernels, of every family that there is.

Drawn through the public constructors: what they refuse is drawn again, so that the fuzz follows the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pycutlass.errors import DescriptionError
from tools.fuzz import conv_kernels, gemm_kernels

__all__ = ["FAMILIES", "ExhaustedError", "Kernel", "draw_kernel"]

#: How often a family is drawn, and how. A Hopper-native kernel takes five times as long to compile as others.
FAMILIES: dict[str, tuple[float, Callable[[Random], Any]]] = {
    "gemm f16 bf16": (20, gemm_kernels.half),
    "gemm tf32": (6, gemm_kernels.tf32),
    "gemm f32": (8, gemm_kernels.f32),
    "gemm f64": (5, gemm_kernels.f64),
    "gemm int8": (8, gemm_kernels.int8),
    "gemm int8 interleaved": (2, gemm_kernels.interleaved),
    "gemm mixed": (9, gemm_kernels.mixed),
    "gemm simt": (7, gemm_kernels.simt),
    "gemm dp4a": (3, gemm_kernels.dp4a),
    "gemm turing": (3, gemm_kernels.turing),
    "gemm stream-k": (4, gemm_kernels.stream_k),
    "gemm hopper": (9, gemm_kernels.hopper),
    "gemm gemv": (6, gemm_kernels.gemv),
    "grouped": (7, gemm_kernels.grouped),
    "grouped hopper": (3, gemm_kernels.grouped_hopper),
    "fprop": (7, conv_kernels.fprop),
    "fprop groups": (3, conv_kernels.fprop_groups),
    "fprop int8": (3, conv_kernels.fprop_int8),
    "dgrad": (6, conv_kernels.dgrad),
    "wgrad": (6, conv_kernels.wgrad),
}
_MOST_DRAWS = 20_000
#: Kernels that take a reduction along, which makes three of one: what is split, its partial sums, the reduction.
_WITH_REDUCTION = 0.12


class ExhaustedError(Exception):
    """Every description of a family was refused."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of the fuzz.

    Attributes
    ----------
    seed, index : int
        What it was drawn from.
    family : str
        A key of `FAMILIES`.
    operation, reduction : Operation
        What is launched; the reduction is there where sums may be split in parallel.
    refused : int
        Descriptions that were refused before this one.
    """

    seed: int
    index: int
    family: str
    operation: Any
    reduction: Any
    refused: int

    @property
    def operations(self) -> list[Any]:
        """What has to be compiled."""
        return [self.operation] if self.reduction is None else [self.operation, self.reduction]

    @property
    def name(self) -> str:
        """What no other kernel has."""
        return "+".join(operation.procedural_name() for operation in self.operations)


def draw_kernel(seed: int, index: int, families: Sequence[str] = ()) -> Kernel:
    """Return kernel `index` of `seed`: the same one always, as long as the rules are; of some `families` alone.

    Raises
    ------
    ExhaustedError
        All descriptions were refused.
    """
    random = Random(f"{seed}:{index}")
    names = families or list(FAMILIES)
    (family,) = random.choices(names, [FAMILIES[name][0] for name in names])
    _, draw = FAMILIES[family]
    for refused in range(_MOST_DRAWS):
        try:
            operation = draw(random)
        except DescriptionError:
            continue
        return Kernel(seed, index, family, operation, _reduction(random, operation), refused)
    raise ExhaustedError(f"{family}: {_MOST_DRAWS} descriptions in a row were refused")


def _reduction(random: Random, operation: Any) -> Any:
    """Return what ends a parallel split-K, for some of the operations that can be split so."""
    splits = getattr(operation, "splits_in_parallel", False) or getattr(operation, "splits_k", False)
    if not splits or operation.A.order.interleave > 1 or random.random() > _WITH_REDUCTION:
        return None
    for _ in range(20):
        try:
            assert operation.partial  # raises where the accumulator's type cannot be written
            return gemm_kernels.reduction(random, operation)
        except DescriptionError:
            continue
    return None
