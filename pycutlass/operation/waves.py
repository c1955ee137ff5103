"""What a tile makes of a problem: how many there are, in how many waves, and how much of them lies outside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pycutlass import _core, device
from pycutlass.calls import counted, public
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.families import AMPERE
from pycutlass.operands.checks import check_count
from pycutlass.operation.conv2d import Conv2dOperation
from pycutlass.operation.gemm import GemmOperationUniversal
from pycutlass.operation.group_support import check_sizes
from pycutlass.operation.grouped import GemmOperationGrouped
from pycutlass.operation.problems import gemm_size
from pycutlass.operation.support import padded_tiles, rounded_up

__all__ = ["TileUse", "tile_use"]


@dataclass(frozen=True)
class TileUse:
    """How well the tiles of a kernel fit a problem, and how well their waves fit a GPU.

    Attributes
    ----------
    tile : tuple of 3 int
        M, N and K of a tile.
    tiles : int
        Pieces of work for threadblocks: tiles of D, of each batch and slice of K, with those that fill a cluster up.
    at_once : int
        How many the GPU works on at the same time.
    outside : float
        Share of the multiply-adds of all tiles that are outside the problem.
    is_stream_k : bool
        Whether stream-K divides tiles, so that all multiprocessors end at about the same time.
    """

    tile: tuple[int, int, int]
    tiles: int
    at_once: int
    outside: float
    is_stream_k: bool = False

    @property
    def waves(self) -> int:
        """How many tiles one threadblock computes after the other, at most."""
        return -(-self.tiles // self.at_once)

    @property
    def last_wave(self) -> float:
        """Share of the places that the last wave uses; stream-K leaves none empty."""
        if self.is_stream_k or not self.tiles:
            return 1.0
        return (self.tiles - (self.waves - 1) * self.at_once) / self.at_once

    @property
    def useful(self) -> float:
        """Share of what the GPU could multiply in that time that belongs to the problem."""
        if not self.tiles:
            return 1.0
        places = self.tiles if self.is_stream_k else self.waves * self.at_once
        return (1 - self.outside) * self.tiles / places

    def __str__(self) -> str:
        m, n, k = self.tile
        waves = "divided by stream-K" if self.is_stream_k else f"in {counted(self.waves, 'wave')} of {self.at_once}"
        which = "the last " if self.waves > 1 else ""
        last = "" if self.is_stream_k else f", {which}{self.last_wave:.0%} full"
        return (
            f"{counted(self.tiles, 'tile')} of {m}x{n}x{k} {waves}{last}; {self.outside:.0%} of what is multiplied is "
            f"outside the problem, {self.useful:.0%} of the GPU is used"
        )


@public
def tile_use(
    operation: GemmOperationUniversal | GemmOperationGrouped | Conv2dOperation,
    problem_size: Any,
    sm_count: int | None = None,
    threadblocks: int = 1,
) -> TileUse:
    """Return what the tiles of a kernel make of a problem: how many, in how many waves, and what is computed in vain.

    It is arithmetic, which takes no GPU and no compiler. It says nothing of how fast a tile is: a large one that wastes
    some of its work may win over a small one that fits.

    Parameters
    ----------
    operation : GemmOperationUniversal, GemmOperationGrouped or Conv2dOperation
        The kernel.
    problem_size : GemmProblemSize, sequence of 3 int, list of these, or Conv2dProblemSize
        What its ``supports`` takes.
    sm_count : int, optional
        Multiprocessors; by default those of the current GPU. An H100 SXM has 132, an A100 108.
    threadblocks : int
        How many a multiprocessor holds at once. Hopper-native kernels have one; of Ampere-style ones it depends on
        shared memory and registers.

    Raises
    ------
    ArgumentError
        The kernel does not support the problem, or nobody says how many multiprocessors there are.
    ArgumentTypeError
        Something else than described.

    Examples
    --------
    >>> import pycutlass
    >>> from pycutlass import cutlass
    >>> f16 = cutlass.float16
    >>> instruction = pycutlass.MathInstruction(None, f16, f16, cutlass.float32, cutlass.OpClass.TensorOp)
    >>> tile = pycutlass.TileDescription([128, 256, 64], None, None, instruction, cluster_shape=[2, 1])
    >>> row = pycutlass.TensorDescription(f16, cutlass.RowMajor, 8)
    >>> column = pycutlass.TensorDescription(f16, cutlass.ColumnMajor, 8)
    >>> functor = pycutlass.LinearCombination(f16, 8, cutlass.float32, cutlass.float32)
    >>> operation = pycutlass.GemmOperationUniversal(90, tile, row, column, row, functor)
    >>> use = pycutlass.tile_use(operation, (4096, 4096, 4096), sm_count=132)
    >>> use.tiles, use.waves, round(use.last_wave, 2), use.outside
    (512, 4, 0.88, 0.0)
    """
    if not isinstance(operation, GemmOperationUniversal | GemmOperationGrouped | Conv2dOperation):
        raise ArgumentTypeError(
            f"operation must be a GemmOperationUniversal, GemmOperationGrouped or Conv2dOperation, got "
            f"{type(operation).__name__}"
        )
    operation.supports(problem_size).require()
    places = _multiprocessors(sm_count) * check_count("threadblocks", threadblocks)
    tile, cluster = operation.tile_description, operation.tile_description.cluster_shape or (1, 1, 1)
    rows, columns, depth = tile.threadblock_shape
    # Threadblocks of kernels that are not persistent end at once where they have no tile.
    swizzle = operation.swizzle_size if isinstance(operation, GemmOperationUniversal) and operation.is_sm90 else 1
    tiles = within = computed = 0
    for m, n, k, count, slices in _products(operation, problem_size):
        across = padded_tiles(tile, m, n, swizzle)
        tiles += across * count * slices
        within += m * n * k * count
        computed += across * count * rows * columns * slices * rounded_up(-(-k // slices), depth)
    outside = 1 - within / computed if computed else 0.0
    at_once = max(places // math.prod(cluster), 1) * math.prod(cluster)
    return TileUse(tile.threadblock_shape, tiles, at_once, outside, getattr(operation, "is_stream_k", False))


def _products(operation: Any, problem_size: Any) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield M, N and K of the products, as the kernel has them, with how many there are and the slices of K."""
    single = getattr(operation, "single", operation)
    if isinstance(operation, Conv2dOperation):
        size = _core.implicit_gemm_problem_size(operation.conv_kind, problem_size)
        yield size.m(), size.n(), size.k(), 1, problem_size.split_k_slices
        return
    is_transposed = single.swap_ab or (single.family is AMPERE and not single.C.is_row_major)
    if isinstance(operation, GemmOperationGrouped):
        sizes = [(m, n, k, 1, 1) for m, n, k in check_sizes(single, problem_size).tolist()]
    else:
        given = gemm_size(problem_size)
        sizes = [(*given.extents, given.batch, given.split_k_slices)]
    for m, n, k, count, slices in sizes:
        yield *((n, m) if is_transposed else (m, n)), k, count, slices


def _multiprocessors(given: Any) -> int:
    if given is not None:
        return check_count("sm_count", given)
    if not device.available():
        raise ArgumentError("sm_count is needed where there is no GPU: the multiprocessors of the one that is meant")
    return device.describe(device.current()).sm_count
