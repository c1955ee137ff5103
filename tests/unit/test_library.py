"""Math instructions, tiles and tensor descriptions: what is valid, what is refused, and that they are values."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest
from descriptions import BY_SHORT_NAME, SIMT, TAG, TENSOR_OP
from hypothesis import assume, given
from hypothesis import strategies as st
from part_cases import F16, F32_SIMT, HOPPER, WRONG_INSTRUCTIONS, WRONG_TILES, instruction

import pycutlass
from pycutlass import (
    KernelSchedule,
    MathInstruction,
    MathOperation,
    RasterOrder,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.enums import SchedulerMode, StrideSupport
from pycutlass.errors import DescriptionError
from pycutlass.families.sm90_products import clean_registers

FAST = [MathOperation.multiply_add_fast_f16, MathOperation.multiply_add_fast_bf16, MathOperation.multiply_add_fast_f32]
SHAPES = [(8, 8, 4), (16, 8, 8), (16, 8, 16), (16, 8, 32), (1, 1, 1), (1, 1, 4), (8, 8, 16), (8, 8, 8), (16, 16, 16)]

#: The guide's table, and below it what CUTLASS has beside it: opcode class, operand, accumulator, shape, operations.
VALID = {
    (opcode, operand, accumulator, shape, operation)
    for opcode, operand, accumulator, shape, operations in [
        (TENSOR_OP, "f64", "f64", (8, 8, 4), [MathOperation.multiply_add]),
        (TENSOR_OP, "f32", "f32", (16, 8, 8), [MathOperation.multiply_add, *FAST]),
        (TENSOR_OP, "tf32", "f32", (16, 8, 8), [MathOperation.multiply_add]),
        (TENSOR_OP, "f16", "f32", (16, 8, 8), [MathOperation.multiply_add]),
        (TENSOR_OP, "bf16", "f32", (16, 8, 8), [MathOperation.multiply_add]),
        (TENSOR_OP, "f16", "f16", (16, 8, 16), [MathOperation.multiply_add]),
        (TENSOR_OP, "f16", "f32", (16, 8, 16), [MathOperation.multiply_add]),
        (TENSOR_OP, "bf16", "f32", (16, 8, 16), [MathOperation.multiply_add]),
        (TENSOR_OP, "s8", "s32", (16, 8, 32), [MathOperation.multiply_add_saturate]),
        (SIMT, "f64", "f64", (1, 1, 1), [MathOperation.multiply_add]),
        (SIMT, "f32", "f32", (1, 1, 1), [MathOperation.multiply_add]),
        (TENSOR_OP, "f16", "f16", (16, 8, 8), [MathOperation.multiply_add]),
        (TENSOR_OP, "s8", "s32", (8, 8, 16), [MathOperation.multiply_add_saturate]),
        (SIMT, "s8", "s32", (1, 1, 4), [MathOperation.multiply_add]),
    ]
    for operation in operations
}
OTHER_NAMES = {
    (TENSOR_OP, "f16", "f32", (16, 8, 8), MathOperation.multiply_add_fast_f16),
    (TENSOR_OP, "bf16", "f32", (16, 8, 8), MathOperation.multiply_add_fast_bf16),
    (TENSOR_OP, "s8", "s32", (16, 8, 32), MathOperation.multiply_add),
    (TENSOR_OP, "s8", "s32", (8, 8, 16), MathOperation.multiply_add),
}
NAMES = {name: getattr(pycutlass, name) for name in pycutlass.__all__}


instructions = st.sampled_from(sorted(VALID, key=str)).map(lambda row: instruction(*row))


@st.composite
def ampere_tiles(draw: st.DrawFn) -> TileDescription:
    """Tiles made of whole warps of whole instructions."""
    of = draw(instructions)
    warps = draw(st.tuples(*[st.sampled_from([1, 2, 4])] * 2, st.sampled_from([1, 2])))
    many = draw(st.tuples(*[st.integers(1, 4)] * 2, st.integers(2, 4)))
    step = of.instruction_shape if of.is_tensor_op else (32, 32, of.instruction_shape[2])
    shape = [extent * count * times for extent, count, times in zip(step, warps, many, strict=True)]
    return TileDescription(shape, draw(st.integers(2, 10)), list(warps), of)


@st.composite
def native_tiles(draw: st.DrawFn) -> TileDescription:
    schedule = draw(st.sampled_from([None, KernelSchedule.Pingpong, KernelSchedule.Cooperative]))
    m = draw(st.sampled_from([64, 128, 192, 256]))
    assume(schedule is not KernelSchedule.Cooperative or m in (128, 256))
    cooperative = schedule is KernelSchedule.Cooperative or (schedule is None and m in (128, 256))
    most = 224 * 128 * (2 if cooperative else 1) // m
    n = 16 * draw(st.integers(1, min(256, most) // 16))
    k = 16 * draw(st.integers(1, 8))
    cluster = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    return TileDescription([m, n, k], draw(st.sampled_from([None, 2, 5])), None, HOPPER, cluster, schedule)


tiles = st.one_of(ampere_tiles(), native_tiles())
tensors = st.builds(
    TensorDescription,
    st.sampled_from(list(TAG.values())),
    st.sampled_from([cutlass.RowMajor, cutlass.ColumnMajor]),
    st.sampled_from([1, 2, 4, 8, 16, 32]),
)


# Values


@given(st.one_of(instructions, tiles, tensors))
def test_descriptions_are_values(value):
    assert eval(repr(value), dict(NAMES)) == value
    for twin in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), dataclasses.replace(value)):
        assert twin == value
        assert hash(twin) == hash(value)
        assert repr(twin) == repr(value)


@given(st.one_of(instructions, tiles, tensors))
def test_pickles_have_the_fields_alone(value):
    """As they always had: what follows from the fields is made again, and of the very rows of the tables."""
    state = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[2]
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    assert state == {name: getattr(value, name) for name in fields}
    twin = pickle.loads(pickle.dumps(value))
    follows = [field.name for field in dataclasses.fields(value) if not field.init]
    assert follows and set(vars(twin)) == {*fields, *follows}
    for name in follows:
        one, other = getattr(value, name), getattr(twin, name)
        assert one is other or (name == "warp_shape" and one == other) or (type(one) is int and one == other)


def test_a_pickle_of_what_is_refused_is_refused():
    state = {**F16.__getstate__(), "element_b": cutlass.bfloat16}
    with pytest.raises(DescriptionError, match="must be the same type"):
        object.__new__(MathInstruction).__setstate__(state)


@given(tiles, tiles)
def test_equal_means_same_fields(left, right):
    fields = [field.name for field in dataclasses.fields(TileDescription)]
    same = all(getattr(left, name) == getattr(right, name) for name in fields)
    assert (left == right) == same
    assert (repr(left) == repr(right)) == same


@pytest.mark.parametrize("value", [F16, TileDescription([128, 128, 32], 3, [2, 2, 1], F16)], ids=["math", "tile"])
def test_descriptions_are_frozen(value):
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)


@pytest.mark.parametrize("kind", [MathOperation, KernelSchedule, RasterOrder, StrideSupport, SchedulerMode])
def test_enumerations_can_be_pasted_back(kind):
    for member in kind:
        assert eval(repr(member), {kind.__name__: kind}) is member
        assert pickle.loads(pickle.dumps(member)) is member


# Math instructions


def test_the_table_of_valid_instructions_is_the_guides():
    shorts = list(BY_SHORT_NAME)
    accepted = set()
    for row in itertools.product([TENSOR_OP, SIMT], shorts, shorts, SHAPES, MathOperation):
        try:
            instruction(*row)
        except DescriptionError:
            continue
        accepted.add(row)
    assert accepted == VALID | OTHER_NAMES


@pytest.mark.parametrize("row", sorted(OTHER_NAMES, key=str), ids=str)
def test_other_names_of_instructions(row):
    """The original's scripts say multiply_add of int8, and name the type that f32 is rounded to."""
    made = instruction(*row)
    assert made.is_over_f32 or made == instruction(*row[:-1], MathOperation.multiply_add_saturate)


