"""Kernels of all families have the iterators that have been proven: those of a GEMM of the same tile."""

from __future__ import annotations

import random
from typing import Any

import pytest
from convolutions import STRIDED, UNITY, conv, dgrad, f32, fprop, s8, s32, wgrad
from descriptions import COLUMN, ROW, SIMT, ampere, mixed_parts
from host import WHOLE, constants
from kernels import draw_ampere, draw_convolution, text_of

from pycutlass import GemmOperationGrouped, GemmOperationUniversal, GroupMode, SchedulerMode, cutlass
from pycutlass.toolchain import HostCompiler

pytestmark = pytest.mark.compile

#: Who loads and stores what of A and B, and who multiplies what.
MAINLOOP = ("IteratorA::ThreadMap", "IteratorB::ThreadMap", "SmemIteratorA", "SmemIteratorB", "Operator")
STORED = ("SmemIteratorA", "SmemIteratorB", "Operator::IteratorA", "Operator::IteratorB")
#: Who writes what.
EPILOGUE = (
    "OutputTileIterator::ThreadMap",
    "AccumulatorFragmentIterator",
    "WarpTileIterator",
    "SharedLoadIterator",
    "Padding",
)


def assert_same(compiler: HostCompiler, pairs: list[tuple[Any, Any]]) -> None:
    """Compare the iterators of pairs of kernels."""
    text = text_of([operation for pair in pairs for operation in pair])
    expressions = [
        f"cutlass::platform::is_same<Operation{2 * i}::{name}, Operation{2 * i + 1}::{name}>::value"
        for i, pair in enumerate(pairs)
        for name in _names(pair[0])
    ]
    found = dict(zip(expressions, constants(compiler, text, expressions), strict=True))
    assert [expression for expression, same in found.items() if not same] == [], pairs


def _names(operation: Any) -> list[str]:
    if operation.C.order.interleave > 1:  # convolutions load, and write, in ways that have proofs of their own
        return [f"Kernel::Mma::{name}" for name in STORED]
    return [f"Kernel::Mma::{name}" for name in MAINLOOP] + [f"Kernel::Epilogue::{name}" for name in EPILOGUE]


def gemm_like(operation: Any) -> GemmOperationUniversal:
    """Return the GEMM that a convolution is."""
    tile, functor = operation.tile_description, operation.epilogue_functor
    return GemmOperationUniversal(operation.compute_capability, tile, *operation.product, functor)


def with_swizzle(operation: Any, swizzle: Any) -> GemmOperationUniversal:
    return GemmOperationUniversal(*operation._value()[:6], swizzle)


def test_stream_k_and_groups(drawn: random.Random, host_compiler: HostCompiler) -> None:
    drawn_ones = (draw_ampere(drawn) for _ in range(60 if WHOLE else 2))
    some = [
        ampere("f16", (ROW, ROW, COLUMN)),
        ampere("f32_simt"),
        GemmOperationUniversal(**mixed_parts("f16", "s8", (COLUMN, COLUMN, ROW))),
        *(operation for operation in drawn_ones if isinstance(operation, GemmOperationUniversal)),
    ]
    stream_k = [(with_swizzle(each, cutlass.ThreadblockSwizzleStreamK), each) for each in some]
    groups = [
        (GemmOperationGrouped(*each._value()[:6], cutlass.IdentitySwizzle1, SchedulerMode.Device), each)
        for each in some
        if each.A.type is each.B.type
    ]
    assert_same(host_compiler, [*stream_k, *groups])


def test_convolutions(drawn: random.Random, host_compiler: HostCompiler) -> None:
    interleaved = (cutlass.TensorNC32HW32, cutlass.TensorC32RSK32, cutlass.TensorNC32HW32)
    some = [
        conv(dgrad, "analytic", stride=STRIDED),
        conv(dgrad, "optimized", stride=STRIDED),
        conv(dgrad, "optimized", (f32,) * 3, stride=STRIDED, opcode=SIMT),
        conv(dgrad, "optimized", stride=UNITY, stages=2),
        conv(wgrad, "optimized"),
        conv(fprop, "few_channels", alignments=(2, 2, 8), shape=(64, 64, 64)),
        conv(fprop, "analytic", group_mode=GroupMode.MultipleGroup),
        conv(fprop, "optimized", (s8, s32, s8), alignments=(16, 16, 8), layouts=interleaved),
        *(draw_convolution(drawn) for _ in range(60 if WHOLE else 2)),
    ]
    assert_same(host_compiler, [(each, gemm_like(each)) for each in some])
