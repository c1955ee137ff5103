"""What is said of operands that do not lie along K: which tile, operation or kernel takes them, and that it does."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from descriptions import COLUMN, ROW, TAG
from hopper_classes import described
from unaligned import unaligned

from pycutlass import KernelSchedule, MathOperation
from pycutlass.errors import DescriptionError
from pycutlass.types import element

ANY = list(itertools.product((ROW, COLUMN), repeat=2))


@pytest.mark.parametrize(
    ("layouts", "short", "shape", "remedy"),
    [
        ((COLUMN, ROW), "tf32", (128, 128, 64), "use threadblock_shape [128, 128, 32]"),
        ((COLUMN, ROW), "e5m2", (192, 48, 128), "use threadblock_shape [128, 128, 128]"),
        ((COLUMN, ROW), "s8", (128, 64, 128), "use threadblock_shape [128, 128, 128]"),
        ((COLUMN, ROW), "s8", (64, 192, 64), "use threadblock_shape [128, 128, 128]"),
        ((COLUMN, COLUMN), "tf32", (128, 128, 24), "use threadblock_shape [128, 128, 32]"),
        ((ROW, ROW), "s8", (128, 128, 96), "use threadblock_shape [128, 128, 128]"),
    ],
)
def test_tiles_that_go_through_registers_or_are_turned_around(
    layouts: Any, short: str, shape: tuple[int, int, int], remedy: str
) -> None:
    accumulator = "s32" if short == "s8" else "f32"
    options: Any = {"operation": MathOperation.multiply_add_fast_accum} if short == "e5m2" else {}
    with pytest.raises(DescriptionError) as caught:
        described(short, None, accumulator, layouts, shape=shape, **options)
    message = str(caught.value)
    assert f"where A or B of cutlass.{element(TAG[short]).name} does not lie along K" in message and remedy in message
    assert "describe A as cutlass.RowMajor and B as cutlass.ColumnMajor" in message
    named = [int(each) for each in remedy.split("[")[1].rstrip("]").split(", ")]
    assert described(short, None, accumulator, layouts, shape=named, **options)
    assert described(short, None, accumulator, shape=shape, **options)


def test_precise_sums_of_8_bit_floats_lie_along_k() -> None:
    for layouts in ANY[:1] + ANY[2:]:
        with pytest.raises(DescriptionError, match=r"asks for; got multiply_add: use that, or describe A as"):
            described("e4m3", layouts=layouts)
        with pytest.raises(DescriptionError, match=r"use that with threadblock_shape \[128, 128, 128\], or describe A"):
            described("e4m3", layouts=layouts, shape=(128, 128, 64))
    assert described("e4m3")


@pytest.mark.parametrize(("short", "sums"), [("tf32", "f32"), ("s8", "s32"), ("e4m3", "f32")])
@pytest.mark.parametrize("shape", [(128, 128, 128), (64, 64, 32), (128, 64, 64)])
def test_without_swap_ab_both_by_columns_have_the_tile_that_a_message_names(
    short: str, sums: str, shape: tuple[int, int, int]
) -> None:
    with pytest.raises(DescriptionError, match="there is none of A and B by columns") as caught:
        described(short, None, sums, (COLUMN, COLUMN), shape, swap_ab=True)
    message = str(caught.value)
    fast = MathOperation.multiply_add_fast_accum
    named = re.search(r"threadblock_shape \[(\d+), (\d+), (\d+)\], or", message)
    to: Any = tuple(map(int, named.groups())) if named else shape
    operation = fast if repr(fast) in message else MathOperation.multiply_add
    assert described(short, None, sums, (COLUMN, COLUMN), to, operation=operation)


@pytest.mark.parametrize("schedule", [KernelSchedule.Cooperative, KernelSchedule.Pingpong])
@pytest.mark.parametrize("short", ["tf32", "s8", "e4m3"])
@pytest.mark.parametrize("layouts", [ANY[0], *ANY[2:]])
def test_a_tile_that_a_message_names_is_one_of_the_schedule(layouts: Any, short: str, schedule: KernelSchedule) -> None:
    """And fits with the sums that it has: 128x256 does under one schedule, and not under the other."""
    sums = "s32" if short == "s8" else "f32"
    fast: Any = {"operation": MathOperation.multiply_add_fast_accum} if short == "e4m3" else {}
    refused = 0
    for shape in itertools.product((64, 128, 192, 256), (8, 48, 80, 96, 160, 192, 256), (16, 32, 64, 128)):
        try:
            described(short, None, sums, shape=shape, schedule=schedule, **fast)
        except DescriptionError:
            continue  # wrong anyhow
        try:
            described(short, None, sums, layouts, shape=shape, schedule=schedule, **fast)
        except DescriptionError as error:
            named = re.search(r"use threadblock_shape \[(\d+), (\d+), (\d+)\], or", str(error))
            assert named, error
            to: Any = tuple(map(int, named.groups()))
            assert described(short, None, sums, layouts, shape=to, schedule=schedule, **fast)
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("layouts", "alignments", "words"),
    [
        ((ROW, ROW), (2, 2, 1), ["needs alignment 16, got 2", "describe A and B with alignment 16 and C with"]),
        ((COLUMN, COLUMN), (4, 16, 8), ["operand A of cutlass.int8 needs alignment 16, got 4; describe A with"]),
        (
            (COLUMN, ROW),
            (16, 16, 1),
            ["operand C of cutlass.float16 needs alignment 8, got 1; describe C with alignment"],
        ),
    ],
)
def test_what_tma_cannot_copy_is_named_where_operands_do_not_lie_along_k(
    layouts: Any, alignments: Any, words: list[str]
) -> None:
    with pytest.raises(DescriptionError) as caught:
        unaligned("s8", alignments, "s32", (*layouts, ROW), (128, 128, 128))
    message = str(caught.value)
    assert "does not lie along K, a kernel copies all operands by TMA" in message
    assert all(word in message for word in words), message
    assert ("describe A as cutlass.RowMajor and B as" in message) is (min(alignments[:2]) > 2), message


@pytest.mark.parametrize("layouts", [ANY[0], *ANY[2:]])
def test_an_ampere_style_kernel_is_named_for_tf32_that_tma_cannot_copy(layouts: Any) -> None:
    with pytest.raises(DescriptionError, match=r"for an Ampere-style kernel .*instruction_shape=\[16, 8, 8\]"):
        unaligned("tf32", (1, 1, 1), layouts=(*layouts, ROW))