@pytest.mark.parametrize("row", sorted(VALID, key=str), ids=str)
def test_what_an_instruction_says_of_itself(row):
    opcode, operand, accumulator, shape, operation = row
    made = instruction(opcode, operand, accumulator, list(shape), operation)
    assert made.instruction_shape == shape
    assert (made.a, made.accumulator) == (BY_SHORT_NAME[operand], BY_SHORT_NAME[accumulator])
    assert made.is_tensor_op == (opcode == TENSOR_OP)
    spelled = {"multiply_add": "OpMultiplyAdd", "multiply_add_saturate": "OpMultiplyAddSaturate"}
    fast = "OpMultiplyAdd" + operation.name.removeprefix("multiply_add_").title().replace("_", "").replace("Bf", "BF")
    assert made.operator_cpp == f"cutlass::arch::{spelled.get(operation.name, fast)}"


@pytest.mark.parametrize(("change", "words"), WRONG_INSTRUCTIONS, ids=str)
def test_one_wrong_thing_in_an_instruction_is_named(change, words):
    assert dataclasses.replace(F16) == F16  # the baseline is valid
    with pytest.raises(DescriptionError) as caught:
        dataclasses.replace(F16, **change)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("accumulator", [cutlass.float16, cutlass.float32])
def test_voltas_instruction_is_refused_with_the_reason(accumulator):
    with pytest.raises(DescriptionError) as caught:
        dataclasses.replace(F16, instruction_shape=[8, 8, 4], element_accumulator=accumulator)
    words = ["[8, 8, 4] of cutlass.float16 is Volta's", "compute capability 70", "no target of CUDA 13", "[16, 8, 8]"]
    assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(DescriptionError) as caught:  # which is nobody's instruction for this type
        instruction(TENSOR_OP, "bf16", "f32", (8, 8, 4), MathOperation.multiply_add)
    assert "Volta" not in str(caught.value)


