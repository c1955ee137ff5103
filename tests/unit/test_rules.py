"""The rules of a GEMM's parts: a valid baseline and one part changed for each, and no rule without its test."""

from __future__ import annotations

import ast
import itertools
import re
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from descriptions import BY_SHORT_NAME, COLUMN, LAYOUTS, ROW, SIMT, TAG, native_parts, parts
from epilogue_functions import biased
from hypothesis import given
from hypothesis import strategies as st
from part_cases import F16, WRONG_INSTRUCTIONS, WRONG_TILES
from rule_baselines import BASELINES, functor, int8_simt, tensor, tile
from rule_cases import FLIPS

from pycutlass import (
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    LinearCombinationClamp,
    SchedulerMode,
    cutlass,
)
from pycutlass.errors import DescriptionError
from pycutlass.families import (
    agreement,
    epilogues,
    gemv,
    sm90,
    sm90_copies,
    sm90_epilogue,
    sm90_group,
    sm90_multicast,
    sm90_register_a,
    sm90_swap,
    sm90_tiles,
    sm90_warp_groups,
    table,
)
from pycutlass.families.ampere import family, simt, tensor_op, tiles


@pytest.mark.parametrize("name", BASELINES)
def test_the_baselines_are_valid(name):
    assert GemmOperationUniversal(**BASELINES[name]).emit()


def refused(baseline: str, change: dict[str, Any]) -> pytest.ExceptionInfo[DescriptionError]:
    with pytest.raises(DescriptionError) as caught:
        GemmOperationUniversal(**{**BASELINES[baseline], **change})
    return caught


@pytest.mark.parametrize(("baseline", "change", "words"), FLIPS, ids=[f"{row[0]}: {row[2][0]}" for row in FLIPS])
def test_one_wrong_part_is_named(baseline, change, words):
    message = str(refused(baseline, change).value)
    assert all(word in message for word in words), message


def test_the_tile_of_a_column_major_c_is_transposed():
    """The rows of its tile are columns of B: here 96, along K."""
    change = tile("f16", threadblock_shape=(96, 128, 32)) | {"A": tensor("f16", COLUMN, 8)}
    assert "operand A is not contiguous" in str(refused("f16", change).value)
    GemmOperationUniversal(**{**BASELINES["f16"], **change, "C": tensor("f16", COLUMN, 8)})


@pytest.mark.parametrize(
    "module",
    [
        *(table, agreement, epilogues, gemv, sm90, sm90_copies, sm90_epilogue, sm90_group, sm90_multicast),
        *(sm90_register_a, sm90_swap, sm90_tiles, sm90_warp_groups, family, simt, tensor_op, tiles),
    ],
    ids=lambda module: module.__name__,
)
def test_every_rule_is_broken_by_a_case(module):
    path = Path(module.__file__)
    raised = {
        range(node.lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise)
    }
    errors = [refused(baseline, change).value for baseline, change, _ in FLIPS]
    for value, change in [*((F16, change) for change, _ in WRONG_INSTRUCTIONS), *(row[:2] for row in WRONG_TILES)]:
        with pytest.raises(DescriptionError) as caught:
            replace(value, **change)
        errors.append(caught.value)
    for name in ("gemv", "mixed"):
        with pytest.raises(DescriptionError) as caught:
            GemmOperationGrouped(**BASELINES[name])
        errors.append(caught.value)
    with pytest.raises(DescriptionError) as caught:
        _ = GemmOperationUniversal(**BASELINES["gemv"]).array
    errors.append(caught.value)
    by_columns = {"C": tensor("f16", COLUMN, 8), "epilogue_functor": biased(TAG["f16"], 8)}
    wide = {"C": tensor("e4m3", ROW, 16), "epilogue_functor": functor("e4m3", 16)}
    clustered = replace(BASELINES["hopper"]["tile_description"], cluster_shape=(4, 1))
    for change in (
        wide,
        {"tile_description": clustered},
        {"swizzling_functor": cutlass.IdentitySwizzle2},
        {"precompute_mode": SchedulerMode.Host},
        by_columns,
    ):
        with pytest.raises(DescriptionError) as caught:
            GemmOperationGrouped(**BASELINES["hopper"] | change)
        errors.append(caught.value)
    raised_by = [each for error in errors for each in (error, error.__context__) if each]
    last = [traceback.extract_tb(each.__traceback__)[-1] for each in raised_by]
    broken = {entry.lineno for entry in last if Path(entry.filename) == path}
    assert [lines.start for lines in raised if not broken & {*lines}] == []


