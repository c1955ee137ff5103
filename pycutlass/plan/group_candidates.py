"""Which kernels are worth considering for groups of GEMMs of a kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from pycutlass.calls import public
from pycutlass.enums import SchedulerMode
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.families import SM90
from pycutlass.library import TileDescription
from pycutlass.operation import GemmOperationGrouped
from pycutlass.operation.base import MAX_UNBOUNDED_THREADS
from pycutlass.plan.alignments import kind_of_choice
from pycutlass.plan.candidate import tile_choice, tile_name, tile_of
from pycutlass.plan.candidates import ampere_tiles, checked_capability, native_tiles
from pycutlass.plan.kind import GemmKind

__all__ = ["GroupCandidate", "group_candidates"]


@public
@dataclass(frozen=True)
class GroupCandidate:
    """A kernel of groups.

    Parameters
    ----------
    operation : GemmOperationGrouped
        The kernel.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import GemmKind, GroupCandidate, group_candidates
    >>> f16, f32 = cutlass.float16, cutlass.float32
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> kind = GemmKind(row, row, row, row, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)
    >>> candidate = group_candidates(kind, 80)[1]
    >>> candidate.name
    'Ampere-style 256x128x32, 4 stages, 4x2x1 warps, schedule by the host'
    >>> GroupCandidate.of(kind, candidate.choice()) == candidate
    True
    """

    operation: GemmOperationGrouped

    @cached_property
    def name(self) -> str:
        """How tables call it."""
        by_host = self.operation.precompute_mode is SchedulerMode.Host
        return f"{tile_name(self.operation.single)}{', schedule by the host' if by_host else ''}"

    @property
    def kernels(self) -> tuple[GemmOperationGrouped, ...]:
        """What has to be compiled for it."""
        return (self.operation,)

    @property
    def split_k_slices(self) -> int:
        """1: kernels of groups do not divide K."""
        return 1

    def choice(self) -> dict[str, Any]:
        """Return what is chosen beside the kind of GEMM, in JSON's types, in a fixed order."""
        operation = self.operation
        return {**tile_choice(operation.tile_description), "precompute_mode": operation.precompute_mode.name}

    @classmethod
    def of(cls, kind: GemmKind, choice: Mapping[str, Any]) -> GroupCandidate:
        """Return the candidate for a kind of GEMM that `choice` describes.

        Raises
        ------
        ArgumentError
            `choice` is none that `choice()` returns.
        DescriptionError
            There is no such kernel for this kind of GEMM.
        """
        try:
            kind = kind_of_choice(kind, choice)
            return cls(kind.group(tile_of(kind, choice), SchedulerMode[choice["precompute_mode"]]))
        except (KeyError, AttributeError, TypeError) as error:
            raise ArgumentError(f"this is no choice of a kernel: {error}; got {dict(choice)}") from error


@public
@lru_cache(maxsize=64)  # as many as there are lists of candidates of GEMMs, and shorter
def group_candidates(kind: GemmKind, capability: int) -> tuple[GroupCandidate, ...]:
    """Return the candidates for groups of a kind of GEMM, in a fixed order.

    Each is a valid description. For compute capability 90 they are Hopper-native kernels where there are any for the
    kind, else Ampere-style ones, with either scheduler; for any other Ampere-style ones.

    Parameters
    ----------
    kind : GemmKind
        What each problem is.
    capability : int
        Compute capability of the GPU: 80 or more.

    Returns
    -------
    tuple of GroupCandidate
        None where no kernel computes groups of this kind.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An earlier GPU, or another kind of argument.
    """
    if not isinstance(kind, GemmKind):
        raise ArgumentTypeError(f"kind must be a GemmKind, got {type(kind).__name__}")
    known = checked_capability(capability)
    if kind.C != kind.D:  # which a group describes as one
        return ()
    native = tuple(_native(kind)) if known in SM90.shared_memory else ()
    return tuple(dict.fromkeys(native or _ampere(kind, known)))


def _native(kind: GemmKind) -> Iterator[GroupCandidate]:
    for tile in native_tiles(kind):
        yield from _made(kind, tile, SchedulerMode.Device)


def _ampere(kind: GemmKind, capability: int) -> Iterator[GroupCandidate]:
    for staged in ampere_tiles(kind, capability):
        for tile in staged:
            if not tile.math_instruction.is_tensor_op and tile.num_threads > MAX_UNBOUNDED_THREADS:
                continue  # of 512 threads each has too few registers beside what a group needs: they spill
            for mode in (SchedulerMode.Device, SchedulerMode.Host):
                yield from _made(kind, tile, mode)


def _made(kind: GemmKind, tile: TileDescription, mode: SchedulerMode) -> Iterator[GroupCandidate]:
    """Yield the kernel, unless the parts make none."""
    try:
        yield GroupCandidate(kind.group(tile, mode))
    except DescriptionError:
        return
