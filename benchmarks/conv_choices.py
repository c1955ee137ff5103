"""The layers of ResNet-50, and everything that is tried for one of them: tiles, swizzles and slices of split-K."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pycutlass
from pycutlass import Conv2dOperation, cutlass

__all__ = [
    "DIRECTIONS",
    "LAYERS",
    "Choice",
    "Layer",
    "Parallel",
    "Serial",
    "choices",
    "operations",
    "reduction",
]

fprop, dgrad, wgrad = DIRECTIONS = tuple(cutlass.conv.Operator)
Serial, Parallel = cutlass.conv.SplitKMode.Serial, cutlass.conv.SplitKMode.Parallel

Triple = tuple[int, int, int]
Tile = tuple[Triple, int, Triple]

#: Threadblock tile, stages, warps. Those with K = 32 and few stages leave room for more threadblocks on a
#: multiprocessor, which short sums need; those with eight warps for 128x128 hide latency with more warps.
TILES: tuple[Tile, ...] = (
    ((128, 128, 32), 5, (2, 2, 1)),
    ((128, 128, 32), 4, (2, 4, 1)),
    ((128, 128, 32), 3, (2, 2, 1)),
    ((128, 128, 64), 3, (2, 2, 1)),
    ((128, 128, 64), 3, (2, 4, 1)),
    ((128, 256, 32), 4, (2, 4, 1)),
    ((128, 256, 64), 3, (2, 4, 1)),
    ((256, 128, 32), 4, (4, 2, 1)),
    ((256, 128, 64), 3, (4, 2, 1)),
    ((256, 64, 32), 4, (4, 1, 1)),
    ((256, 64, 64), 3, (4, 1, 1)),
    ((64, 256, 32), 4, (1, 4, 1)),
    ((64, 256, 64), 3, (1, 4, 1)),
    ((128, 64, 32), 3, (2, 2, 1)),
    ((128, 64, 32), 4, (2, 2, 1)),
    ((128, 64, 64), 3, (2, 2, 1)),
    ((128, 64, 64), 4, (2, 2, 1)),
    ((64, 128, 32), 4, (2, 2, 1)),
    ((64, 128, 64), 3, (2, 2, 1)),
    ((64, 128, 64), 4, (2, 2, 1)),
    ((64, 64, 32), 4, (2, 2, 1)),
    ((64, 64, 64), 3, (2, 2, 1)),
    ((64, 64, 64), 5, (2, 2, 1)),
)
SWIZZLES = (1, 4)

#: What is tried besides for dgrad, with swizzles. 192 and 96 rows divide the pixels of most layers, at N = 32, so that
#: just below a multiple of 132 threadblocks is needed (25088 pixels make 131 times 192, 6272 make 33 times 192 or 66
#: times 96), which powers of two do not; warps that share K between them give the few tiles of 7x7 and 14x14 pixels
#: eight warps each.
MORE_TILES: dict[Any, tuple[tuple[Tile, tuple[int, ...]], ...]] = {
    dgrad: (
        (((192, 128, 64), 3, (4, 2, 1)), (1, 4)),
        (((192, 64, 32), 3, (4, 1, 1)), (1,)),
        (((192, 64, 64), 3, (4, 1, 1)), (1,)),
        (((96, 128, 64), 3, (2, 2, 1)), (1,)),
        (((96, 128, 64), 4, (2, 2, 2)), (1,)),
        (((64, 128, 32), 3, (2, 2, 1)), (1, 4)),
        (((64, 128, 64), 4, (2, 2, 2)), (1,)),
    )
}
#: The same for dgrad with strides above 1, whose longest layer has 64 of 8 channels in a tile of the least width.
MORE_STRIDED_TILES: tuple[tuple[Tile, tuple[int, ...]], ...] = (
    (((192, 64, 32), 3, (4, 1, 1)), (1,)),
    (((192, 64, 64), 3, (4, 1, 1)), (1,)),
    (((256, 64, 64), 3, (4, 2, 1)), (1,)),
)

#: Threadblocks that a split of K aims at, in multiples of a GPU's 132 multiprocessors; dgrad, which has the most tiles,
#: is spared half a GPU, and more threadblocks than any of its kernels has at once.
WAVES = {fprop: (0.5, 1, 2, 4), dgrad: (1, 2, 3), wgrad: (0.5, 1, 2, 4)}
#: Terms of a sum, at most. Tensor cores drop bits wherever they add to an accumulator in f32, always towards zero:
#: three million terms make an error of 3.7e-3, which grows with their number, and the benchmark allows 1e-3.
LONGEST_SUM = 850_000
#: Serial split-K rounds to f16 after every slice; more slices cost accuracy that cuDNN keeps.
MOST_SERIAL_SLICES = 4


@dataclass(frozen=True)
class Layer:
    """A convolution of H x W pixels from C to K channels, with a square filter and padding that keeps the middle."""

    h: int
    w: int
    c: int
    k: int
    taps: int
    stride: int = 1

    @property
    def name(self) -> str:
        """How the tables call it."""
        stride = f" /{self.stride}" if self.stride > 1 else ""
        return f"{self.h}x{self.w}x{self.c} -> {self.k}, {self.taps}x{self.taps}{stride}"

    def problem(self, batch: int) -> Any:
        """Return the problem of a batch of so many images."""
        pad = self.taps // 2
        return cutlass.conv.Conv2dProblemSize(
            N=batch,
            H=self.h,
            W=self.w,
            C=self.c,
            K=self.k,
            R=self.taps,
            S=self.taps,
            pad_h=pad,
            pad_w=pad,
            stride_h=self.stride,
            stride_w=self.stride,
        )


LAYERS = (
    Layer(56, 56, 64, 64, 1),
    Layer(56, 56, 64, 64, 3),
    Layer(56, 56, 64, 256, 1),
    Layer(56, 56, 256, 128, 1),
    Layer(56, 56, 128, 128, 3, 2),
    Layer(28, 28, 128, 128, 3),
    Layer(28, 28, 128, 512, 1),
    Layer(28, 28, 512, 256, 1),
    Layer(14, 14, 256, 256, 3),
    Layer(14, 14, 256, 1024, 1),
    Layer(14, 14, 1024, 512, 1),
    Layer(7, 7, 512, 512, 3),
    Layer(7, 7, 512, 2048, 1),
    Layer(224, 224, 8, 64, 7, 2),
)


@dataclass(frozen=True)
class Choice:
    """A kernel and a split of K: everything that is chosen for a layer."""

    operation: Conv2dOperation
    mode: Any = Serial
    slices: int = 1

    @property
    def name(self) -> str:
        """How the tables call it: no two choices for a layer have the same."""
        tile = self.operation.tile_description
        warps = "x".join(map(str, tile.warp_count or ()))
        swizzle = self.operation.swizzling_functor.__name__.rpartition("Swizzle")[2]
        split = "" if self.slices == 1 else f", {self.mode.name.lower()} {self.slices}"
        algorithm = self.operation.iterator_algorithm.name
        return f"{algorithm} {tile.procedural_name()}, warps {warps}, swizzle {swizzle}{split}"


def choices(layer: Layer, batch: int, kind: Any, multiprocessors: int = 132) -> list[Choice]:
    """Return all that is tried for a layer: tiles and swizzles, and slices of K where there are few threadblocks."""
    size = layer.problem(batch)
    found: list[Choice] = []
    for operation in operations(layer, kind):
        if not operation.supports(size):
            continue
        if cutlass.conv.implicit_gemm_problem_size(kind, size).k() <= LONGEST_SUM:
            found.append(Choice(operation))
        if operation.swizzling_functor is not cutlass.IdentitySwizzle1:
            continue
        for slices in _slices(operation, size, multiprocessors):
            modes = (Serial, Parallel) if slices <= MOST_SERIAL_SLICES else (Parallel,)
            split = size.reset_split_k_slices(slices)
            found += [Choice(operation, mode, slices) for mode in modes if operation.supports(split)]
    return found


def operations(layer: Layer, kind: Any) -> list[Conv2dOperation]:
    """Return the kernels that are tried for a layer."""
    strided = kind is dgrad and layer.stride > 1
    family = "StridedDgradIdentitySwizzle" if strided else "IdentitySwizzle"
    support = pycutlass.StrideSupport.Unity if kind is dgrad and not strided else pycutlass.StrideSupport.Strided
    algorithms = ["optimized", *(["fixed_channels"] if kind is fprop and layer.c == 8 else [])]
    more = MORE_STRIDED_TILES if strided else MORE_TILES.get(kind, ())
    return [
        _operation(kind, algorithm, tile, support, getattr(cutlass, f"{family}{swizzle}"))
        for algorithm in algorithms
        for tile, swizzles in (*((tile, SWIZZLES) for tile in TILES), *more)
        for swizzle in swizzles
    ]


@functools.cache
def reduction() -> pycutlass.ReductionOperation:
    """Return what ends every parallel split-K."""
    f16, f32 = cutlass.float16, cutlass.float32
    nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    functor = pycutlass.LinearCombination(f16, 4, f32, f32)
    # Many partial sums of few elements: short accesses for more threads, and many loads in flight in each.
    return pycutlass.ReductionOperation(
        cutlass.MatrixCoord(4, 128), nhwc, f32, epilogue_functor=functor, count=4, partitions_per_stage=16
    )


@functools.cache  # what was compiled goes with the last operation that has it
def _operation(kind: Any, algorithm: str, tile: Tile, support: Any, swizzle: Any) -> Conv2dOperation:
    f16, f32 = cutlass.float16, cutlass.float32
    instruction = pycutlass.MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
    described = pycutlass.TileDescription(*tile, instruction)
    nhwc = pycutlass.TensorDescription(f16, cutlass.TensorNHWC, 8)
    functor = pycutlass.LinearCombination(f16, 8, f32, f32)
    chosen = cutlass.conv.IteratorAlgorithm[algorithm]
    return Conv2dOperation(kind, chosen, 90, described, nhwc, nhwc, nhwc, support, functor, swizzle)


def _slices(operation: Conv2dOperation, size: Any, multiprocessors: int) -> list[int]:
    """Return numbers of slices that fill the GPU, leave each several steps along K, and keep its sums accurate."""
    kind = operation.conv_kind
    m, n, k = operation.tile_description.threadblock_shape
    product = cutlass.conv.implicit_gemm_problem_size(kind, size)
    blocks = -(-product.m() // m) * -(-product.n() // n)
    # fprop and dgrad split the channels, and wgrad all pixels.
    extent = {fprop: size.C, dgrad: size.K, wgrad: product.k()}[kind]
    # A step of channels is one for every tap: with several, a single one will do.
    least = 8 if kind is wgrad else 1 if kind is dgrad and size.R > 1 else 2
    wanted = {int(waves * multiprocessors) // blocks for waves in WAVES[kind]}
    fewest = max(2, -(-product.k() // LONGEST_SUM))
    return sorted(slices for slices in wanted if fewest <= slices <= extent // (least * k))
