"""Operations that are refused: a valid baseline, one part changed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from descriptions import (
    BY_SHORT_NAME,
    COLUMN,
    KINDS,
    ROW,
    TAG,
    TENSOR_OP,
    ampere,
    native_parts,
    parts,
)

import pycutlass
from pycutlass import (
    GemmOperationUniversal,
    LinearCombination,
    LinearCombinationClamp,
    TensorDescription,
    cutlass,
)
from pycutlass.compiler.choice import choose_target
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.families import SHARED_MEMORY_LIMIT

TILE = parts()["tile_description"]
HOPPER_TILE = native_parts()["tile_description"]


def tensor(short: str, layout: Any = ROW, alignment: int = 8) -> TensorDescription:
    return TensorDescription(TAG[short], layout, alignment)


def functor(output: str = "f16", length: int = 8, accumulator: str = "f32", compute: str = "f32") -> LinearCombination:
    return LinearCombination(TAG[output], length, TAG[accumulator], TAG[compute])


WRONG: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (parts(), {"compute_capability": 70}, ["compute_capability", "70", "Volta", "75, 80, 86"]),
    (parts(), {"compute_capability": "80"}, ["compute_capability", "'80'"]),
    (parts(), {"compute_capability": None}, ["compute_capability", "None"]),
    (parts(), {"compute_capability": [80]}, ["compute_capability", "[80]"]),
    (parts(), {"compute_capability": True}, ["compute_capability", "True"]),
    (parts(), {"compute_capability": 72}, ["compute_capability", "72", "Volta"]),
    (parts(), {"tile_description": None}, ["tile_description", "TileDescription", "None"]),
    (parts(), {"A": "f16"}, ["A must be a TensorDescription", "'f16'"]),
    (parts(), {"B": cutlass.float16}, ["B must be a TensorDescription"]),
    (parts(), {"C": None}, ["C must be a TensorDescription", "describe D by it, and leave C out of a launch"]),
    (parts(), {"epilogue_functor": None}, ["epilogue_functor"]),
    (parts(), {"A": tensor("bf16")}, ["operand A", "cutlass.bfloat16", "cutlass.float16", "describe A with"]),
    (parts(), {"B": tensor("f32", COLUMN, 4)}, ["operand B", "cutlass.float32", "cutlass.float16", "describe B with"]),
    (parts(), {"epilogue_functor": functor(accumulator="f16")}, ["accumulator", "element_accumulator=cutlass.float32"]),
    (parts(), {"epilogue_functor": functor("bf16")}, ["epilogue functor", "cutlass.bfloat16", "operand C"]),
    (parts(), {"epilogue_functor": functor(length=4)}, ["epilogue_vector_length=4", "alignment of C", "8"]),
    (parts(), {"C": tensor("f16", alignment=4)}, ["epilogue_vector_length=8", "alignment of C", "4"]),
    (parts(), {"C": tensor("f32", alignment=4)}, ["epilogue functor", "cutlass.float16", "cutlass.float32"]),
    (
        parts("tf32"),
        {"C": tensor("tf32", ROW, 4), "epilogue_functor": functor("tf32", 4)},
        ["can write f32, f16", "got cutlass.tfloat32"],
    ),
    (
        parts(),
        {"swizzling_functor": cutlass.StridedDgradIdentitySwizzle1},
        ["swizzling_functor", "IdentitySwizzle8", "StridedDgrad"],
    ),
    (parts(), {"swizzling_functor": None}, ["swizzling_functor", "IdentitySwizzle1"]),
    (
        parts("f32_simt"),
        {"C": tensor("f32", ROW, 4), "epilogue_functor": functor("f32", 4)},
        ["SIMT", "needs alignment 1", "4"],
    ),
    (parts("f64"), {"A": tensor("f64", ROW, 2)}, ["f64", "alignment 1", "A", "2"]),
    (parts(), {"A": tensor("f16", ROW, 1)}, ["cp.async", "4 bytes", "operand A", "alignment 2", "stages=2"]),
    (parts(), {"A": tensor("f16", cutlass.TensorNHWC)}, ["operand A", "RowMajor or ColumnMajor", "TensorNHWC"]),
    (parts(), {"epilogue_functor": functor(compute="f64")}, ["compute in f32, f16", "cutlass.float64"]),
    (parts(), {"epilogue_functor": functor(compute="s32")}, ["compute in f32, f16", "cutlass.int32"]),
    (
        native_parts(),
        {"epilogue_functor": LinearCombinationClamp(cutlass.float16, 8, cutlass.float32, cutlass.float32)},
        ["LinearCombinationClamp", "no Hopper-native counterpart", "LinearCombinationGeneric"],
    ),
    (parts(), {"tile_description": replace(TILE, threadblock_shape=(128, 128, 96))}, ["K=96", "64 elements", ", 64]"]),
    (
        parts(),
        {"tile_description": replace(TILE, threadblock_shape=(128, 128, 128), stages=2)},
        ["operand A", "K=128", "64 elements", ", 64]"],
    ),
    (
        parts("f16", (COLUMN, COLUMN, ROW)),
        {"tile_description": replace(TILE, threadblock_shape=(96, 128, 32))},
        ["operand A", "M=96", "64 elements", "128"],
    ),
    (
        parts("f16", (ROW, ROW, ROW)),
        {"tile_description": replace(TILE, threadblock_shape=(128, 96, 32))},
        ["operand B", "N=96", "64 elements", "128"],
    ),
    (
        parts(),
        {"tile_description": replace(TILE, threadblock_shape=(32, 128, 32), warp_count=(1, 8, 1))},
        ["32x32 tile of operand A", "256 threads", "fewer warps"],
    ),
    (parts(), {"tile_description": replace(TILE, stages=11)}, ["11 stages", "180,224 bytes", "166,912", "at most 10"]),
    (
        parts("f16", capability=86),
        {"tile_description": replace(TILE, stages=7)},
        ["7 stages", "compute capability 86", "101,376", "at most 6"],
    ),
    (native_parts(), {"compute_capability": 80}, ["cluster_shape", "compute_capability=90", "80"]),
    (native_parts(), {"A": tensor("f16", ROW, 4)}, ["TMA", "operand A", "alignment 8", "got 4"]),
    (
        native_parts(),
        {"B": tensor("f16", COLUMN, 1)},
        ["TMA", "cp.async", "operand B", "alignment 1", "aligned to 2", "describe B with alignment 8"],
    ),
    (
        native_parts(),
        {"tile_description": replace(HOPPER_TILE, stages=5)},
        ["5 stages", "279,552 bytes", "232,448", "at most 4"],
    ),
]


@pytest.mark.parametrize(("baseline", "change", "words"), WRONG, ids=[str(row[2]) for row in WRONG])
def test_one_wrong_part_is_named(baseline, change, words):
    assert GemmOperationUniversal(**baseline).emit()
    with pytest.raises(DescriptionError) as caught:
        GemmOperationUniversal(**{**baseline, **change})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(("gpu", "family"), [(100, 90), (103, 90), (110, 90), (120, 89), (121, 89)])
def test_newer_gpus_are_told_what_runs_there(gpu, family):
    with pytest.raises(DescriptionError) as caught:
        GemmOperationUniversal(**{**parts(), "compute_capability": gpu})
    words = [f"got {gpu}", "Ampere-style", f"compute_capability={family} without cluster_shape", "run on 90 alone"]
    assert all(word in str(caught.value) for word in words), str(caught.value)
    described = GemmOperationUniversal(**{**parts(), "compute_capability": family})
    assert choose_target(described.source(), f"sm_{gpu}") == f"sm_{gpu}"
    with pytest.raises(ArgumentError, match="for that architecture only"):
        choose_target(GemmOperationUniversal(**native_parts()).source(), f"sm_{gpu}")


def test_a_compute_capability_of_numpy_is_an_int():
    operation = GemmOperationUniversal(**{**parts(), "compute_capability": np.int64(80)})
    assert operation == GemmOperationUniversal(**parts())
    assert type(operation.compute_capability) is int


@pytest.mark.parametrize(("operand", "accumulator"), [("f64", "f64"), ("f32", "f32"), ("s8", "f32")])
def test_hopper_kernels_have_a_table_of_their_own(operand, accumulator):
    """What mma.sync multiplies is no matter to them; their instruction has no shape."""
    with pytest.raises(DescriptionError) as caught:
        pycutlass.MathInstruction(None, TAG[operand], TAG[operand], TAG[accumulator], TENSOR_OP)
    every = "f16 and accumulate in f16, or s8 or u8 and accumulate in s32"
    words = ["multiply s8 and accumulate in s32" if operand == "s8" else every, str(BY_SHORT_NAME[operand])]
    words += {"s8": [], "f32": ["cutlass.tfloat32, to which"]}.get(operand, ["leave out cluster_shape"])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_unknown_keywords_are_refused_with_those_that_exist():
    with pytest.raises(ArgumentTypeError) as caught:
        GemmOperationUniversal(**parts(), swizzle=cutlass.IdentitySwizzle1, epilog=None)
    assert all(word in str(caught.value) for word in ("epilog, swizzle", "swizzling_functor", "epilogue_functor"))


def test_two_words_for_the_same_thing_are_refused():
    with pytest.raises(ArgumentTypeError, match="compute_capability or arch"):
        GemmOperationUniversal(**parts(), arch=80)


@pytest.mark.parametrize("capability", [capability for capability in SHARED_MEMORY_LIMIT if capability >= 80])
@pytest.mark.parametrize("kind", KINDS)
def test_as_many_stages_as_the_message_says(kind, capability):
    with pytest.raises(DescriptionError) as caught:
        ampere(kind, capability=capability, stages=99)
    most = int(re.search(r"use at most (\d+) stages", str(caught.value)).group(1))
    assert ampere(kind, capability=capability, stages=most).tile_description.stages == most
    with pytest.raises(DescriptionError, match="bytes of shared memory"):
        ampere(kind, capability=capability, stages=most + 1)


def test_all_of_the_shared_memory_may_be_used():
    def make(stages: int) -> GemmOperationUniversal:
        return ampere(capability=86, tile=(112, 64, 32), warps=(1, 2, 1), stages=stages)

    tile = make(9).tile_description
    assert tile.stage_bytes() * tile.stages == SHARED_MEMORY_LIMIT[86]
    with pytest.raises(DescriptionError, match="use at most 9 stages"):
        make(10)


@pytest.mark.parametrize("make", [pycutlass.GemmOperationUniversal, pycutlass.GemmOperationGrouped])
def test_a_swizzle_that_cannot_be_compared(make: Any) -> None:
    class Sullen(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no comparison")

    with pytest.raises(DescriptionError, match="swizzling_functor must be"):
        make(**{**parts("f16"), "swizzling_functor": Sullen("IdentitySwizzle4")})
