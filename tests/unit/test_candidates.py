"""Candidates: valid descriptions alone, in a fixed order, with the kernels that each kind of GEMM has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded_gemms import described, tnt, way_of

import pycutlass
from pycutlass import MathOperation, cutlass
from pycutlass.device import Device
from pycutlass.errors import ArgumentError, ArgumentTypeError, DescriptionError
from pycutlass.plan import Candidate, GemmKind, candidates, pick

F16, F32, F64, S8, S32 = cutlass.float16, cutlass.float32, cutlass.float64, cutlass.int8, cutlass.int32


def aligned(
    operand: Any, alignment: int, sums: Any = F32, math: MathOperation = MathOperation.multiply_add
) -> GemmKind:
    """Return a kind whose operands have an alignment."""
    row, column = (
        pycutlass.TensorDescription(operand, layout, alignment) for layout in (cutlass.RowMajor, cutlass.ColumnMajor)
    )
    functor = pycutlass.LinearCombination(operand, alignment, sums, sums)
    return GemmKind(row, column, row, row, operand, operand, sums, math, functor)


KINDS = {
    "f16": tnt(),
    "f16 by columns": described(F16, F16, "nnn"),
    "f16, odd": aligned(F16, 1),
    "tf32": described(cutlass.tfloat32, F32),
    "f32": aligned(F32, 1),
    "3xtf32": aligned(F32, 4, math=MathOperation.multiply_add_fast_f32),
    "f64": aligned(F64, 1, F64),
    "int8": described(S8, S32),
    "e4m3": described(cutlass.float_e4m3, cutlass.bfloat16),
}


def kernels(found: tuple[Candidate, ...]) -> set[str]:
    return {operation.procedural_name() for candidate in found for operation in candidate.kernels}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("capability", [80, 86, 89, 90])
@pytest.mark.parametrize("name", KINDS)
def test_every_candidate_describes_a_kernel_for_the_kind(name: str, capability: int, batched: bool) -> None:
    kind = KINDS[name]
    found = candidates(kind, capability, batched)
    assert found
    assert len(set(found)) == len(found)
    assert len(kernels(found)) <= 250
    for candidate in found:
        assert candidate.operation.epilogue_functor == kind.epilogue
        assert Candidate.of(kind, candidate.choice()) == candidate
        if batched:
            assert candidate.split_k_slices == 1


@pytest.mark.parametrize("name", KINDS)
def test_hopper_native_kernels_where_there_are_any(name: str) -> None:
    tiles = [candidate.operation.tile_description for candidate in candidates(KINDS[name], 90)]
    native, ampere = any(tile.is_sm90 for tile in tiles), any(not tile.is_sm90 and not tile.is_gemv for tile in tiles)
    assert native is (name in ("f16", "f16 by columns", "tf32", "int8", "e4m3"))
    assert ampere is not native
    assert not any(c.operation.tile_description.is_sm90 for c in candidates(KINDS[name], 80))


def test_all_ways_to_divide_the_work_are_tried() -> None:
    assert {way_of(candidate) for candidate in candidates(tnt(), 90)} == {
        *("Pingpong", "Cooperative", "stream-K", "split-K", "parallel split-K", "GEMV"),
        *("Pingpong, swapped", "Cooperative, swapped", "stream-K, swapped", "split-K, swapped"),
        "parallel split-K, swapped",
    }


def test_rows_and_columns_of_gemvs() -> None:
    tiles = {
        (candidate.operation.swap_ab, candidate.operation.tile_description.threadblock_shape[0])
        for candidate in candidates(tnt(), 80)
        if candidate.operation.tile_description.is_gemv
    }
    assert tiles == {(swapped, rows) for swapped in (False, True) for rows in (1, 2, 4, 8)}


def test_full_f32_is_not_rounded_to_tf32() -> None:
    for capability in (80, 90):
        for candidate in candidates(KINDS["f32"], capability):
            assert not candidate.operation.tile_description.math_instruction.is_tensor_op


def test_ampere_tiles_fit_the_shared_memory_of_the_gpu() -> None:
    def largest(capability: int) -> int:
        return max(
            operation.family.shared_bytes(operation.tile_description, operation.A, operation.B, operation.C)
            for operation in (candidate.operation for candidate in candidates(tnt(), capability))
        )

    assert largest(89) <= 99 << 10 < largest(80) <= 163 << 10


def test_the_order_is_the_same_in_every_process() -> None:
    script = (
        "from recorded_gemms import tnt\nfrom pycutlass.plan import candidates\n"
        "print(*(c.name for c in candidates(tnt(), 90)), sep='\\n')"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert runs == {"\n".join(candidate.name for candidate in candidates(tnt(), 90)) + "\n"}


def test_a_kind_is_looked_up_once() -> None:
    assert candidates(tnt(), 90) is candidates(tnt(), 90)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("f16", 90), ArgumentTypeError, "kind must be a GemmKind, got str"),
        ((tnt(), "90"), ArgumentTypeError, "capability must be an integer such as 80 or 90, got '90'"),
        ((tnt(), 75), ArgumentError, "compute capability 80 or newer, got 75"),
    ],
)
def test_other_arguments_are_refused(arguments: tuple[Any, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        candidates(*arguments)


def test_a_kind_without_kernels_has_no_candidates() -> None:
    assert (
        candidates(described(cutlass.float_e4m3, cutlass.bfloat16, "tnt", MathOperation.multiply_add_fast_accum), 80)
        == ()
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint8"])
@pytest.mark.parametrize("precision", [None, "tf32"])
@pytest.mark.parametrize(("a", "b"), [("t", "t"), ("t", "n"), ("n", "t"), ("n", "n")])
def test_hopper_has_native_kernels_of_every_layout(dtype: str, precision: str | None, a: str, b: str) -> None:
    dtype = dtype if precision is None else "float32"
    strides = {"t": (256, 1), "n": (1, 256)}
    specs = (pycutlass.TensorSpec((256, 256), dtype, strides[each]) for each in (a, b))
    plan = pycutlass.Gemm(*specs, precision=precision)
    found = candidates(plan.kind, 90)
    assert any(each.operation.is_sm90 for each in found)
    for each in found:
        assert Candidate.of(plan.kind, each.choice()) == each


def test_floats_of_8_bits_lie_along_k() -> None:
    rows, columns = ((256, 1), (1, 256))
    kinds = {
        (a, b): pycutlass.Gemm(*(pycutlass.TensorSpec((256, 256), "float8_e4m3fn", each) for each in (a, b))).kind
        for a in (rows, columns)
        for b in (rows, columns)
    }
    h200 = Device(0, "NVIDIA H200", 90, 132)
    assert pick(kinds[rows, columns], 256, 256, 256, gpu=h200).operation.is_sm90
    for lying, kind in kinds.items():
        if lying != (rows, columns):
            with pytest.raises(ArgumentError, match=r"A by rows, and B by columns, as w\.T"):
                pick(kind, 256, 256, 256, gpu=h200)


def test_a_choice_of_absurdly_many_stages_is_refused_at_once() -> None:
    """As a database may have it that something else has written to."""
    choice = {**candidates(tnt(), 80)[0].choice(), "stages": 2**70}
    with pytest.raises(DescriptionError, match=f"{2**70} stages"):
        Candidate.of(tnt(), choice)