def test_the_opcode_class_is_simt_by_default():
    assert MathInstruction((1, 1, 1), cutlass.float32, cutlass.float32, cutlass.float32) == F32_SIMT


# Tiles


@given(ampere_tiles())
def test_ampere_tiles(tile):
    assert not tile.is_sm90
    assert all(isinstance(extents, tuple) for extents in (tile.threadblock_shape, tile.warp_count))
    warps = tile.warp_count[0] * tile.warp_count[1] * tile.warp_count[2]
    assert tile.num_threads == 32 * warps
    whole = [warp * count for warp, count in zip(tile.warp_shape, tile.warp_count, strict=True)]
    assert tuple(whole) == tile.threadblock_shape
    m, n, k = tile.threadblock_shape
    assert tile.stage_bytes() * 8 == (m * k + n * k) * tile.math_instruction.a.bits
    assert tile.procedural_name() == f"{m}x{n}_{k}x{tile.stages}"


@given(ampere_tiles(), st.integers(0, 2), st.integers(1, 255))
def test_a_tile_that_its_warps_cannot_share_is_refused_and_the_remedy_works(tile, axis, excess):
    step = tile.math_instruction.instruction_shape[axis] * tile.warp_count[axis]
    assume(excess % step)
    shape = list(tile.threadblock_shape)
    shape[axis] += excess
    with pytest.raises(DescriptionError) as caught:
        dataclasses.replace(tile, threadblock_shape=shape)
    words = str(caught.value)
    assert f"threadblock_shape {'MNK'[axis]}={shape[axis]} must be a multiple of warp_count" in words
    if warps := re.search(r"use warp_count \[(\d+), (\d+), (\d+)\]", words):
        assert shape[axis] & (shape[axis] - 1) == 0, "the extent is a usual one"
        assert dataclasses.replace(tile, threadblock_shape=shape, warp_count=tuple(map(int, warps.groups())))
        return
    shape[axis] = nearest = int(re.search(r"the nearest is (\d+)", words).group(1))
    assert nearest % step == 0
    assert dataclasses.replace(tile, threadblock_shape=shape).threadblock_shape == tuple(shape)


