"""A kernel with the options of its launch: everything that is chosen for a problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pycutlass import _core, cutlass
from pycutlass.calls import public
from pycutlass.enums import KernelSchedule, RasterOrder
from pycutlass.errors import ArgumentError
from pycutlass.families import AMPERE
from pycutlass.library import TileDescription
from pycutlass.operation import GemmOperationUniversal, GemmProblemSize, Operation, ReductionOperation
from pycutlass.operation.base import MAX_UNBOUNDED_THREADS
from pycutlass.plan.alignments import kind_of_choice
from pycutlass.plan.kind import GemmKind

__all__ = ["Candidate", "tile_choice", "tile_name", "tile_of"]

_Mode = _core.GemmMode


@public
@dataclass(frozen=True)
class Candidate:
    """A kernel with the options of its launch.

    Parameters
    ----------
    operation : GemmOperationUniversal
        The kernel.
    split_k_slices : int
        Into how many slices K is divided.
    is_parallel : bool
        Whether a second kernel adds up the partial sums of the slices.
    raster_order : RasterOrder
        In which order a Hopper-native kernel visits the tiles of D.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> from pycutlass.plan import Candidate, GemmKind
    >>> f16, f32 = cutlass.float16, cutlass.float32
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    >>> kind = GemmKind(row, row, row, row, f16, f16, f32, pycutlass.MathOperation.multiply_add, functor)
    >>> tile = pycutlass.TileDescription([128, 128, 32], 3, [2, 2, 1], kind.instruction([16, 8, 16]))
    >>> candidate = Candidate(kind.operation(tile), split_k_slices=2)
    >>> candidate.name
    'Ampere-style 128x128x32, 3 stages, 2x2x1 warps, swizzle 1, split-K 2'
    >>> Candidate.of(kind, candidate.choice()) == candidate
    True
    """

    operation: GemmOperationUniversal
    split_k_slices: int = 1
    is_parallel: bool = False
    raster_order: RasterOrder = RasterOrder.Heuristic

    @cached_property
    def name(self) -> str:
        """How tables call it."""
        tile, operation = self.operation.tile_description, self.operation
        parts = [tile_name(operation)]
        if operation.is_stream_k:
            parts.append("stream-K" if self.split_k_slices == 1 else f"stream-K, {self.split_k_slices} slices")
        else:
            is_batched = operation.swizzling_functor is _core.BatchedIdentitySwizzle
            swizzle = "batched swizzle" if is_batched else f"swizzle {operation.swizzle_size}"
            parts += [] if tile.is_gemv else [swizzle]
            kind = "parallel split-K" if self.is_parallel else "split-K"
            parts += [f"{kind} {self.split_k_slices}"] if self.split_k_slices > 1 else []
        if self.raster_order is not RasterOrder.Heuristic:
            parts.append(self.raster_order.name)
        return ", ".join(parts)

    @cached_property
    def reduction(self) -> ReductionOperation | None:
        """What adds up the partial sums; None where no other kernel does."""
        if not self.is_parallel:
            return None
        D, functor = self.operation.D, self.operation.epilogue_functor
        sums = self.operation.accumulator_type().tag
        shape, count = _core.MatrixCoord(4, 32 * D.alignment), D.alignment
        return ReductionOperation(shape, D, sums, epilogue_functor=functor, count=count)

    @property
    def kernels(self) -> tuple[Operation, ...]:
        """What has to be compiled for it."""
        return (self.operation,) if self.reduction is None else (self.operation.partial, self.reduction)

    @property
    def has_workspace(self) -> bool:
        """Whether a launch may need memory beside its operands: for partial sums, semaphores or reductions."""
        operation = self.operation
        return self.split_k_slices > 1 or operation.is_stream_k or operation.epilogue_functor.is_tree

    @property
    def is_transposed(self) -> bool:
        """Whether the kernel computes the transposed problem: Ampere-style ones write rows alone."""
        operation = self.operation
        return operation.swap_ab or (operation.family is AMPERE and not operation.C.is_row_major)

    @property
    def is_stream_k(self) -> bool:
        """Whether the kernel schedules by stream-K."""
        return self.operation.is_stream_k

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a threadblock."""
        operation = self.operation
        operands = operation.A, operation.B, operation.C, operation.D
        return operation.family.shared_bytes(operation.tile_description, *operands, epilogue=operation.epilogue_functor)

    @property
    def is_held(self) -> bool:
        """Whether the compiler is told of few threads, so that it holds them to few registers."""
        operation = self.operation
        return operation.is_bounded and operation.tile_description.num_threads <= MAX_UNBOUNDED_THREADS

    def size(self, m: int, n: int, k: int, batch: int | None = None) -> GemmProblemSize:
        """Return the problem of its launch: with a batch, in ``Mode.Batched``."""
        if batch is not None:
            return GemmProblemSize(m, n, k, _Mode.Batched, batch)
        mode = _Mode.GemmSplitKParallel if self.is_parallel else _Mode.Gemm
        return GemmProblemSize(m, n, k, mode, split_k_slices=self.split_k_slices)

    def choice(self) -> dict[str, Any]:
        """Return what is chosen beside the kind of GEMM, in JSON's types, in a fixed order."""
        return {
            **tile_choice(self.operation.tile_description),
            "swizzle": self.operation.swizzling_functor.__name__,
            "swap_ab": self.operation.swap_ab,
            "split_k_slices": self.split_k_slices,
            "parallel": self.is_parallel,
            "raster_order": self.raster_order.name,
        }

    @classmethod
    def of(cls, kind: GemmKind, choice: Mapping[str, Any]) -> Candidate:
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
            operation = kind.operation(tile_of(kind, choice), getattr(cutlass, choice["swizzle"]), choice["swap_ab"])
            raster = RasterOrder[choice["raster_order"]]
            return cls(operation, choice["split_k_slices"], choice["parallel"], raster)
        except (KeyError, AttributeError, TypeError) as error:
            raise ArgumentError(f"this is no choice of a kernel: {error}; got {dict(choice)}") from error


