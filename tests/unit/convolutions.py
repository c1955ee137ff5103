"""Convolution kernels and problems that the tests share."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pycutlass
from pycutlass import Conv2dOperation, cutlass
from pycutlass.types import element

fprop, dgrad, wgrad = cutlass.conv.Operator
Algorithm = cutlass.conv.IteratorAlgorithm
STRIDED, UNITY = pycutlass.StrideSupport.Strided, pycutlass.StrideSupport.Unity
TENSOR_OP, SIMT = cutlass.OpClass.TensorOp, cutlass.OpClass.Simt
f16, bf16, tf32 = cutlass.float16, cutlass.bfloat16, cutlass.tfloat32
f32, f64, s8, s32 = cutlass.float32, cutlass.float64, cutlass.int8, cutlass.int32
Math = pycutlass.MathOperation

#: Instruction, tile, warps and stages by what is multiplied, on tensor cores and on CUDA cores.
TILES: dict[Any, tuple[Any, Any, Any, int]] = {
    f16: ((16, 8, 16), (128, 128, 32), (2, 2, 1), 3),
    bf16: ((16, 8, 16), (128, 128, 32), (2, 2, 1), 3),
    tf32: ((16, 8, 8), (128, 128, 16), (2, 2, 1), 3),
    f32: ((16, 8, 8), (128, 128, 16), (2, 2, 1), 3),
    f64: ((8, 8, 4), (64, 64, 16), (2, 2, 1), 4),
    s8: ((16, 8, 32), (128, 128, 64), (2, 2, 1), 3),
}
SIMT_TILES: dict[Any, tuple[Any, Any, Any, int]] = {
    f32: ((1, 1, 1), (128, 128, 8), (4, 2, 1), 4),
    f64: ((1, 1, 1), (128, 64, 8), (4, 2, 1), 3),
}


def conv(
    kind: Any,
    algorithm: str,
    types: tuple[Any, Any, Any] = (f16, f32, f16),
    *,
    alignments: int | tuple[int, int, int] | None = None,
    stride: Any = STRIDED,
    opcode: Any = TENSOR_OP,
    math: Any = None,
    functor: Any = None,
    swizzle: Any = None,
    group_mode: Any = None,
    layouts: tuple[Any, Any, Any] = (cutlass.TensorNHWC,) * 3,
    **tile: Any,
) -> Conv2dOperation:
    """Return a convolution; alignments are the largest by default, and 1 where single elements are loaded."""
    operand, accumulator, output = types
    second = tile.get("second", operand)
    instruction, shape, warps, stages = (TILES if opcode == TENSOR_OP else SIMT_TILES)[operand]
    if alignments is None:
        single = opcode == SIMT or operand is f64
        widest = 1 if single else 128 // element(operand).bits
        alignments = (widest, widest, 1 if single else 128 // element(output).bits)
    elif isinstance(alignments, int):
        alignments = (alignments,) * 3
    math = math or (Math.multiply_add_saturate if operand is s8 else Math.multiply_add)
    tile_description = pycutlass.TileDescription(
        tile.get("shape", shape),
        tile.get("stages", stages),
        tile.get("warps", warps),
        pycutlass.MathInstruction(tile.get("instruction", instruction), operand, second, accumulator, opcode, math),
    )
    described = zip((operand, second, output), layouts, alignments, strict=True)
    A, B, C = (pycutlass.TensorDescription(*each) for each in described)
    compute = accumulator if accumulator in (f64, f16) else f32
    if functor is None:
        functor = pycutlass.LinearCombinationClamp if output is s8 else pycutlass.LinearCombination
    made = functor(output, C.alignment, accumulator, compute)
    return Conv2dOperation(kind, Algorithm[algorithm], 80, tile_description, A, B, C, stride, made, swizzle, group_mode)


def activated(activation: Any) -> Any:
    """Return a functor with `activation`, for `conv`."""
    return lambda *types: pycutlass.LinearCombinationGeneric(activation(), *types)


def _operations() -> dict[str, Conv2dOperation]:
    clamp, fast = pycutlass.LinearCombinationClamp, pycutlass.FastLinearCombinationClamp
    interleaved = (cutlass.TensorNC32HW32, cutlass.TensorC32RSK32, cutlass.TensorNC32HW32)
    small = {"shape": (64, 64, 32)}  # for narrow accesses, which take more registers
    large = {"shape": (256, 128, 32), "warps": (4, 2, 1)}
    deep = {"shape": (128, 256, 64), "warps": (2, 4, 1)}
    made = {
        # f16, all algorithms and alignments
        "f16_fprop_analytic": conv(fprop, "analytic"),
        "f16_fprop_optimized": conv(fprop, "optimized"),
        "f16_fprop_unity": conv(fprop, "optimized", stride=UNITY),
        "f16_fprop_align4": conv(fprop, "optimized", alignments=4),
        "f16_fprop_align2": conv(fprop, "analytic", alignments=2, **small),
        "f16_fprop_align1": conv(fprop, "optimized", alignments=1, stages=2, **small),
        "f16_fprop_analytic_align1": conv(fprop, "analytic", alignments=1, stages=2, **small),
        "f16_fprop_mixed": conv(fprop, "optimized", alignments=(8, 4, 2)),
        "f16_fprop_fixed8": conv(fprop, "fixed_channels", alignments=8),
        "f16_fprop_fixed4": conv(fprop, "fixed_channels", alignments=(4, 4, 8)),
        "f16_fprop_fixed2": conv(fprop, "fixed_channels", alignments=(2, 2, 8), shape=(64, 64, 64)),
        "f16_fprop_few4": conv(fprop, "few_channels", alignments=(4, 4, 8)),
        "f16_fprop_few2": conv(fprop, "few_channels", alignments=(2, 2, 8), shape=(64, 64, 64)),
        "f16_fprop_few1": conv(fprop, "few_channels", alignments=(1, 1, 8), stages=2, instruction=(16, 8, 8), **small),
        "f16_dgrad_analytic": conv(dgrad, "analytic", stride=UNITY),
        "f16_dgrad_optimized": conv(dgrad, "optimized", stride=UNITY),
        "f16_dgrad_align4": conv(dgrad, "optimized", stride=UNITY, alignments=4),
        "f16_dgrad_align1": conv(dgrad, "optimized", stride=UNITY, alignments=1, stages=2, **small),
        "f16_dgrad_strided_analytic": conv(dgrad, "analytic"),
        "f16_dgrad_strided_optimized": conv(dgrad, "optimized"),
        "f16_dgrad_strided_align2": conv(dgrad, "analytic", alignments=2, **small),
        "f16_wgrad_analytic": conv(wgrad, "analytic"),
        "f16_wgrad_optimized": conv(wgrad, "optimized"),
        "f16_wgrad_align4": conv(wgrad, "optimized", alignments=4),
        "f16_wgrad_align2": conv(wgrad, "analytic", alignments=2, **small),
        "f16_wgrad_align1": conv(wgrad, "optimized", alignments=1, stages=2, **small),
        # groups
        "f16_fprop_single": conv(fprop, "optimized", group_mode=pycutlass.GroupMode.SingleGroup, **small),
        "f16_fprop_single_analytic": conv(fprop, "analytic", group_mode=pycutlass.GroupMode.SingleGroup, **small),
        "f16_fprop_multiple": conv(fprop, "analytic", group_mode=pycutlass.GroupMode.MultipleGroup, **small),
        "f16_fprop_depthwise": conv(
            fprop, "analytic", alignments=1, stages=2, group_mode=pycutlass.GroupMode.MultipleGroup, **small
        ),
        # other tiles and swizzles
        "f16_fprop_large_swizzle4": conv(fprop, "optimized", swizzle=cutlass.IdentitySwizzle4, **large),
        "f16_fprop_deep_swizzle8": conv(fprop, "optimized", swizzle=cutlass.IdentitySwizzle8, **deep),
        "f16_fprop_horizontal": conv(fprop, "optimized", swizzle=cutlass.HorizontalSwizzle, shape=(64, 64, 64)),
        "f16_dgrad_strided_swizzle4": conv(
            dgrad, "optimized", swizzle=cutlass.StridedDgradIdentitySwizzle4, shape=(64, 64, 64)
        ),
        "f16_wgrad_swizzle2": conv(
            wgrad, "optimized", swizzle=cutlass.IdentitySwizzle2, shape=(64, 256, 32), warps=(1, 4, 1)
        ),
        # other types
        "bf16_fprop": conv(fprop, "optimized", (bf16, f32, bf16)),
        "bf16_dgrad_strided": conv(dgrad, "optimized", (bf16, f32, bf16)),
        "bf16_wgrad": conv(wgrad, "optimized", (bf16, f32, f32)),
        "tf32_fprop": conv(fprop, "optimized", (tf32, f32, f32)),
        "tf32_dgrad": conv(dgrad, "optimized", (tf32, f32, f32), stride=UNITY),
        "tf32_dgrad_strided": conv(dgrad, "analytic", (tf32, f32, f32)),
        "tf32_wgrad_align1": conv(wgrad, "analytic", (tf32, f32, f32), alignments=1),
        "f32_fprop": conv(fprop, "optimized", (f32, f32, f32)),
        "f32_fprop_fast_f16": conv(fprop, "optimized", (f32, f32, f32), math=Math.multiply_add_fast_f16),
        "f32_dgrad_fast_bf16": conv(
            dgrad, "optimized", (f32, f32, f32), stride=UNITY, math=Math.multiply_add_fast_bf16
        ),
        "f32_wgrad_fast_f32": conv(wgrad, "optimized", (f32, f32, f32), math=Math.multiply_add_fast_f32),
        "f64_fprop": conv(fprop, "optimized", (f64, f64, f64)),
        "f64_dgrad_strided": conv(dgrad, "analytic", (f64, f64, f64)),
        "f64_wgrad": conv(wgrad, "optimized", (f64, f64, f64)),
        "s8_fprop": conv(fprop, "optimized", (s8, s32, s8)),
        "s8_fprop_s32": conv(fprop, "analytic", (s8, s32, s32), functor=clamp),
        "s8_fprop_interleaved": conv(
            fprop,
            "optimized",
            (s8, s32, s8),
            alignments=(16, 16, 8),
            layouts=interleaved,
            functor=lambda output, length, *rest: fast(output, length),
            shape=(64, 64, 64),
            stages=4,
        ),
        "s8_fprop_interleaved_analytic": conv(
            fprop, "analytic", (s8, s32, s8), alignments=(16, 16, 8), layouts=interleaved, shape=(128, 128, 64)
        ),
    }
    for kind in (fprop, dgrad, wgrad):
        stride = UNITY if kind is dgrad else STRIDED
        made[f"f16_acc16_{kind.name}"] = conv(kind, "optimized", (f16, f16, f16), stride=stride)
        made[f"f16_out32_{kind.name}"] = conv(kind, "optimized", (f16, f32, f32), stride=stride)
        for short, tag in (("f32", f32), ("f64", f64)):
            made[f"{short}_simt_{kind.name}"] = conv(kind, "optimized", (tag,) * 3, stride=stride, opcode=SIMT)
    made["f32_simt_fprop_unity"] = conv(fprop, "analytic", (f32,) * 3, stride=UNITY, opcode=SIMT)
    made["f32_simt_dgrad_strided"] = conv(dgrad, "optimized", (f32,) * 3, opcode=SIMT)
    made["f32_simt_wgrad_analytic"] = conv(wgrad, "analytic", (f32,) * 3, opcode=SIMT)
    for activation in (
        pycutlass.relu,
        pycutlass.leaky_relu,
        pycutlass.tanh,
        pycutlass.sigmoid,
        pycutlass.silu,
        pycutlass.hardswish,
        pycutlass.gelu,
    ):
        made[f"f16_fprop_{activation.__name__}"] = conv(fprop, "optimized", functor=activated(activation))
    return made


OPERATIONS = _operations()


@functools.cache  # what was compiled goes with the last operation that has it
def reduction(operation: Conv2dOperation) -> pycutlass.ReductionOperation:
    """Return what ends the parallel split-K of `operation`."""
    count = operation.C.alignment
    return pycutlass.ReductionOperation(
        cutlass.MatrixCoord(4, 32 * count),
        operation.C,
        operation.tile_description.math_instruction.element_accumulator,
        epilogue_functor=operation.epilogue_functor,
        count=count,
    )


#: N, H, W, R, S, padding, stride and dilation.
GEOMETRIES = [
    (1, 1, 1, 1, 1, (0, 0), (1, 1), (1, 1)),
    (1, 8, 8, 1, 1, (0, 0), (1, 1), (1, 1)),
    (2, 7, 9, 3, 3, (1, 1), (1, 1), (1, 1)),
    (1, 14, 14, 3, 3, (1, 1), (2, 2), (1, 1)),
    (3, 11, 7, 5, 5, (2, 2), (1, 1), (1, 1)),
    (1, 15, 17, 7, 7, (3, 3), (2, 2), (1, 1)),
    (1, 13, 13, 3, 3, (2, 2), (1, 1), (2, 2)),
    (2, 9, 10, 2, 3, (0, 1), (3, 2), (1, 1)),
    (1, 12, 12, 1, 1, (0, 0), (2, 2), (1, 1)),
    (1, 4, 4, 3, 3, (4, 4), (1, 1), (1, 1)),
    (1, 19, 6, 4, 6, (3, 0), (1, 3), (1, 1)),
    (2, 16, 12, 3, 3, (1, 1), (3, 3), (1, 1)),
    (1, 9, 9, 5, 3, (4, 2), (2, 2), (2, 1)),
    (1, 17, 11, 7, 1, (3, 0), (1, 1), (1, 1)),
    (4, 23, 5, 6, 4, (0, 2), (1, 2), (1, 1)),
    (2, 10, 33, 1, 1, (1, 2), (3, 1), (1, 1)),
]


def problem(
    geometry: tuple[Any, ...],
    channels: int,
    filters: int,
    groups: int = 1,
    mode: Any = cutlass.conv.Mode.cross_correlation,
) -> Any:
    """Return the problem of a geometry with so many input and output channels."""
    n, h, w, r, s, (pad_h, pad_w), (stride_h, stride_w), (dilation_h, dilation_w) = geometry
    return cutlass.conv.Conv2dProblemSize(
        N=n,
        H=h,
        W=w,
        C=channels,
        K=filters,
        R=r,
        S=s,
        pad_h=pad_h,
        pad_w=pad_w,
        stride_h=stride_h,
        stride_w=stride_w,
        dilation_h=dilation_h,
        dilation_w=dilation_w,
        mode=mode,
        groups=groups,
    )


def channel_counts(operation: Conv2dOperation) -> list[tuple[int, int, int]]:
    """Return C, K and groups that the alignments of an operation allow, few and many in turns."""
    few, groups = (1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 72, 96, 288), (1,)
    if operation.group_mode is not None:
        few, groups = (1, 2, 3, 8, 16, 24, 64), (2, 3, 4, 64)
    counts = [(g * c, g * k, g) for g, c, k in itertools.product(groups, few, (1, 2, 4, 8, 24, 32, 64, 160))]
    by_c, by_k = operation.B.alignment, operation.C.alignment
    if operation.conv_kind is not fprop:
        by_c, by_k = max(by_c, by_k), operation.A.alignment
    # Others need not be asked about: to find what to do about them would take seconds.
    fitting = [(c, k, g) for c, k, g in counts if c % by_c == 0 and k % by_k == 0]
    allowed = [each for each in fitting if operation.supports(problem(GEOMETRIES[0], *each))]
    random.Random(2080).shuffle(allowed)
    return allowed


def problems(operation: Conv2dOperation) -> list[Any]:
    """Return the problems of the list that `operation` supports, each with other channel counts."""
    modes = itertools.cycle((cutlass.conv.Mode.cross_correlation,) * 3 + (cutlass.conv.Mode.convolution,))
    counts = itertools.cycle(channel_counts(operation))
    made = [problem(geometry, *next(counts), mode=next(modes)) for geometry in GEOMETRIES]
    return [each for each in made if operation.supports(each)]
