"""What was measured of kernels of CUDA cores, which operands lie along K, and what loading single elements costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pycutlass import _core
from pycutlass.plan.conv_kind import Conv2dKind
from pycutlass.plan.features import Features, Floats
from pycutlass.plan.kind import GemmKind

__all__ = ["SimtShares", "loads_of_depth", "loads_words", "operands_along_k", "turns_words"]

#: Of the convolutions: activations and filters of a forward pass both have channels side by side, which are its K.
_OF_CONVOLUTIONS = {_core.ConvOperator.fprop: 2, _core.ConvOperator.dgrad: 1, _core.ConvOperator.wgrad: 0}
_NO_LAYOUTS = (None, None, None)
_CP_ASYNC_BITS = 32
#: Sums of a thread beside which so many loads are as many again, and what loads of stream-K count.
_MANY_SUMS, _SPILLED_LOADS, _STREAM_K_LOADS = 128, 320.0, 1.4


@dataclass(frozen=True)
class SimtShares:
    """What kernels of CUDA cores reach: arrays in the order of the candidates, not a number where nothing is known.

    Attributes
    ----------
    share : array
        Of the multiply-adds that a multiprocessor can make, on one that is full.
    cycles : array
        That a k-tile takes at least, however few threadblocks there are.
    """

    share: Floats
    cycles: Floats

    @classmethod
    def of(cls, features: Features, along_k: int, table: Mapping[str, Sequence[Sequence[float] | None]]) -> SimtShares:
        """Return what a table has of candidates: by tile and stages, for 0, 1 and 2 operands along K."""
        known = [table.get(name, _NO_LAYOUTS)[along_k] or (np.nan, np.nan) for name in features.simt_tiles]
        share, cycles = np.array(known, np.float64).reshape(-1, 2).T
        return cls(share, cycles)


def operands_along_k(kind: GemmKind | Conv2dKind) -> int:
    """Return how many operands lie along K, elements of which kernels of CUDA cores turn around."""
    if isinstance(kind, Conv2dKind):
        return _OF_CONVOLUTIONS[kind.direction]
    return int(kind.A.is_row_major) + int(not kind.B.is_row_major)


def loads_words(kind: GemmKind | Conv2dKind) -> bool:
    """Return whether Hopper-native kernels load A of tf32 to registers, and B as it is: one operand lies along K."""
    return isinstance(kind, GemmKind) and kind.A.type.bits == 32 and operands_along_k(kind) == 1


def turns_words(kind: GemmKind | Conv2dKind) -> bool:
    """Return whether Hopper-native kernels turn a tile of tf32 around: neither operand lies along K."""
    return isinstance(kind, GemmKind) and kind.A.type.bits == 32 and operands_along_k(kind) == 0


def loads_of_depth(features: Features, kind: GemmKind | Conv2dKind) -> Floats:
    """Return how many elements each thread loads of a k-tile one by one: where accesses are below 4 bytes.

    Those go through registers, of which a thread waits for each. cp.async takes 4 bytes or more. Where sums leave few
    registers, or stream-K needs some, elements go through memory as well, and count as more. Of 117 times that were
    measured on an H100, 114 are within a factor of 1.3 of what is predicted so.
    """
    loads = np.zeros_like(features.rows)
    if isinstance(kind, Conv2dKind):  # none of which was measured so
        return loads
    of_a = np.where(features.is_transposed, features.columns, features.rows)
    of_b = np.where(features.is_transposed, features.rows, features.columns)
    for operand, extent in ((kind.A, of_a), (kind.B, of_b)):
        if operand.alignment * operand.type.bits < _CP_ASYNC_BITS:
            loads = loads + extent * features.depth / (operand.alignment * features.threads)
    sums = features.rows * features.columns / features.threads
    loads = loads * np.where(sums >= _MANY_SUMS, 1.0 + loads / _SPILLED_LOADS, 1.0)
    loads = loads * np.where(features.is_stream_k, _STREAM_K_LOADS, 1.0)
    return np.where(features.is_native | features.is_gemv, 0.0, loads)
