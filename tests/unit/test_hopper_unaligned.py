"""Hopper-native GEMMs of operands that TMA cannot copy: what is described, what text is made, what is refused."""

from __future__ import annotations

import itertools
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
from descriptions import COLUMN, ROW
from epilogue_functions import biased
from hopper_classes import CLASSES
from unaligned import FUNCTIONS, UNALIGNED, unaligned

import pycutlass
from pycutlass import GemmOperationUniversal, KernelSchedule, TensorDescription, cutlass
from pycutlass.errors import DescriptionError
from pycutlass.families import SM90
from pycutlass.families.sm90_memory import lies_in_shared_memory

EVERY = UNALIGNED | FUNCTIONS


@pytest.mark.parametrize("name", EVERY)
def test_it_is_described_named_and_copied(name: str) -> None:
    operation = EVERY[name]
    loads = operation.A.alignment_bytes < 16 or operation.B.alignment_bytes < 16
    assert operation.loads_by_cp_async == loads == ("_cpasync" in operation.procedural_name())
    assert operation.stores_directly and "_direct" in operation.procedural_name()
    for copy in (
        pickle.loads(pickle.dumps(operation)),
        GemmOperationUniversal(**{field: getattr(operation, field) for field in operation._FIELDS}),
    ):
        assert copy == operation and copy.emit() == operation.emit()


def test_what_is_aligned_to_16_bytes_goes_by_tma() -> None:
    for operation in CLASSES.values():
        assert not operation.loads_by_cp_async and not operation.stores_directly
        assert "_direct" not in operation.procedural_name() and "_cpasync" not in operation.procedural_name()


