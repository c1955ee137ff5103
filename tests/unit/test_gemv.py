"""GEMV kernels: what is described, what is refused, what text is made, and what the host computes."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from convolutions import conv, fprop
from descriptions import COLUMN, ROW, SIMT, TAG, TENSOR_OP, parts
from epilogue_functions import biased, gated, reduced
from extra_epilogue import ExtraEpilogue
from gemv_classes import CLASSES, gemv, tile_of

import pycutlass
from pycutlass import (
    Conv2dOperation,
    FastLinearCombinationClamp,
    GemmArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    GemmProblemSize,
    KernelSchedule,
    LinearCombination,
    MathInstruction,
    SchedulerMode,
    TensorDescription,
    TileDescription,
    cutlass,
)
from pycutlass.errors import AlignmentError, DescriptionError
from pycutlass.families import GEMV
from pycutlass.families.gemv import gemv_shapes
from pycutlass.types import element

F16, F32 = cutlass.float16, cutlass.float32


@pytest.mark.parametrize("name", CLASSES)
def test_a_description_is_a_value(name: str) -> None:
    operation = CLASSES[name]
    assert operation.family is GEMV and not operation.is_sm90
    assert pickle.loads(pickle.dumps(operation)) == operation
    if not operation.epilogue_functor.is_tree:
        copy = eval(repr(operation), vars(pycutlass) | {"cutlass": cutlass})
        assert copy == operation and hash(copy) == hash(operation) and copy.emit() == operation.emit()
    assert "_gemv_" in operation.procedural_name()
    assert '#include "pycutlass/gemv.h"' in operation.emit()


def test_one_text_is_made_for_each_that_differs() -> None:
    assert len({operation.procedural_name() for operation in CLASSES.values()}) == len(CLASSES)
    assert gemv().emit() != gemv(capability=90).emit()  # which waits by itself for the kernel ahead of it
    assert gemv(capability=86).emit() == gemv().emit()


@pytest.mark.parametrize("name", [name for name, each in CLASSES.items() if not each.epilogue_functor.is_tree])
def test_the_host_multiplies(name: str, without_gpu: None) -> None:
    operation = CLASSES[name]
    m, n, k = (48, 4, 32) if operation.swap_ab else (4, 48, 32)
    chance = np.random.default_rng(5)
    A, B = operation.A, operation.B
    a, b = chance.integers(-2, 3, (m, k)).astype(A.type.dtype), chance.integers(-2, 3, (k, n)).astype(B.type.dtype)
    a = a if A.is_row_major else np.asfortranarray(a)
    b = b if B.is_row_major else np.asfortranarray(b)
    d = np.full((m, n), 99, operation.D.type.dtype, order="C" if operation.D.is_row_major else "F")
    arguments = GemmArguments(operation, (m, n, k), a, b, None, d)
    operation.run(arguments)
    arguments.sync()
    exact = a.astype(float) @ b.astype(float)
    exact = exact.clip(0) if operation.epilogue_functor.activation is not None else exact
    assert np.array_equal(d.astype(float), exact)


def test_a_vector_is_a_small_operand_of_either_layout() -> None:
    """Of (K, 1), as it is indexed out of a matrix or made anew."""
    operation = gemv(swap_ab=True)
    m, k = 64, 128
    a, d = np.zeros((m, k), np.float16), np.zeros((m, 1), np.float16)
    for b in (np.zeros((k, 1), np.float16), np.zeros((k, 1), np.float16, order="F"), np.zeros(k, np.float16)[:, None]):
        assert operation.supports((m, 1, k), {"A": a, "B": b, "D": d})


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize(("kind", "by_rows"), list(itertools.product(("f16", "f32", "e4m3", "s8"), (False, True))))
def test_every_shape_that_is_offered_is_accepted(rows: int, kind: str, by_rows: bool) -> None:
    functor = LinearCombination(cutlass.int32, 1, cutlass.int32, cutlass.int32) if kind == "s8" else None
    made = 0
    for warps in ((1, 1, 1), (1, 4, 1), (1, 2, 4)):
        for shape in gemv_shapes(rows, warps, element(TAG[kind]).bits, by_rows):
            layout, d = ROW if by_rows else COLUMN, "s32" if kind == "s8" else "f16"
            operation = gemv(kind, d=d, shape=shape, warps=warps, layout=layout, functor=functor)
            assert operation.supports((rows, 64, 64))
            made += 1
    assert made > 20


def test_a_shape_that_threads_do_not_divide_names_one_that_they_do() -> None:
    with pytest.raises(DescriptionError, match=r"do not divide threadblock_shape \[1, 8, 96\] evenly; the nearest is"):
        tile_of("f16", shape=(1, 8, 96))
    with pytest.raises(DescriptionError, match=r"B that is cutlass\.RowMajor.*the nearest is \[1, 32, 256\]"):
        gemv(shape=(1, 8, 1024), layout=ROW)
    with pytest.raises(DescriptionError, match=r"B that is cutlass\.ColumnMajor.*the nearest is \[1, 16, 256\]"):
        gemv(shape=(1, 64, 128), warps=(1, 4, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (3, 8, 1024)}, "rows of a GEMV kernel, 1, 2, 4 and 8: use M=4, which takes any number up to that"),
        ({"shape": (16, 8, 1024)}, "use M=8"),
        ({"warps": (2, 2, 1)}, r"warp_count of a GEMV kernel is \[1, n, k\]"),
        ({"warps": (1, 8, 2)}, "of at most 8 warps"),
        ({"warps": None}, r"such as \[1, 4, 1\]; got None"),
    ],
)
def test_a_tile_that_there_is_not_says_which_there_is(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        tile_of("f16", **changes)


def test_parts_of_other_families_are_told_apart() -> None:
    simt = MathInstruction(None, F16, F16, F32, SIMT)
    tensor_op = MathInstruction(None, F16, F16, F32, TENSOR_OP)
    of_ampere = MathInstruction([1, 1, 1], F32, F32, F32, SIMT)
    shape, warps, schedule = [1, 8, 1024], [1, 4, 1], KernelSchedule.Gemv
    with pytest.raises(DescriptionError, match=r"have no stages: use stages=None, got 3"):
        TileDescription(shape, 3, warps, simt, kernel_schedule=schedule)
    for other in (tensor_op, of_ampere):
        with pytest.raises(DescriptionError, match=r"give MathInstruction\(None, .*, cutlass\.OpClass\.Simt\)"):
            TileDescription(shape, None, warps, other, kernel_schedule=schedule)
    with pytest.raises(DescriptionError, match=r"give the tile kernel_schedule=KernelSchedule\.Gemv; or give opcode"):
        TileDescription([128, 128, 32], 3, [2, 2, 1], simt)
    with pytest.raises(DescriptionError, match=r"give the instruction opcode_class=cutlass\.OpClass\.TensorOp"):
        TileDescription([128, 128, 64], None, None, simt, cluster_shape=[1, 1])
    with pytest.raises(DescriptionError, match="leave out kernel_schedule, or leave out cluster_shape for a GEMV"):
        TileDescription([128, 128, 64], None, None, tensor_op, [1, 1], schedule)
    with pytest.raises(
        DescriptionError, match=r"f16 and f32; bf16 and f32; .*got cutlass\.float64.*give instruction_shape=\[1, 1, 1\]"
    ):
        MathInstruction(None, cutlass.float64, cutlass.float64, cutlass.float64, SIMT)


def described(**changes: Any) -> GemmOperationUniversal:
    operation = gemv()
    fields = {name: getattr(operation, name) for name in GemmOperationUniversal._FIELDS if name != "D"}
    return GemmOperationUniversal(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": TensorDescription(F16, COLUMN, 8)}, r"describe A as cutlass\.RowMajor \(a vector, where M is 1"),
        (
            {"swap_ab": True, "B": TensorDescription(F16, ROW, 8)},
            r"swap_ab=True lie along K: describe B as cutlass\.ColumnMajor \(a vector, where N is 1",
        ),
        ({"compute_capability": 75}, "GEMV kernels are for compute capability 80 or newer; got 75"),
        ({"swizzling_functor": cutlass.ThreadblockSwizzleStreamK}, r"must be one of cutlass\.IdentitySwizzle1; got"),
        (
            {"D": TensorDescription(F32, ROW, 1), "epilogue_functor": LinearCombination(F32, 1)},
            "describe C so and leave out D, or read another matrix by an epilogue function with a Tensor",
        ),
        ({"epilogue_functor": reduced(F16, 1, F32)}, "reduced makes row_sum, row_max, .* of many elements of D"),
        ({"epilogue_functor": gated(F16, 2, F32), "C": TensorDescription(F16, ROW, 2)}, "combines pairs of columns"),
        ({"epilogue_functor": ExtraEpilogue(F16, F16)}, "ExtraEpilogue is a tree of visitors, which GEMV kernels do"),
    ],
)
def test_what_is_refused_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        described(**changes)


def test_int8_is_not_converted_by_a_trick() -> None:
    with pytest.raises(DescriptionError, match=r"use LinearCombinationClamp\(cutlass\.int8, 4, "):
        GemmOperationUniversal(
            80,
            tile_of("s8", shape=(1, 8, 2048)),
            TensorDescription(cutlass.int8, ROW, 16),
            TensorDescription(cutlass.int8, COLUMN, 16),
            TensorDescription(cutlass.int8, ROW, 4),
            FastLinearCombinationClamp(cutlass.int8, 4),
        )


def test_kernels_of_other_kinds_have_no_such_tile() -> None:
    operation = gemv()
    described = (80, operation.tile_description, operation.A, operation.B, operation.C, operation.epilogue_functor)
    with pytest.raises(DescriptionError, match="a group has problems of any number of rows, and no GEMV kernel"):
        GemmOperationGrouped(*described, precompute_mode=SchedulerMode.Device)
    convolution = conv(fprop, "optimized")
    fields = {name: getattr(convolution, name) for name in Conv2dOperation._FIELDS}
    with pytest.raises(DescriptionError, match="convolutions are Ampere-style kernels: leave out kernel_schedule"):
        Conv2dOperation(**fields | {"tile_description": operation.tile_description})


def test_no_kernel_takes_tables_of_addresses() -> None:
    with pytest.raises(DescriptionError, match=r"none for Mode\.Array: use Mode\.Batched"):
        _ = gemv().array


def test_k_is_not_divided_into_slices() -> None:
    operation = gemv()
    reason = operation.supports(GemmProblemSize(1, 64, 4096, split_k_slices=4)).reason
    assert "divide K among themselves: leave out split_k_slices" in reason
    for mode in (cutlass.gemm.Mode.GemmSplitKParallel, cutlass.gemm.Mode.Array):
        reason = operation.supports(GemmProblemSize(1, 64, 4096, mode)).reason
        assert "GEMV kernels run in Mode.Gemm and Mode.Batched" in reason
    assert not operation.splits_in_parallel


def test_any_number_of_rows_and_of_batches_is_computed() -> None:
    operation = gemv()
    assert operation.supports((1_000_000, 64, 64))
    assert operation.supports(GemmProblemSize(1, 64, 64, cutlass.gemm.Mode.Batched, batch=100_000))


def test_alignments_are_those_of_the_description() -> None:
    reason = gemv().supports((1, 64, 12)).reason
    assert "operand A is described with alignment 8" in reason and "alignment 4" in reason
    assert gemv(alignment=4).supports((1, 64, 12)) and gemv(alignment=1).supports((1, 7, 13))
    assert gemv().supports((1, 7, 16))  # nothing of B's columns lies side by side
    with pytest.raises(AlignmentError, match="operand A is described with alignment 8"):
        GemmArguments(gemv(), (4, 4, 12), np.zeros((4, 12), np.float16), np.zeros((4, 12), np.float16).T)


@pytest.mark.parametrize("name", ["f16", "bf16 by rows, 8 rows, ReLU", "int8", "few columns"])
def test_tiles_are_listed(name: str) -> None:
    operation = CLASSES[name]
    tiles = pycutlass.tile_descriptions(operation)
    assert 10 < len(tiles) < 60 and len(set(tiles)) == len(tiles)
    rows = operation.tile_description.threadblock_shape[0]
    assert all(tile.family is GEMV and tile.threadblock_shape[0] == rows for tile in tiles)
    assert pycutlass.tile_descriptions(operation, 90) == tiles


def test_plain_operands_keep_their_alignment() -> None:
    """Other kernels of CUDA cores load single elements."""
    operation = gemv("f32", d="f32", shape=(1, 8, 512))
    assert operation.A.alignment == operation.B.alignment == 4
    assert GemmOperationUniversal(**parts("f32_simt")).A.alignment == 1


def test_a_function_of_rows_is_transposed_with_the_problem() -> None:
    plain, swapped = (gemv(functor=biased(F16, 1, F32), swap_ab=swap_ab) for swap_ab in (False, True))
    assert "pycutlass::Row<" in plain.emit() and "pycutlass::Column<" in swapped.emit()
    assert "TransposedGemv<Transposed>" in swapped.emit()