def tile_name(operation: GemmOperationUniversal) -> str:
    """Return how tables call the tile of a kernel."""
    tile = operation.tile_description
    shape = "x".join(map(str, tile.threadblock_shape))
    swapped = "swapped " if operation.swap_ab else ""
    if tile.is_sm90 and tile.cluster_shape is not None and tile.kernel_schedule is not None:
        cluster = "x".join(map(str, tile.cluster_shape[:2]))
        return f"{swapped}{tile.kernel_schedule.name} {shape}, cluster {cluster}"
    warps = "x".join(map(str, tile.warp_count or ()))
    if tile.is_gemv:
        return f"{swapped}Gemv {shape}, {warps} warps"
    return f"Ampere-style {shape}, {tile.stages} stages, {warps} warps"


def tile_choice(tile: TileDescription) -> dict[str, Any]:
    """Return a tile in JSON's types, without the types of elements, which a kind has."""
    schedule, math = tile.kernel_schedule, tile.math_instruction
    return {
        "threadblock": list(tile.threadblock_shape),
        "stages": tile.stages,
        "warps": None if tile.warp_count is None else list(tile.warp_count),
        "instruction": None if math.instruction_shape is None else list(math.instruction_shape),
        "opcode": math.opcode_class.name,
        "cluster": None if tile.cluster_shape is None else list(tile.cluster_shape),
        "schedule": None if schedule is None else schedule.name,
    }


def tile_of(kind: GemmKind, choice: Mapping[str, Any]) -> TileDescription:
    """Return the tile that `tile_choice` described.

    Raises
    ------
    DescriptionError
        There is no such tile for this kind of GEMM.
    AttributeError, KeyError, TypeError
        `choice` is none that `tile_choice` returns.
    """
    instruction = kind.instruction(choice["instruction"], _core.OpClass.__members__[choice["opcode"]])
    schedule = None if choice["schedule"] is None else KernelSchedule[choice["schedule"]]
    return TileDescription(
        choice["threadblock"], choice["stages"], choice["warps"], instruction, choice["cluster"], schedule
    )