@pytest.mark.parametrize("name", EVERY)
def test_problems_follow_the_alignments(name: str) -> None:
    operation = EVERY[name]
    m, n, k = 48, 48, 48
    assert operation.supports((m, n, k))
    along_k = [
        each.alignment for each, by_rows in ((operation.A, True), (operation.B, False)) if each.is_row_major is by_rows
    ]
    step = max(along_k, default=1)
    assert operation.supports((m, n, k + step)) and (step == 1 or not operation.supports((m, n, k + step // 2)))
    columns = [
        *(each.alignment for each in (operation.B, operation.C, operation.D) if each.is_row_major),
        *([2 * operation.D.alignment] if name == "gated" else []),
    ]
    step = max(columns, default=1)
    assert operation.supports((m, n + step, k)) and (step == 1 or not operation.supports((m, n + step // 2, k)))


def test_tiles_that_are_listed_are_those_of_cp_async() -> None:
    for name, operation in EVERY.items():
        tiles = pycutlass.tile_descriptions(operation)
        assert tiles, name
        assert all(tile.accumulator_registers <= (112 if operation.loads_by_cp_async else 176) for tile in tiles)
        clusters = {tile.cluster_shape for tile in tiles}
        assert (clusters == {(1, 1, 1)}) == operation.loads_by_cp_async
        if operation.tile_description.accumulator_registers <= 112 and operation.tile_description.stages is None:
            same = replace(operation.tile_description, cluster_shape=(1, 1, 1))
            assert same in tiles or operation.tile_description.threadblock_shape[2] not in {
                tile.threadblock_shape[2] for tile in tiles
            }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cluster": (2, 1)}, ["which shares nothing", "cluster_shape=[2, 1, 1]", "use cluster_shape=[1, 1]"]),
        ({"swizzle": cutlass.ThreadblockSwizzleStreamK}, ["leaves over", "swizzling_functor=cutlass.IdentitySwizzle1"]),
        (
            {"cluster": (1, 2), "swizzle": cutlass.ThreadblockSwizzleStreamK},
            ["cluster_shape=[1, 1] and swizzling_functor=cutlass.IdentitySwizzle1"],
        ),
        (
            {"shape": (128, 96, 64), "layouts": (ROW, ROW, ROW)},
            ["cannot be divided", "threadblock_shape [128, 64, 64]"],
        ),
        ({"shape": (128, 128, 80)}, ["cannot be divided", "threadblock_shape [128, 128, 64]"]),
        ({"shape": (128, 256, 64), "schedule": KernelSchedule.Pingpong}, ["accumulator registers"]),
        (
            {"alignments": (1, 2, 1)},
            ["operand A", "aligned to 2", "describe A with alignment 2", "Ampere-style kernel"],
        ),
        ({"alignments": (1, 1, 1)}, ["operand A", "operand B", "describe A and B with alignment 2"]),
        ({"functor": biased(cutlass.float16, 1), "shape": (128, 8, 64)}, ["computes 16 columns at once"]),
    ],
)
def test_what_is_refused_says_what_serves(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DescriptionError) as caught:
        unaligned(**change)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
@pytest.mark.parametrize("layouts", list(itertools.product((ROW, COLUMN), repeat=2)))
@pytest.mark.parametrize("schedule", [KernelSchedule.Cooperative, KernelSchedule.Pingpong])
def test_a_tile_that_a_message_names_is_one_of_cp_async(schedule: KernelSchedule, layouts: Any, cluster: Any) -> None:
    """Its threads divide it, and have registers for its sums."""
    refused = 0
    rows = (192, 256, 64 if schedule is KernelSchedule.Pingpong else 128)
    for shape in itertools.product(rows, (8, 48, 112, 128, 160, 192, 256), (16, 48, 64, 128)):
        options: Any = {"layouts": (*layouts, ROW), "schedule": schedule}
        try:
            unaligned(alignments=(8, 8, 1), shape=shape, cluster=cluster, **options)
        except DescriptionError:
            continue  # wrong anyhow
        try:
            unaligned(alignments=(8, 2, 1), shape=shape, cluster=cluster, **options)
            continue
        except DescriptionError as error:
            text = str(error)
        assert ("use cluster_shape=[1, 1]" in text or ", cluster_shape=[1, 1]" in text or " and cluster" in text) is (
            cluster != (1, 1)
        ), text
        to = shape
        if named := re.search(r"use threadblock_shape \[(\d+), (\d+), (\d+)\]", text):
            to = tuple(map(int, named.groups()))
        elif columns := re.search(r"use at most (\d+) columns", text):
            to = (shape[0], int(columns[1]), shape[2])
        assert to != shape or cluster != (1, 1), text
        assert unaligned(alignments=(8, 2, 1), shape=to, **options)
        refused += 1
    assert refused


def test_sums_of_8_bit_floats_are_those_of_the_tensor_cores() -> None:
    operation = UNALIGNED["e4m3 x e5m2"]
    math = replace(operation.tile_description.math_instruction, math_operation=pycutlass.MathOperation.multiply_add)
    fields = {field: getattr(operation, field) for field in operation._FIELDS}
    fields["tile_description"] = replace(operation.tile_description, math_instruction=math)
    with pytest.raises(DescriptionError, match=r"use MathOperation\.multiply_add_fast_accum, or describe A and B with"):
        GemmOperationUniversal(**fields)


def test_every_tile_that_is_accepted_is_divided_among_the_threads() -> None:
    """As CUTLASS asserts (sm90_common.inl, make_simt_gmem_tiled_copy)."""
    refused = 0
    for n in range(16, 257, 16):
        for k in (16, 32, 48, 64, 80, 128):
            for layout in (ROW, COLUMN):
                for alignment in (2, 4, 8):
                    length, lines = (n, k) if layout is ROW else (k, n)
                    across = min(128, length // alignment)
                    fits = 128 % across == 0 and lines % (128 // across) == 0
                    along = min(128, k // 2)
                    fits &= 128 % along == 0 and 128 % (128 // along) == 0
                    try:
                        unaligned(alignments=(2, alignment, 1), layouts=(ROW, layout, ROW), shape=(128, n, k))
                        assert fits
                    except DescriptionError as error:
                        assert (not fits and "cannot be divided" in str(error)) or "lay out" in str(error)
                        refused += 1
    assert refused > 50


def test_groups_need_tma() -> None:
    operation = UNALIGNED["D of any alignment"]
    fields = [getattr(operation, field) for field in operation._FIELDS[:6]]
    with pytest.raises(DescriptionError, match=r"groups need 16-byte alignment, for TMA.*operand C"):
        pycutlass.GemmOperationGrouped(*fields)


def test_partial_sums_are_as_little_aligned_as_d() -> None:
    mode = cutlass.gemm.Mode.GemmSplitKParallel
    for name in ("4 bytes", "D of any alignment"):
        operation = UNALIGNED[name]
        partial = operation.partial
        assert partial.C.alignment == 1 and partial.loads_by_cp_async == operation.loads_by_cp_async
        size = pycutlass.GemmProblemSize(50, 51, 256, mode, split_k_slices=4)
        assert operation.supports(size), operation.supports(size).reason
    assert UNALIGNED["8 bytes, pingpong"].partial.C.alignment == 4


def test_d_alone_may_be_unaligned() -> None:
    D = TensorDescription(cutlass.float16, ROW, 1)
    C = TensorDescription(cutlass.float16, ROW, 8)
    operation = unaligned(alignments=(8, 8, 8), D=D)
    assert operation.C == C and operation.D == D and operation.stores_directly
    assert operation.supports((64, 64, 64)) and not operation.supports((64, 65, 64))  # C, which may be given


def test_shared_memory_is_that_of_the_stages() -> None:
    for operation in EVERY.values():
        parts = SM90.parts_of(operation)
        tile = operation.tile_description
        bytes_ = SM90.shared_bytes(tile, parts.A, parts.B, parts.C, parts.D, epilogue=parts.epilogue)
        assert bytes_ <= 232448
        if tile.stages is None:
            stages = (bytes_ // tile.stage_bytes()) + 1
            assert bytes_ + tile.stage_bytes() > 232448 or not lies_in_shared_memory(tile, stages)


def test_types_of_4_bytes_load_one_element() -> None:
    assert unaligned("tf32", (1, 1, 1), output="f32", layouts=(ROW, COLUMN, COLUMN)).supports((33, 35, 37))
