"""What the model reads of candidates, as arrays with an entry for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pycutlass.enums import KernelSchedule, MathOperation
from pycutlass.families import SHARED_MEMORY_LIMIT
from pycutlass.library import MathInstruction, TileDescription
from pycutlass.operation import Conv2dOperation, GemmOperationUniversal
from pycutlass.operation.base import MAX_UNBOUNDED_THREADS

__all__ = ["Bools", "Features", "Floats", "Modelled", "occupancy", "product_class", "simt_tile", "tile_class"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Registers of a multiprocessor, and those that a thread of an Ampere-style kernel needs beside its sums.
_REGISTERS, _BESIDE_SUMS = 65536, 72
_MOST_REGISTERS = 255  # of a thread
_BESIDE_HELD = 64  # the same of kernels of CUDA cores that are held to 128 (operation/base.py)
_THREADS = {86: 1536, 89: 1536}  # of a multiprocessor; others have 2048
_RESERVED = 1024  # bytes of shared memory that the driver takes of each threadblock
_BYTE_CLASSES = {"e4m3": "f8", "e5m2": "f8", "f16": "f16", "bf16": "f16", "tf32": "tf32", "f64": "f64"}


class Modelled(Protocol):
    """What the model asks of a candidate, of whatever family its kernel is."""

    @property
    def operation(self) -> GemmOperationUniversal | Conv2dOperation:
        """The kernel."""

    @property
    def name(self) -> str:
        """How tables call it."""

    @property
    def split_k_slices(self) -> int:
        """Into how many slices K is divided."""

    @property
    def is_parallel(self) -> bool:
        """Whether a second kernel adds up the partial sums of the slices."""

    @property
    def is_transposed(self) -> bool:
        """Whether the kernel computes the transposed problem."""

    @property
    def is_stream_k(self) -> bool:
        """Whether the kernel schedules by stream-K."""

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a threadblock of an Ampere-style kernel."""

    @property
    def is_held(self) -> bool:
        """Whether the compiler is told of few threads, so that it holds them to few registers (operation/base.py)."""


def product_class(math: MathInstruction) -> str:
    """Return by what name constants know how fast an instruction multiplies."""
    if not math.is_tensor_op:
        return "simt"
    if math.math_operation is MathOperation.multiply_add_fast_f32:
        return "3xtf32"
    multiplied = math.a if math.a.bits > math.b.bits else math.b  # the wider type, to which the other is converted
    if multiplied.short in ("s8", "u8", "s4", "u4", "b1"):
        return "s8"
    return _BYTE_CLASSES.get(multiplied.short, "tf32")


def tile_class(candidate: Modelled) -> str:
    """Return how constants call the tile of a Hopper-native kernel: by schedule, rows and columns."""
    tile = candidate.operation.tile_description
    rows, columns, _ = tile.threadblock_shape
    schedule = "" if tile.kernel_schedule is None else tile.kernel_schedule.name
    return f"{'swapped ' if candidate.is_transposed else ''}{schedule} {rows}x{columns}"


def simt_tile(tile: TileDescription) -> str:
    """Return how constants call the tile of a kernel of CUDA cores: by extents, threads and stages."""
    return f"{'x'.join(map(str, tile.threadblock_shape))} {tile.num_threads} {tile.stages}"


@dataclass(frozen=True)
class Features:
    """Arrays with an entry for each candidate, of 64-bit floats so that nothing is converted at each query.

    Attributes
    ----------
    rows, columns, depth : array
        The tile; where a kernel computes the transposed problem (`is_transposed`), of that.
    cluster_rows, cluster_columns : array
        Of a cluster; 1 for kernels without.
    slices, swizzle : array
        Of a launch.
    is_native, is_gemv, is_pingpong, is_stream_k, is_parallel, is_serial : array
        What kind of kernel it is, and how it divides K.
    occupancy : array
        Threadblocks that a multiprocessor holds at once.
    threads, warps_along_m, warps_along_n : array
        Of a threadblock.
    deep_bytes : array
        Bytes of one row of a tile along K.
    classes : tuple of str
        The class of product of each.
    promotes : array
        Whether sums of 8-bit floats move to registers of float32 in between.
    simt_tiles : tuple of str
        Tile and stages of each kernel of CUDA cores; nothing for others.
    """

    rows: Floats
    columns: Floats
    depth: Floats
    cluster_rows: Floats
    cluster_columns: Floats
    slices: Floats
    swizzle: Floats
    is_transposed: Bools
    is_native: Bools
    is_gemv: Bools
    is_pingpong: Bools
    is_stream_k: Bools
    is_parallel: Bools
    is_serial: Bools
    occupancy: Floats
    threads: Floats
    warps_along_m: Floats
    warps_along_n: Floats
    deep_bytes: Floats
    classes: tuple[str, ...]
    promotes: Bools
    simt_tiles: tuple[str, ...]

    @classmethod
    def of(cls, candidates: Sequence[Modelled], capability: int) -> Features:
        """Return the features of candidates on a GPU of a capability."""
        rows = [_row(candidate, capability) for candidate in candidates]

        def column(name: str, dtype: Any = np.float64) -> Any:
            return np.array([row[name] for row in rows], dtype)

        floats = ("rows", "columns", "depth", "cluster_rows", "cluster_columns", "slices", "swizzle", "occupancy")
        flags = ("transposed", "native", "gemv", "pingpong", "stream_k", "parallel", "serial")
        return cls(
            **{name: column(name) for name in (*floats, "threads", "deep_bytes", "warps_along_m", "warps_along_n")},
            **{f"is_{name}": column(f"is_{name}", np.bool_) for name in flags},
            classes=tuple(row["class"] for row in rows),
            promotes=column("promotes", np.bool_),
            simt_tiles=tuple(row["simt_tile"] for row in rows),
        )