@pytest.mark.parametrize(
    ("shape", "schedule", "output", "columns"),
    [
        ((256, 192, 64), "Cooperative", "f16", None),
        ((192, 192, 64), "Cooperative", "f16", None),
        ((192, 192, 64), "Cooperative", "f32", None),
        ((256, 208, 64), "Cooperative", "f16", 192),
        ((128, 208, 64), "Pingpong", "f16", 192),
        ((192, 128, 64), "Pingpong", "f16", None),
        ((192, 144, 64), "Pingpong", "f16", 128),
        ((256, 160, 64), "Cooperative", "f32", None),
        ((256, 192, 64), "Cooperative", "f32", 160),
        ((192, 128, 64), "Pingpong", "f32", 112),
    ],
)
def test_a_tile_that_spills_is_warned_of(shape, schedule, output, columns, caplog):
    schedule = KernelSchedule[schedule]
    GemmOperationUniversal(**native_parts(shape, (1, 1), schedule, output=output))
    said = [record.getMessage() for record in caplog.records]
    if columns is None:
        assert said == []
        return
    assert (
        len(said) == 1
        and f"{shape[0]}x{shape[1]} tile" in said[0]
        and f"at most {columns} columns do not spill" in said[0]
    )
    caplog.clear()
    GemmOperationUniversal(**native_parts((shape[0], columns, 64), (1, 1), schedule, output=output))
    assert caplog.records == []


# What the messages recommend is valid


def test_examples_of_messages_are_accepted():
    """Each alone: other warps, or another shape."""
    tried = 0
    for baseline, change, _ in FLIPS:
        made = {**BASELINES[baseline], **change}
        message = str(refused(baseline, change).value)
        for part, values in re.findall(
            r"(warp_count|threadblock_shape) \[([\d, ]+)\]", message.partition("; for example ")[2]
        ):
            changed = replace(made["tile_description"], **{part: [int(value) for value in values.split(",")]})
            GemmOperationUniversal(**made | {"tile_description": changed})
            tried += 1
    assert tried > 30


@given(
    st.sampled_from(["f16", "bf16", "tf32"]),
    st.sampled_from(LAYOUTS),
    st.tuples(*[st.sampled_from([16, 32, 48, 64, 96, 128, 192])] * 2),
    st.sampled_from([16, 32, 48, 64, 96, 128]),
    st.integers(2, 12),
)
def test_a_tile_is_made_or_refused_with_a_reason(kind, layouts, rows, k, stages):
    try:
        operation = GemmOperationUniversal(**parts(kind, layouts, tile=(*rows, k), stages=stages))
    except DescriptionError as error:
        assert any(w in str(error) for w in ("threadblock_shape", "cannot share evenly", "bytes of shared memory"))
    else:
        tile = operation.tile_description
        assert tile.stages * tile.stage_bytes() <= 163 << 10
        assert tile.num_threads == 128


@pytest.mark.parametrize(("a", "b", "c"), list(itertools.product([1, 2, 4, 8], repeat=3)))
def test_every_alignment_of_two_stages(a, b, c):
    made = parts("f16", stages=2)
    made |= {"A": tensor("f16", ROW, a), "B": tensor("f16", COLUMN, b), "C": tensor("f16", ROW, c)}
    operation = GemmOperationUniversal(**made | {"epilogue_functor": functor("f16", c)})
    assert f"align{a}x{b}x{c}" in operation.procedural_name()


@pytest.mark.parametrize("accumulator", ["f64", "f32", "f16", "s32"])
def test_what_is_allowed_by_the_message_is_made(accumulator):
    baseline = {"f64": "f64", "f32": "f16", "f16": "f16 accumulated in f16", "s32": "int8"}[accumulator]
    written = {"f64": ("f64",), "f32": ("f32", "f16", "bf16", "s8"), "f16": ("f16", "f32", "bf16")}
    computed = {"f64": ("f64",), "f32": ("f32", "f16"), "f16": ("f16", "f32"), "s32": ("f32", "s32")}
    for output, compute in itertools.product(
        written.get(accumulator, ("s32", "s8", "f32", "f16", "bf16")), computed[accumulator]
    ):
        if (compute, output) == ("s32", "bf16"):
            continue  # which the functor itself refuses
        length = 1 if baseline == "f64" else 128 // BY_SHORT_NAME[output].bits
        kind = LinearCombinationClamp if output == "s8" else LinearCombination
        change = {
            "C": tensor(output, ROW, length),
            "epilogue_functor": functor(output, length, accumulator, compute, kind),
        }
        assert GemmOperationUniversal(**{**BASELINES[baseline], **change}).C.type.short == output


def test_cuda_cores_take_int8_in_every_layout():
    for A, B, C in LAYOUTS:
        made = int8_simt() | {"A": tensor("s8", A, 4), "B": tensor("s8", B, 4), "C": tensor("s32", C, 1)}
        operation = GemmOperationUniversal(**made)
        assert operation.tile_description.math_instruction.opcode_class == SIMT
