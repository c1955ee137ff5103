"""Random descriptions of convolutions."""

from __future__ import annotations

from random import Random
from typing import Any

import pycutlass
from pycutlass import GroupMode, StrideSupport, TensorDescription, cutlass
from tools.fuzz.gemm_kernels import drawn_alignment, drawn_functor, drawn_math, drawn_tile

__all__ = ["dgrad", "fprop", "fprop_groups", "fprop_int8", "wgrad"]

_Operator, _Algorithm = cutlass.conv.Operator, cutlass.conv.IteratorAlgorithm
_NHWC = (cutlass.TensorNHWC,) * 3
_INTERLEAVED = (cutlass.TensorNC32HW32, cutlass.TensorC32RSK32, cutlass.TensorNC32HW32)
_KINDS = ("half", "half", "half", "tf32", "f32", "simt", "f64", "turing")
_OUTPUTS = {
    "f64": (cutlass.float64,),
    "f32": (cutlass.float32, cutlass.float16, cutlass.bfloat16, cutlass.int8),
    "f16": (cutlass.float16, cutlass.float32, cutlass.bfloat16),
    "s32": (cutlass.int32, cutlass.int8, cutlass.float32, cutlass.float16, cutlass.bfloat16),
}
_USUAL = (_Algorithm.optimized, _Algorithm.optimized, _Algorithm.analytic)
_SWIZZLES = (
    None,
    cutlass.IdentitySwizzle1,
    cutlass.IdentitySwizzle2,
    cutlass.IdentitySwizzle4,
    cutlass.IdentitySwizzle8,
    cutlass.HorizontalSwizzle,
)
_STRIDED_DGRAD_SWIZZLES = (None, cutlass.StridedDgradIdentitySwizzle1, cutlass.StridedDgradIdentitySwizzle4)


def fprop(random: Random) -> Any:
    """Return a forward convolution; of few channels, too."""
    algorithm = random.choice((*_USUAL, _Algorithm.fixed_channels, _Algorithm.few_channels))
    return _conv(random, _Operator.fprop, algorithm, random.choice(_KINDS))


def fprop_groups(random: Random) -> Any:
    """Return one of channels in groups."""
    return _conv(
        random, _Operator.fprop, random.choice(_USUAL), random.choice(_KINDS), mode=random.choice(list(GroupMode))
    )


def fprop_int8(random: Random) -> Any:
    """Return one of int8, whose channels may be interleaved."""
    layouts = random.choice((_NHWC, _INTERLEAVED))
    return _conv(random, _Operator.fprop, random.choice(_USUAL), random.choice(("int8", "int8", "turing")), layouts)


def dgrad(random: Random) -> Any:
    """Return a data gradient."""
    return _conv(random, _Operator.dgrad, random.choice(_USUAL), random.choice(_KINDS))


def wgrad(random: Random) -> Any:
    """Return a weight gradient."""
    return _conv(random, _Operator.wgrad, random.choice(_USUAL), random.choice(_KINDS))


def _conv(
    random: Random, operator: Any, algorithm: Any, kind: str, layouts: tuple[Any, ...] = _NHWC, mode: Any = None
) -> Any:
    math = drawn_math(random, kind)
    operand, accumulator = math.element_a, math.element_accumulator
    output = random.choice(_OUTPUTS[math.accumulator.short])
    alignments = [drawn_alignment(random, tag) for tag in (operand, operand, output)]
    if algorithm is _Algorithm.fixed_channels:
        alignments[1] = alignments[0]
    if layouts == _INTERLEAVED:
        output, alignments = cutlass.int8, [16, 16, 8]
    elif not math.is_tensor_op:
        alignments = [1, 1, 1]
    elif math.a.short == "f64":
        alignments[:2] = [1, 1]
    single = any(alignment * math.a.bits < 32 for alignment in alignments[:2])  # cp.async moves 4 bytes at least
    stages = 2 if kind == "turing" or single else random.choice((2, 3, 3, 4, 5))
    stride_support = random.choice(list(StrideSupport))
    strided_dgrad = operator is _Operator.dgrad and stride_support is StrideSupport.Strided
    A, B, C = (TensorDescription(*of) for of in zip((operand, operand, output), layouts, alignments, strict=True))
    return pycutlass.Conv2dOperation(
        operator,
        algorithm,
        75 if kind == "turing" else random.choice((80, 80, 86, 89, 90)),
        drawn_tile(random, math, stages),
        A,
        B,
        C,
        stride_support,
        drawn_functor(random, accumulator, output, alignments[2]),
        random.choice(_STRIDED_DGRAD_SWIZZLES if strided_dgrad else _SWIZZLES),
        mode,
    )