def _row(candidate: Modelled, capability: int) -> dict[str, Any]:
    operation = candidate.operation
    tile, math = operation.tile_description, operation.tile_description.math_instruction
    rows, columns, depth = tile.threadblock_shape
    cluster = tile.cluster_shape or (1, 1, 1)
    divides = candidate.split_k_slices > 1
    fast = math.math_operation is MathOperation.multiply_add_fast_accum
    return {
        "rows": rows,
        "columns": columns,
        "depth": depth,
        "cluster_rows": cluster[0],
        "cluster_columns": cluster[1],
        "slices": candidate.split_k_slices,
        "swizzle": operation.swizzle_size,
        "is_transposed": candidate.is_transposed,
        "is_native": operation.is_sm90,
        "is_gemv": tile.is_gemv,
        "is_pingpong": tile.kernel_schedule is KernelSchedule.Pingpong,
        "is_stream_k": candidate.is_stream_k,
        "is_parallel": candidate.is_parallel,
        "is_serial": divides and not candidate.is_parallel,
        "occupancy": occupancy(candidate, capability),
        "threads": tile.num_threads,
        "warps_along_m": (tile.warp_count or (1, 1, 1))[0],
        "warps_along_n": (tile.warp_count or (1, 1, 1))[1],
        "deep_bytes": depth * max(math.a.bits, math.b.bits) / 8,
        "class": product_class(math),
        "simt_tile": simt_tile(tile) if _is_measured(candidate) else "",
        # Sums of 8-bit floats move to registers of float32 every few instructions, unless they may be less exact.
        "promotes": operation.is_sm90 and math.a.is_float8 and not fast,
    }


def _is_measured(candidate: Modelled) -> bool:
    """Return whether times of kernels of CUDA cores hold for one: GEMMs of float32 were measured, which are held.

    An epilogue function keeps a kernel from being held, and leaves its mainloop what it is.
    """
    operation = candidate.operation
    tile = operation.tile_description
    math, is_product = tile.math_instruction, isinstance(operation, GemmOperationUniversal)
    if math.is_tensor_op or math.a.short != "f32" or tile.is_gemv or not is_product:
        return False
    return candidate.is_held or operation.epilogue_functor.is_tree or tile.num_threads > MAX_UNBOUNDED_THREADS


def occupancy(candidate: Modelled, capability: int) -> int:
    """Return how many threadblocks a multiprocessor holds at once. A Hopper-native one takes all shared memory."""
    operation = candidate.operation
    tile = operation.tile_description
    if operation.is_sm90:
        return 1
    most_threads = _THREADS.get(capability, 2048)
    if tile.is_gemv:
        return max(1, most_threads // tile.num_threads)
    rows, columns, _ = tile.threadblock_shape
    words = tile.math_instruction.accumulator.bits // 32 or 1
    beside = _BESIDE_HELD if candidate.is_held else _BESIDE_SUMS
    registers = min(_MOST_REGISTERS, rows * columns * words // tile.num_threads + beside)
    shared = candidate.shared_bytes
    # A multiprocessor has a little more than what one threadblock may take of it.
    limit = SHARED_MEMORY_LIMIT.get(capability, SHARED_MEMORY_LIMIT[80]) + _RESERVED
    return max(
        1,
        min(
            limit // (shared + _RESERVED),
            _REGISTERS // (registers * tile.num_threads),
            most_threads // tile.num_threads,
        ),
    )
