"""Hopper-native GEMMs of all types, layouts and schedules: what is described, what text is made, what the host does."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from descriptions import COLUMN, ROW, TAG, native_parts, parts
from epilogue_functions import biased, selecting
from hopper_classes import CLASSES, COOPERATIVE, STREAM_K, described, of_tma
from unaligned import unaligned

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    MathOperation,
    SchedulerMode,
    cutlass,
)
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.families.sm90_memory import lies_in_shared_memory
from pycutlass.families.sm90_register_a import spills
from pycutlass.types import element

F16, F32 = cutlass.float16, cutlass.float32


ANY = list(itertools.product((ROW, COLUMN), repeat=2))


@pytest.mark.parametrize("layouts", ANY)
@pytest.mark.parametrize(("operand", "accumulator"), [("f16", "f32"), ("bf16", "f32"), ("f16", "f16")])
def test_operands_of_16_bits_lie_as_they_like(operand: str, accumulator: str, layouts: Any) -> None:
    for C, D in itertools.product((ROW, COLUMN), repeat=2):
        operation = described(operand, None, accumulator, layouts, C=of_tma("f16", C), D=of_tma("f32", D))
        assert operation.supports((128, 64, 32))


OTHERS = [
    ("tf32", "tf32", "f32"),
    *((a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8")),
    *((a, b, "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
]


@pytest.mark.parametrize(("a", "b", "accumulator"), OTHERS)
@pytest.mark.parametrize("layouts", ANY)
def test_others_lie_as_they_like_as_well(a: str, b: str, accumulator: str, layouts: Any) -> None:
    """By rows, both are multiplied as the transposed problem, where A lies along M."""
    fast = MathOperation.multiply_add_fast_accum if element(TAG[a]).is_float8 else MathOperation.multiply_add
    operation = described(a, b, accumulator, layouts, operation=fast)
    assert operation.supports((128, 64, 64))
    assert operation.swap_ab is (layouts == (ROW, ROW))
    assert ("FastAccumulation" in operation.body()) is (fast.name.endswith("accum") and layouts == (ROW, COLUMN))
    assert operation.partial.swap_ab is operation.swap_ab


def test_by_rows_both_are_the_transposed_problem_anyhow() -> None:
    one, other = (described("tf32", layouts=(ROW, ROW), swap_ab=swap_ab) for swap_ab in (False, True))
    assert one == other and one.procedural_name() == other.procedural_name()
    with pytest.raises(DescriptionError, match=r"of A and B by columns.*: use swap_ab=False"):
        described("tf32", layouts=(COLUMN, COLUMN), swap_ab=True)
    assert not described("f16", layouts=(ROW, ROW)).swap_ab
    assert described("f16", layouts=(COLUMN, COLUMN), swap_ab=True).swap_ab
    top = selecting(2)(F16, 8)
    for layouts in ANY:
        if layouts == (ROW, ROW):
            with pytest.raises(DescriptionError, match=r"by rows are multiplied as the transposed.*ColumnMajor"):
                described("tf32", layouts=layouts, C=of_tma("f16"), functor=top)
        else:
            assert described("tf32", layouts=layouts, C=of_tma("f16"), functor=top)


def test_a_function_by_columns_of_what_is_not_transposed_stores_columns() -> None:
    operation = CLASSES["tf32, A by columns, a function by columns"]
    assert not operation.swap_ab and "TransposedSm90" not in operation.body()
    parts = operation.family.parts_of(operation)
    assert parts.epilogue.stores_columns and not parts.D.is_row_major


def test_registers_of_a_count_where_it_is_loaded(said: Any) -> None:
    """As ptxas says."""
    for layouts, short, shape, schedule, clean in (
        ((COLUMN, COLUMN), "tf32", (256, 160, 32), None, True),
        ((COLUMN, ROW), "tf32", (256, 192, 32), None, False),
        ((ROW, COLUMN), "tf32", (256, 192, 32), None, True),
        ((COLUMN, COLUMN), "tf32", (128, 192, 32), KernelSchedule.Pingpong, False),
        ((COLUMN, COLUMN), "s8", (128, 128, 128), KernelSchedule.Pingpong, True),
        ((COLUMN, ROW), "s8", (128, 128, 128), KernelSchedule.Pingpong, False),
        ((COLUMN, ROW), "s8", (256, 128, 128), None, True),
    ):
        like = described(
            short, None, "s32" if short == "s8" else "f32", layouts, shape, of_tma("f16"), schedule=schedule
        )
        assert spills(like.tile_description, like.family.parts_of(like)) is not clean, (layouts, short, shape)
        assert (
            like.tile_description.threadblock_shape
            in {
                tile.threadblock_shape
                for tile in pycutlass.tile_descriptions(like)
                if tile.kernel_schedule is like.tile_description.kernel_schedule
            }
        ) is clean
    assert sum("registers of A of cutlass." in sentence for sentence in said()) == 3


def test_listed_tiles_are_those_of_the_layouts() -> None:
    tiles = pycutlass.tile_descriptions(CLASSES["bytes, neither along K"])
    assert tiles
    assert {tile.threadblock_shape[1] for tile in tiles} <= {128, 256}
    assert {tile.threadblock_shape[0] for tile in tiles} <= {128, 256}
    tiles = pycutlass.tile_descriptions(CLASSES["tf32, neither along K"])
    assert tiles and {tile.threadblock_shape[2] for tile in tiles} == {32}


def test_fast_accumulation_is_of_floats_of_8_bits() -> None:
    fast = described("e4m3", operation=MathOperation.multiply_add_fast_accum)
    assert "CooperativeFastAccumulation" in fast.body() and "FastAccumulation" not in described("e4m3").body()
    assert fast.tile_description.accumulator_registers * 2 == described("e4m3").tile_description.accumulator_registers
    with pytest.raises(DescriptionError, match="multiply"):
        described("f16", operation=MathOperation.multiply_add_fast_accum)


def test_what_is_no_instruction_of_hopper_s_says_which_is() -> None:
    for types, remedy in (
        (("f32", "f32", "f32"), "Give element_a and element_b cutlass.tfloat32"),
        (("e4m3", "f16", "f32"), "multiply operands of one type, or e4m3 and e5m2, or int8 and uint8"),
        (("u8", "e4m3", "s32"), "multiply operands of one type, or e4m3 and e5m2, or int8 and uint8"),
        (("u8", "u8", "f32"), "multiply u8 and accumulate in s32"),
    ):
        with pytest.raises(DescriptionError, match=remedy):
            described(*types)
    with pytest.raises(DescriptionError, match=r"Give MathOperation\.multiply_add, whose sums wrap around"):
        described("s8", None, "s32", operation=MathOperation.multiply_add_saturate)
    with pytest.raises(DescriptionError, match=r"Give MathOperation\.multiply_add\."):
        described("f16", operation=MathOperation.multiply_add_fast_accum)


def test_ampere_style_kernels_are_not_swapped() -> None:
    with pytest.raises(DescriptionError, match="swap_ab=True belongs to Hopper-native kernels"):
        GemmOperationUniversal(**parts("f16"), swap_ab=True)


def test_partial_sums_are_aligned_and_fit_by_themselves() -> None:
    """Also where C has fewer elements of an access, and where sums are wider than D."""
    narrow = described("f16", None, "f16", C=of_tma("f32"))
    assert narrow.partial.C.alignment == 8
    apart = described(C=of_tma("f16", COLUMN), D=of_tma("f16"))
    assert apart.partial.C.layout is ROW  # as the reduction writes D
    full = described(C=of_tma("f16"), stages=6)
    assert full.partial.tile_description.stages is None
    mode = cutlass.gemm.Mode.GemmSplitKParallel
    for each in (narrow, full):
        assert each.supports(pycutlass.GemmProblemSize(128, 128, 512, mode, split_k_slices=4))


def test_a_reduction_of_others_makes_no_partial_sums() -> None:
    operation = described(C=of_tma("e4m3"))
    f16 = LinearCombination(F16, 8, F32, F32)
    shape = cutlass.MatrixCoord(4, 256)
    of_others = pycutlass.ReductionOperation(shape, of_tma("f16"), F32, epilogue_functor=f16, count=8)
    assert operation.parts([operation, of_others]) == [operation]
    own = described(C=of_tma("f16"))
    assert own.parts([own, of_others]) == [own, own.partial]


def test_int8_in_slices_of_stream_k_is_clamped_once() -> None:
    operation = described("s8", None, "s32", C=of_tma("s8"), swizzle=cutlass.ThreadblockSwizzleStreamK)
    assert operation.supports(pycutlass.GemmProblemSize(128, 128, 4096, split_k_slices=4))


def test_sums_of_8_bit_floats_are_there_twice() -> None:
    with pytest.raises(DescriptionError, match=r"256 accumulator registers.*or MathOperation\.multiply_add_fast_accum"):
        described("e4m3", shape=(128, 256, 128))
    assert described("e4m3", shape=(128, 256, 128), operation=MathOperation.multiply_add_fast_accum)


def test_swapped_operands_make_the_transposed_problem() -> None:
    C = of_tma("f16")
    plain, swapped = (described(C=C, shape=(64, 8, 64), swap_ab=swap_ab) for swap_ab in (False, True))
    assert plain != swapped and plain.procedural_name() != swapped.procedural_name()
    assert "TransposedSm90<Transposed>" in swapped.body() and "TransposedSm90" not in plain.body()
    assert swapped.body().count("cutlass::layout::ColumnMajor") == 2  # B^T of B, which lies along K, and D^T
    for copy in (pickle.loads(pickle.dumps(swapped)), eval(repr(swapped), vars(pycutlass) | {"cutlass": cutlass})):
        assert copy == swapped and copy.procedural_name() == swapped.procedural_name()
    assert swapped.output((3, 64, 64)).strides == (64, 1)


def test_a_function_with_a_column_major_d_is_swapped_anyhow() -> None:
    C, functor = of_tma("f16", COLUMN), biased(F16, 8)
    one, other = (described(C=C, functor=functor, swap_ab=swap_ab) for swap_ab in (False, True))
    assert one == other and one.swap_ab
    with pytest.raises(DescriptionError, match="swap_ab must be a bool"):
        described(C=C, functor=functor, swap_ab=1)  # type: ignore[arg-type]


def test_a_vector_of_a_swapped_function_is_that_of_the_other_axis() -> None:
    rows = described(C=of_tma("f16"), functor=biased(F16, 8), swap_ab=True)
    assert "pycutlass::ColumnVector" in rows.body() or "Column<" in rows.body()
    given = {"bias": pycutlass.TensorSpec((64,), "float16")}
    assert rows.supports((128, 64, 64), given)


@pytest.mark.parametrize("columns", [8, 16, 48, 144, 160, 208, 224])
def test_every_number_of_columns_is_one_instruction(columns: int) -> None:
    text = described(C=of_tma("f16"), shape=(128, columns, 64), schedule=KernelSchedule.Cooperative).body()
    assert ("CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED" in text) == (columns not in (8, 16))


@pytest.mark.parametrize("cluster", [(4, 1), (1, 4), (2, 4), (4, 2), (8, 1), (1, 8)])
def test_clusters_have_up_to_8_threadblocks(cluster: tuple[int, int]) -> None:
    assert f"_{cluster[0]}x{cluster[1]}_" in described(cluster=cluster).procedural_name()


def test_stream_k_splits_k() -> None:
    operation = described(C=of_tma("f16"), swizzle=cutlass.ThreadblockSwizzleStreamK)
    assert operation.is_stream_k and "pycutlass::StreamK>" in operation.body()
    size = pycutlass.GemmProblemSize(128, 128, 4096, split_k_slices=7)
    assert operation.supports(size)
    answer = described(C=of_tma("f16")).supports(size)
    assert "split K by stream-K, or in Mode.GemmSplitKParallel" in answer.reason
    assert "ThreadblockSwizzleStreamK" in answer.reason


@pytest.mark.parametrize(
    ("shape", "stages", "fits"),
    [
        ((128, 160, 32), None, True),
        ((128, 48, 32), None, False),
        ((128, 112, 64), None, False),
        ((128, 8, 32), 4, True),
        ((128, 8, 32), 2, True),
        ((128, 8, 32), 3, False),
        ((128, 8, 48), None, False),
    ],
)
def test_what_cute_lays_out(shape: tuple[int, int, int], stages: int | None, fits: bool) -> None:
    """As nvcc says of tf32."""
    if fits:
        tile = described("tf32", shape=shape, stages=stages).tile_description
        assert lies_in_shared_memory(tile, stages)
        return
    with pytest.raises(DescriptionError, match="CuTe cannot lay out"):
        described("tf32", shape=shape, stages=stages)


@pytest.mark.parametrize("operand", ["f16", "bf16", "tf32", "s8", "e4m3", "e5m2"])
@pytest.mark.parametrize("swap_ab", [False, True])
def test_the_host_multiplies_them(operand: str, swap_ab: bool, without_gpu: None) -> None:
    accumulator = "s32" if operand == "s8" else "f32"
    operation = described(
        operand, None, accumulator, shape=(128, 64, 1024 // element(TAG[operand]).bits), swap_ab=swap_ab
    )
    m, n, k = 24, 32, 48
    chance = np.random.default_rng(5)
    dtype = element(TAG[operand]).dtype
    a, b = (chance.integers(-3, 4, shape).astype(dtype) for shape in ((m, k), (n, k)))
    d = np.full((m, n), 99, element(TAG[accumulator]).dtype)
    arguments = GemmArguments(operation, (m, n, k), a, b.T, None, d)
    operation.run(arguments)
    arguments.sync()
    assert np.array_equal(d, a.astype(float) @ b.astype(float).T)


@pytest.mark.parametrize(("a", "b"), list(itertools.product(("s8", "u8"), repeat=2)))
@pytest.mark.parametrize("output", ["s32", "u8", "s8", "f32"])
def test_the_host_multiplies_bytes_of_either_kind(a: str, b: str, output: str, without_gpu: None) -> None:
    operation = described(a, b, "s32", C=of_tma(output))
    m, n, k = 16, 32, 64
    chance = np.random.default_rng(6)
    left, right = (
        chance.integers(*((0, 256) if short == "u8" else (-128, 128)), shape).astype(element(TAG[short]).dtype)
        for short, shape in ((a, (m, k)), (b, (n, k)))
    )
    d = np.full((m, n), 99, operation.D.type.dtype)
    arguments = GemmArguments(operation, (m, n, k), left, right.T, None, d, output_op=operation.epilogue_type(0.001))
    if output == "s32":
        arguments.update(output_op=operation.epilogue_type(1.0))
    operation.run(arguments)
    arguments.sync()
    exact = left.astype(float) @ right.astype(float).T * (1.0 if output == "s32" else 0.001)
    assert np.abs(d - exact.clip(*operation.D.type.limits)).max() <= (1e-3 if output == "f32" else 0.5001)


def test_int8_wraps_around_where_tensor_cores_do(without_gpu: None) -> None:
    operation = described("s8", None, "s32", functor=LinearCombination(cutlass.int32, 4, cutlass.int32, cutlass.int32))
    k = 2**17 + 16
    a, b, d = np.full((1, k), -128, np.int8), np.full((4, k), -128, np.int8), np.empty((1, 4), np.int32)
    arguments = GemmArguments(operation, (1, 4, k), a, b.T, None, d)
    operation.run(arguments)
    arguments.sync()
    assert np.all(d == k * 2**14 - 2**32)


def test_operands_that_tma_cannot_move_are_named() -> None:
    operation = described("e4m3")
    reason = operation.supports((128, 64, 24)).reason
    assert "TMA needs 16-byte alignment" in reason and "operand A" in reason
    with pytest.raises(ArgumentError, match="operand A"):
        GemmArguments(operation, (4, 4, 24), *(np.zeros((4, 24), element(TAG["e4m3"]).dtype),) * 2)


def _refused_in_parallel(operation: pycutlass.GemmOperationUniversal, k: int, slices: int) -> str:
    problem = pycutlass.GemmProblemSize(128, 128, k, cutlass.gemm.Mode.GemmSplitKParallel, split_k_slices=slices)
    return str(operation.supports(problem).reason)


def test_slices_in_parallel_are_whole_steps_or_equal() -> None:
    operation = described(C=of_tma("f16"), schedule=KernelSchedule.Pingpong)
    assert operation.splits_in_parallel and operation.partial.C.type.short == "f32"
    for k, slices in ((4096, 8), (4096, 64), (4104, 65), (4104, 7), (72, 2), (72, 3), (72, 9), (0, 5)):
        assert not _refused_in_parallel(operation, k, slices), (k, slices)
    reason = _refused_in_parallel(operation, 72, 4)
    assert "slices of whole steps of 64 elements" in reason and "split_k_slices=3" in reason
    assert "split_k_slices=65" in _refused_in_parallel(operation, 4104, 66)


def test_slices_of_kernels_whose_device_side_is_of_cutlass_are_equal() -> None:
    operation = described(C=of_tma("f16"), shape=(128, 144, 64), schedule=KernelSchedule.Pingpong)
    assert not _refused_in_parallel(operation, 4096, 8)
    reason = _refused_in_parallel(operation, 4104, 4)
    assert "equal slices of a multiple of 8 elements" in reason and "split_k_slices=3, or stream-K" in reason


def test_partial_sums_of_the_transposed_problem_are_its_own() -> None:
    swapped = described(C=of_tma("f16"), shape=(64, 8, 64), swap_ab=True)
    assert swapped.partial.swap_ab and "TransposedSm90" in swapped.partial.body()


@pytest.mark.parametrize("name", ["B by rows, pingpong", "swapped, 8 columns", "tf32"])
def test_partial_sums_are_added_up(name: str, without_gpu: None) -> None:
    operation = CLASSES[name]
    m, n, k = 24, 40, 96
    chance = np.random.default_rng(8)
    dtype = operation.A.type.dtype
    a, b = chance.integers(-2, 3, (m, k)).astype(dtype), chance.integers(-2, 3, (k, n)).astype(dtype)
    b = b if operation.B.is_row_major else np.asfortranarray(b)
    d = np.full((m, n), 99, operation.D.type.dtype)
    mode = cutlass.gemm.Mode.GemmSplitKParallel
    arguments = GemmArguments(operation, (m, n, k), a, b, None, d, mode, split_k_slices=3)
    operation.run(arguments)
    alignment = operation.D.alignment
    functor = LinearCombination(operation.D.element, alignment, F32, F32)
    shape = cutlass.MatrixCoord(4, 32 * alignment)
    reduction = pycutlass.ReductionOperation(shape, operation.D, F32, epilogue_functor=functor, count=alignment)
    reduction.run(pycutlass.ReductionArguments(reduction, (m, n), 3, arguments.ptr_D, d))
    assert np.array_equal(d.astype(float), a.astype(float) @ b.astype(float))


def test_three_warp_groups_share_a_tile_of_192_rows() -> None:
    tile = CLASSES["three warp groups"].tile_description
    assert tile.num_threads == 512 and tile.accumulator_registers == 192 * 96 // 384
    assert described(shape=(192, 96, 64)).tile_description.num_threads == 384, "Pingpong, where no schedule is named"
    assert "pycutlass::Cooperative" in CLASSES["three warp groups"].body()


@pytest.mark.parametrize(
    ("described_so", "lacking"),
    [
        (lambda: described(shape=(192, 96, 64), schedule=COOPERATIVE, swizzle=STREAM_K), "kernels of stream-K"),
        (lambda: CLASSES["three warp groups"].array, "kernels for Mode.Array"),
        (
            lambda: GemmOperationGrouped(
                **native_parts((192, 96, 64), (1, 1), COOPERATIVE), precompute_mode=SchedulerMode.Device
            ),
            "groups",
        ),
    ],
)
def test_what_three_warp_groups_lack_is_refused(described_so: Any, lacking: str) -> None:
    with pytest.raises(DescriptionError, match="three warp groups share a tile of 192 rows") as caught:
        described_so()
    assert lacking in str(caught.value) and "do not support: use threadblock_shape [128, " in str(caught.value)


def test_three_warp_groups_do_not_load_by_cp_async() -> None:
    """All that is wrong is said at once, with what would be taken in its place."""
    with pytest.raises(DescriptionError, match="which three warp groups that share M=192 do not") as caught:
        unaligned(shape=(192, 96, 48), cluster=(2, 1), schedule=COOPERATIVE)
    message = str(caught.value)
    assert (
        "operand A of cutlass.float16 needs alignment 8, got 2" in message
        and "or describe A and B with alignment 8" in message
    )
    assert "use threadblock_shape [128, 96, 32] and cluster_shape=[1, 1]" in message
    assert unaligned(shape=(128, 96, 32), schedule=COOPERATIVE)


@pytest.mark.parametrize(
    ("operand", "accumulator", "layouts", "shape", "instead"),
    [
        ("tf32", "f32", (COLUMN, COLUMN), (192, 96, 32), [128, 96, 32]),
        ("s8", "s32", (ROW, ROW), (192, 96, 64), [128, 96, 128]),
    ],
)
def test_a_goes_to_registers_of_two_warp_groups(
    operand: str, accumulator: str, layouts: Any, shape: tuple[int, int, int], instead: list[int]
) -> None:
    with pytest.raises(DescriptionError, match="two warp groups share, and not the three that share M=192") as caught:
        described(operand, None, accumulator, layouts, shape=shape, schedule=COOPERATIVE)
    assert f"use threadblock_shape {instead}, or describe A" in str(caught.value)
    assert described(operand, None, accumulator, layouts, shape=tuple(instead), schedule=COOPERATIVE)
