"""What messages offer in place of what a family lacks: at most a few choices, of which each is one that there is."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from descriptions import COLUMN, ROW, SIMT, TAG, TENSOR_OP, native_parts
from gemv_classes import gemv

from pycutlass import (
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    MathInstruction,
    MathOperation,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import DescriptionError
from pycutlass.families import AMPERE

KINDS = ("f64", "f32", "tf32", "f16", "bf16", "s32", "s8", "u8", "e4m3", "e5m2")
SHAPES = ([16, 8, 16], [8, 8, 4], [1, 1, 1], None)


def refused(shape: Any, kind: str, opcode: Any) -> str:
    """Return why no kernel multiplies `kind` and accumulates in bf16, which is no accumulator of any."""
    with pytest.raises(DescriptionError) as caught:
        MathInstruction(shape, TAG[kind], TAG[kind], TAG["bf16"], opcode)
    return str(caught.value)


@pytest.mark.parametrize("opcode", [TENSOR_OP, SIMT])
@pytest.mark.parametrize("kind", KINDS)
def test_at_most_four_instructions_are_named(kind: str, opcode: Any) -> None:
    for shape in SHAPES:
        said = refused(shape, kind, opcode)
        assert said.count("->") <= 5, said  # with the one that is wanted
        for a, sums, extents, operation in re.findall(r"\w+ (\w+) x \1 -> (\w+), (\[.*?\]|None), (\w+)", said)[1:]:
            by = SIMT if extents in ("[1, 1, 1]", "[1, 1, 4]", "None") else TENSOR_OP
            assert MathInstruction(
                ast.literal_eval(extents), TAG[a], TAG[a], TAG[sums], by, MathOperation[operation]
            ), said


@pytest.mark.parametrize("kind", KINDS)
def test_those_of_the_types_that_are_given_are_named_alone(kind: str) -> None:
    said = refused([16, 8, 16], kind, TENSOR_OP).partition("Nearest valid choices: ")[2]
    known = {row.a for row in AMPERE.products if row.a == row.b}
    assert said and (kind not in known or {*re.findall(r"\w+(?= x )", said)} == {kind})


@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "u8"])
def test_types_of_hopper_native_kernels_alone(kind: str) -> None:
    sums = TAG["s32" if kind == "u8" else "f32"]
    with pytest.raises(
        DescriptionError,
        match=r"choices: instruction_shape=None for a Hopper-native kernel, .*; of other types, TensorOp",
    ):
        MathInstruction([16, 8, 32], TAG[kind], TAG[kind], sums, TENSOR_OP)
    assert MathInstruction(None, TAG[kind], TAG[kind], sums, TENSOR_OP)


def test_no_gemv_multiplies_f64() -> None:
    f64 = cutlass.float64
    with pytest.raises(
        DescriptionError, match=r"GEMV kernels, which multiply and accumulate in .*; got cutlass.floa"
    ) as caught:
        MathInstruction(None, f64, f64, f64, SIMT)
    assert "give instruction_shape=[1, 1, 1] and leave out kernel_schedule" in str(caught.value)
    assert "TensorOp" not in str(caught.value)  # Hopper-native kernels do not multiply f64
    instruction = MathInstruction([1, 1, 1], f64, f64, f64, SIMT)
    single = TensorDescription(f64, ROW, 1)
    tile = TileDescription([128, 64, 8], 3, [4, 2, 1], instruction)
    assert GemmOperationUniversal(80, tile, single, single, single, LinearCombination(f64, 1, f64, f64))


@pytest.mark.parametrize(("kind", "opcode"), [("f16", TENSOR_OP), ("f32", SIMT), ("s8", SIMT)])
@pytest.mark.parametrize("swap_ab", [False, True])
def test_the_ampere_style_kernel_in_place_of_a_gemv_runs_in_other_modes(kind: str, opcode: Any, swap_ab: bool) -> None:
    output = "s32" if kind == "s8" else kind
    shape = 1, 8, 2048 if kind == "s8" else 1024
    operation = gemv(kind, d=output, shape=shape, alignment={"f16": 8, "f32": 1, "s8": 4}[kind], swap_ab=swap_ab)
    with pytest.raises(DescriptionError, match=r"none for Mode\.Array: use Mode\.Batched") as caught:
        _ = operation.array
    said = str(caught.value)
    assert ("leave out swap_ab, and leave out kernel_schedule" in said) == swap_ab, said
    named = dict(re.findall(r"(instruction_shape|threadblock_shape|warp_count)=(\[[^]]*\])", said))
    extents = {name: ast.literal_eval(text) for name, text in named.items()}
    math = operation.tile_description.math_instruction
    instruction = MathInstruction(
        *(extents["instruction_shape"], math.element_a, math.element_b, math.element_accumulator, opcode)
    )
    assert ("opcode_class=cutlass.OpClass.TensorOp" in said) == (opcode is TENSOR_OP)
    stages = int(re.findall(r"stages=(\d+)", said)[0])
    tile = TileDescription(
        extents.get("threadblock_shape", shape), stages, extents.get("warp_count", [1, 4, 1]), instruction
    )
    other = GemmOperationUniversal(80, tile, operation.A, operation.B, operation.C, operation.epilogue_functor)
    assert other.array is other
    with pytest.raises(DescriptionError, match=r"no GEMV kernel: use a GemmOperationUniversal for each") as caught:
        GemmOperationGrouped(
            80, operation.tile_description, operation.A, operation.B, operation.C, operation.epilogue_functor
        ) if not swap_ab else operation.family.check_group(operation, None)
    assert "For an Ampere-style one, " in str(caught.value)
    assert GemmOperationGrouped(80, tile, operation.A, operation.B, operation.C, operation.epilogue_functor)


@pytest.mark.parametrize(
    ("cluster", "nearest"), [((4, 1), [2, 1]), ((1, 4), [1, 2]), ((4, 2), [2, 2]), ((8, 2), [2, 2]), ((1, 16), [1, 2])]
)
def test_the_nearest_cluster_of_a_hopper_native_group(cluster: tuple[int, int], nearest: list[int]) -> None:
    with pytest.raises(DescriptionError) as caught:
        GemmOperationGrouped(**native_parts(tile=(128, 128, 64), cluster=cluster))
    assert f"got {list(cluster)}: use cluster_shape={nearest}" in str(caught.value)
    assert GemmOperationGrouped(**native_parts(tile=(128, 128, 64), cluster=tuple(nearest)))


def _to_bytes(tile: TileDescription, capability: int) -> dict[str, Any]:
    s8, s32, f32 = cutlass.int8, cutlass.int32, cutlass.float32
    A, B = TensorDescription(s8, ROW, 16), TensorDescription(s8, COLUMN, 16)
    return {
        "compute_capability": capability,
        "tile_description": tile,
        **{"A": A, "B": B, "C": A, "epilogue_functor": LinearCombination(s8, 16, s32, f32)},
    }


def test_hopper_native_groups_write_no_bytes() -> None:
    s8, s32 = cutlass.int8, cutlass.int32
    tile = TileDescription(
        [128, 128, 64], None, None, MathInstruction(None, s8, s8, s32, TENSOR_OP), [2, 1], KernelSchedule.Pingpong
    )
    with pytest.raises(
        DescriptionError, match=r"Hopper-native groups write s32, f32, f16, bf16, got cutlass\.int8"
    ) as caught:
        GemmOperationGrouped(**_to_bytes(tile, 90))
    said = str(caught.value)
    assert "or a GEMM for each problem, or for an Ampere-style kernel leave out cluster_shape and kernel_sch" in said
    assert GemmOperationUniversal(**_to_bytes(tile, 90))
    values = dict(re.findall(r"(\w+)=(\[[^]]*\]|\d+)", said))
    extents = {name: ast.literal_eval(text) for name, text in values.items()}
    math = MathInstruction(extents["instruction_shape"], s8, s8, s32, TENSOR_OP)
    other = TileDescription(
        extents.get("threadblock_shape", [128, 128, 64]), extents["stages"], extents["warp_count"], math
    )
    assert GemmOperationGrouped(**_to_bytes(other, 90))