@given(native_tiles())
def test_native_tiles(tile):
    assert tile.is_sm90
    assert tile.num_threads == 384
    assert len(tile.cluster_shape) == 3
    assert tile.cluster_shape[2] == 1
    assert isinstance(tile.kernel_schedule, KernelSchedule)
    assert tile.warp_shape == tile.threadblock_shape
    m, n, k = tile.threadblock_shape
    assert tile.procedural_name() == f"{m}x{n}_{k}x{tile.stages or 'auto'}"


@pytest.mark.parametrize("stages", [np.array([128, 128, 64]), np.zeros((2, 2)), [10**400] * 3, "3"])
def test_stages_without_a_truth_value_are_refused(stages):
    for cluster in (None, [1, 1]):
        with pytest.raises(DescriptionError, match="stages"):
            TileDescription([128, 128, 64], stages, None, HOPPER, cluster)


def test_a_native_tile_is_cooperative_where_it_can_be():
    for m, schedule in ((64, KernelSchedule.Pingpong), (128, KernelSchedule.Cooperative)):
        tile = TileDescription([m, 128, 64], None, None, HOPPER, [2, 1])
        assert tile.kernel_schedule is schedule
        assert tile == TileDescription((m, 128, 64), None, None, HOPPER, (2, 1, 1), schedule)


@pytest.mark.parametrize(("tile", "change", "words"), WRONG_TILES, ids=str)
def test_one_wrong_thing_in_a_tile_is_named(tile, change, words):
    with pytest.raises(DescriptionError) as caught:
        dataclasses.replace(tile, **change)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("schedule", [KernelSchedule.Pingpong, KernelSchedule.Cooperative])
def test_the_remedy_for_too_many_accumulators_works(m, schedule):
    def tile(n: int) -> TileDescription:
        return TileDescription([m, n, 64], None, None, HOPPER, [1, 1], schedule)

    try:
        tile(256)
    except DescriptionError as error:
        most = int(re.search(r"at most (\d+) columns", str(error)).group(1))
        assert tile(most).threadblock_shape[1] == most
        assert tile(most).accumulator_registers <= clean_registers(tile(most)) < tile(most + 16).accumulator_registers
    else:
        assert m == 128
        assert schedule is KernelSchedule.Cooperative


# Tensors


@given(tensors)
def test_tensors(tensor):
    assert tensor.type is BY_SHORT_NAME[tensor.type.short]
    assert tensor.is_row_major == (tensor.layout is cutlass.RowMajor)
    assert 1 <= tensor.alignment_bytes <= 16
    assert tensor.alignment_bytes * 8 == tensor.alignment * tensor.type.bits


def test_the_alignment_is_one_by_default_and_at_most_128_bits():
    assert TensorDescription(cutlass.float32, cutlass.RowMajor).alignment == 1
    for short, most in {"f64": 2, "f32": 4, "tf32": 4, "f16": 8, "bf16": 8, "s8": 16, "e4m3": 16, "e5m2": 16}.items():
        assert TensorDescription(TAG[short], cutlass.RowMajor, 64).alignment == most
        assert TensorDescription(TAG[short], cutlass.RowMajor, 64) == TensorDescription(
            TAG[short], cutlass.RowMajor, most
        )


WRONG_TENSORS: list[tuple[tuple[Any, ...], list[str]]] = [
    (("f16", cutlass.RowMajor, 8), ["element type", "'f16'", "cutlass.float16"]),
    ((cutlass.dtype.u8, cutlass.RowMajor, 8), ["element type", "u8"]),
    ((cutlass.float16, "RowMajor", 8), ["layout", "'RowMajor'", "cutlass.ColumnMajor"]),
    ((cutlass.float16, cutlass.float16, 8), ["layout", "cutlass.float16", "cutlass.RowMajor"]),
    *[
        ((cutlass.float16, cutlass.RowMajor, alignment), ["alignment must be a power of two", repr(alignment)])
        for alignment in (0, -1, 3, 12, 8.0, "8", None, True)
    ],
]


@pytest.mark.parametrize(("given_", "words"), WRONG_TENSORS, ids=str)
def test_one_wrong_thing_in_a_tensor_is_named(given_, words):
    with pytest.raises(DescriptionError) as caught:
        TensorDescription(*given_)
    assert all(word in str(caught.value) for word in words), str(caught.value)
