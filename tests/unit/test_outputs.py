"""What an epilogue can write: tiles, warps and alignments of C on both sides of each rule, and remedies that work."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from convolutions import UNITY, conv, dgrad, fprop, s8, s32
from descriptions import COLUMN, LAYOUTS, ROW, SIMT, TAG, TENSOR_OP

from pycutlass import (
    GemmOperationGrouped,
    GemmOperationUniversal,
    LinearCombination,
    LinearCombinationClamp,
    MathInstruction,
    MathOperation,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import DescriptionError
from pycutlass.types import element

COLUMNS32, ROWS32 = cutlass.ColumnMajorInterleaved32, cutlass.RowMajorInterleaved32
INTERLEAVED = (COLUMNS32, ROWS32, COLUMNS32)
#: Instruction, K and stages of a tile, by the type of the operands.
KINDS = {
    "f16": ((16, 8, 16), 64, 2),
    "bf16": ((16, 8, 16), 64, 2),
    "s8": ((16, 8, 32), 128, 2),
    "f64": ((8, 8, 4), 16, 3),
}
SIMT_KINDS = {"f32": ((1, 1, 1), 8, 2), "s8": ((1, 1, 4), 32, 2)}


def described(
    kind: str,
    accumulator: str,
    output: str,
    alignment: int,
    shape: tuple[int, int],
    warps: tuple[int, int, int],
    layouts: tuple[Any, Any, Any] = (ROW, COLUMN, ROW),
    opcode: Any = TENSOR_OP,
    stages: int | None = None,
) -> dict[str, Any]:
    """Return the parts of a kernel whose C has `alignment`."""
    instruction, k, fewest = (KINDS if opcode == TENSOR_OP else SIMT_KINDS)[kind]
    saturates = kind == "s8" and opcode == TENSOR_OP
    math = MathOperation.multiply_add_saturate if saturates else MathOperation.multiply_add
    described = MathInstruction(instruction, TAG[kind], TAG[kind], TAG[accumulator], opcode, math)
    widest = 1 if kind == "f64" or kind == "f32" else 4 if opcode == SIMT else 128 // element(TAG[kind]).bits
    made: dict[str, Any] = {
        "compute_capability": 80,
        "tile_description": TileDescription((*shape, k), stages or fewest, warps, described),
        "A": TensorDescription(TAG[kind], layouts[0], widest),
        "B": TensorDescription(TAG[kind], layouts[1], widest),
    }
    return made | writing(output, layouts[2], alignment, accumulator)


def writing(output: str, layout: Any, alignment: int, accumulator: str) -> dict[str, Any]:
    """Return C and the epilogue functor that writes it."""
    C = TensorDescription(TAG[output], layout, alignment)
    compute = accumulator if accumulator in ("f16", "f64") else "f32"
    functor = LinearCombinationClamp if output == "s8" else LinearCombination
    return {"C": C, "epilogue_functor": functor(TAG[output], C.alignment, TAG[accumulator], TAG[compute])}


def refusal(made: dict[str, Any], family: Any = GemmOperationUniversal) -> str:
    """Return why the parts do not make a kernel, or nothing."""
    try:
        family(**made)
    except DescriptionError as error:
        return str(error)
    return ""


#: Operands, accumulator, C with its alignment, columns of the tile and its warps; whether CUTLASS's own iterators, run
#: lane by lane on a host, write every element once and right.
CUTLASS_SAYS = [
    # Lanes that have nothing to write, or write beyond the tile
    ("f16", "f32", "f16", 8, 64, (2, 2, 1), True),
    ("f16", "f32", "f16", 8, 64, (2, 2, 2), False),
    ("f16", "f32", "f16", 8, 128, (2, 2, 2), True),
    ("f16", "f32", "f16", 4, 64, (2, 2, 2), True),
    ("f16", "f32", "f16", 8, 64, (2, 4, 1), False),
    ("f16", "f32", "f16", 8, 32, (4, 1, 1), True),
    ("f16", "f32", "f16", 8, 32, (2, 2, 1), False),
    ("f16", "f16", "f16", 8, 64, (1, 4, 2), False),
    ("f16", "f16", "f16", 8, 256, (1, 4, 2), True),
    ("f16", "f16", "f16", 8, 128, (1, 4, 2), False),
    ("f16", "f32", "f32", 4, 192, (2, 2, 1), True),
    ("f16", "f32", "f32", 4, 96, (2, 1, 1), False),
    ("f16", "f32", "f32", 1, 96, (2, 1, 1), True),
    ("f64", "f64", "f64", 1, 64, (2, 2, 1), True),
    ("s8", "s32", "s32", 4, 64, (2, 2, 1), True),
    # Elements that are mixed up
    ("f16", "f32", "f16", 8, 128, (2, 1, 1), False),
    ("f16", "f32", "f16", 4, 128, (2, 1, 1), True),
    ("bf16", "f32", "bf16", 8, 128, (2, 1, 1), True),
    ("f16", "f16", "f16", 8, 128, (2, 1, 1), True),
    ("f16", "f32", "f16", 8, 128, (2, 2, 1), True),
    ("f16", "f32", "f16", 8, 256, (2, 2, 1), False),
    ("f16", "f32", "f16", 8, 256, (2, 4, 1), True),
    ("s8", "s32", "f16", 8, 256, (2, 2, 1), False),
    ("s8", "s32", "bf16", 8, 128, (2, 2, 1), True),
    # int8
    ("s8", "s32", "s8", 16, 64, (2, 1, 1), True),
    ("s8", "s32", "s8", 16, 64, (2, 2, 1), False),
    ("s8", "s32", "s8", 8, 64, (2, 2, 1), True),
    ("s8", "s32", "s8", 16, 128, (2, 2, 1), True),
    ("s8", "s32", "s8", 16, 128, (2, 1, 1), False),
    ("s8", "s32", "s8", 8, 128, (2, 1, 1), True),
    ("s8", "s32", "s8", 8, 128, (2, 4, 1), True),
    ("s8", "s32", "s8", 16, 256, (2, 4, 1), True),
    ("s8", "s32", "s8", 16, 32, (4, 1, 1), False),
    ("s8", "s32", "s8", 4, 64, (2, 2, 1), True),
]


@pytest.mark.parametrize(("kind", "accumulator", "output", "alignment", "columns", "warps", "works"), CUTLASS_SAYS)
def test_a_tile_is_valid_where_cutlass_writes_it(kind, accumulator, output, alignment, columns, warps, works):
    for layout, family in itertools.product((ROW, COLUMN), (GemmOperationUniversal, GemmOperationGrouped)):
        made = described(kind, accumulator, output, alignment, (32 * warps[0], columns), warps, (ROW, COLUMN, layout))
        message = refusal(made, family)
        assert (not message) == works, message
        assert works or "operand C" in message


def test_an_int8_tile_of_four_warps():
    message = refusal(described("s8", "s32", "s8", 16, (64, 64), (2, 2, 1)))
    for words in (
        "operand C of cutlass.int8 with alignment 16 makes 4 accesses of a row",
        "2 warps along N and K",
        "threadblock_shape is [64, 64, 128], warp_count [2, 2, 1]",
        "use warp_count [4, 1, 1], or describe C with alignment 8",
    ):
        assert words in message


@pytest.mark.parametrize(("kind", "stride"), [(dgrad, None), (dgrad, UNITY), (fprop, None)])
def test_warps_of_a_convolution_that_share_k(kind, stride):
    tile = {"shape": (128, 64, 64), "stages": 4, "warps": (2, 2, 2)}
    options = {} if stride is None else {"stride": stride}
    with pytest.raises(DescriptionError) as caught:
        conv(kind, "optimized", **options, **tile)
    for words in (
        "operand C of cutlass.float16 with alignment 8 makes 8 accesses of a row, and 4 warps along N and K",
        "threadblock_shape is [128, 64, 64], warp_count [2, 2, 2]",
        "use warp_count [4, 2, 1], or describe C with alignment 4",
    ):
        assert words in str(caught.value)
    assert conv(kind, "optimized", alignments=(8, 8, 4), **options, **tile)
    assert conv(kind, "optimized", **options, **{**tile, "warps": (4, 2, 1)})


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    (
        described("s8", "s32", "f16", 4, (64, 64), (2, 2, 1)),
        [
            "write cutlass.float16 from cutlass.int32 8 elements at a time",
            "alignment 4",
            "describe C with alignment 8 and",
        ],
    ),
    (
        described("s8", "s32", "s8", 2, (64, 64), (2, 2, 1)),
        [
            "write cutlass.int8 from cutlass.int32 4 or 8 or 16 elements",
            "alignment 2",
            "describe C with alignment 8 and",
        ],
    ),
    (
        described("f16", "f32", "f16", 8, (64, 256), (2, 2, 1)),
        [
            "known CUTLASS bug, refused",
            "alignment 8",
            "warps have 128 of 256 columns",
            "use warp_count [1, 4, 1], or describe C with alignment 4",
        ],
    ),
    (
        described("s8", "s32", "s8", 8, (64, 64), (2, 2, 2), INTERLEAVED),
        ["interleaved", "warps that share K", "warp_count [2, 2, 2]", "use warp_count [4, 2, 1]"],
    ),
    (
        described("s8", "s32", "s8", 8, (64, 64), (1, 4, 1), INTERLEAVED),
        ["interleaved", "whole groups of its 32 columns, not 16", "use warp_count [2, 2, 1]"],
    ),
    (
        described("f32", "f32", "f32", 1, (256, 16), (2, 1, 1), opcode=SIMT),
        [
            "32 adjacent elements of operand C",
            "threadblock_shape is [256, 16, 8]",
            "use threadblock_shape [256, 64, 8]",
        ],
    ),
    (
        described("f32", "f32", "f32", 1, (64, 128), (1, 8, 1), opcode=SIMT, stages=3),
        ["SIMT kernel write 4 rows", "8 warps along N and K cannot", "use warp_count [2, 4, 1]"],
    ),
]


@pytest.mark.parametrize(("made", "words"), REFUSED, ids=[row[1][0] for row in REFUSED])
def test_what_cannot_be_written_is_named(made, words):
    message = refusal(made)
    assert all(word in message for word in words), message


def test_rows_of_threads_in_a_simt_warp():
    """8 in a tall warp of two stages, 4 in every other one."""
    for shape, stages, works in (((128, 128), 2, True), ((128, 128), 3, False), ((32, 256), 2, False)):
        made = described("f32", "f32", "f32", 1, shape, (1, 8, 1), opcode=SIMT, stages=stages)
        assert (not refusal(made)) == works


# What the messages recommend is valid


def remedied(made: dict[str, Any], message: str) -> list[dict[str, Any]]:
    """Return the parts with each of the remedies of a message."""
    tile, found = made["tile_description"], []
    for remedy in message.rpartition("; use ")[2].split(" or "):
        changed = dict(made)
        parts = re.findall(r"(warp_count|threadblock_shape) \[([\d, ]+)\]", remedy)
        shapes = {part: [int(value) for value in values.split(",")] for part, values in parts}
        changed["tile_description"] = replace(tile, **shapes)
        for alignment in re.findall(r"alignment (\d+)", remedy):
            accumulator = tile.math_instruction.accumulator.short
            changed |= writing(made["C"].type.short, made["C"].layout, int(alignment), accumulator)
        assert changed != made, remedy
        found.append(changed)
    return found


@pytest.mark.parametrize(
    ("kind", "accumulator", "output", "layouts", "opcode"),
    [
        *(("f16", "f32", output, (ROW, COLUMN, ROW), TENSOR_OP) for output in ("f16", "f32")),
        *(("s8", "s32", output, (ROW, COLUMN, COLUMN), TENSOR_OP) for output in ("s8", "s32", "f16", "bf16")),
        ("s8", "s32", "s8", INTERLEAVED, TENSOR_OP),
        ("bf16", "f32", "bf16", (ROW, COLUMN, ROW), TENSOR_OP),
        ("f32", "f32", "f32", (ROW, COLUMN, ROW), SIMT),
    ],
)
@pytest.mark.parametrize(("rows", "least"), [((128,), 5), pytest.param((64, 128, 256), 10, marks=pytest.mark.thorough)])
def test_every_remedy_works(kind, accumulator, output, layouts, opcode, rows, least):
    alignments = [1] if opcode == SIMT else [a for a in (1, 2, 4, 8, 16) if a * element(TAG[output]).bits <= 128]
    refused = 0
    for alignment, m, n, warps in itertools.product(
        alignments,
        rows,
        (16, 32, 48, 64, 96, 128, 192, 256),
        itertools.product((1, 2, 4), (1, 2, 3, 4, 8), (1, 2)),
    ):
        try:
            made = described(kind, accumulator, output, alignment, (m, n), warps, layouts, opcode)
        except DescriptionError:
            continue  # of the tile alone
        message = refusal(made)
        if "operand C" in message and "; use " in message:
            refused += 1
            assert [refusal(changed) for changed in remedied(made, message)] in ([""], ["", ""]), message
    assert refused >= least


def test_the_interleaved_convolution_writes_eight():
    layouts = (cutlass.TensorNC32HW32, cutlass.TensorC32RSK32, cutlass.TensorNC32HW32)
    options = {"layouts": layouts, "shape": (64, 64, 128)}
    assert conv(fprop, "optimized", (s8, s32, s8), alignments=(16, 16, 8), **options)
    with pytest.raises(
        DescriptionError, match=r"interleaved.*8 bytes at a time.*must be cutlass.int8 with alignment 8"
    ):
        conv(fprop, "optimized", (s8, s32, s8), alignments=(16, 16, 4), **options)


def test_all_layouts_of_a_usual_tile():
    for layouts in LAYOUTS:
        assert refusal(described("f16", "f32", "f16", 8, (128, 128), (2, 2, 1), layouts)) == ""
