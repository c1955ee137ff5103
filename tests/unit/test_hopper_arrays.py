"""Hopper-native kernels in ``Mode.Array``, and scalars of which each matrix of a batch has its own."""

from __future__ import annotations

import pickle
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from descriptions import COLUMN, ROW, parts
from epilogue_functions import biased, linear
from extra_epilogue import ExtraEpilogue
from hopper_classes import ARRAYS, CLASSES, F16, F32, FAST, STREAM_K, described, of_tma, to_int32
from ml_dtypes import bfloat16

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    GemmProblemSize,
    KernelSchedule,
    LinearCombination,
    TensorDescription,
    cutlass,
)
from pycutlass.epilogue.scalars import EpilogueLayout, check_scalars
from pycutlass.errors import ArgumentError, DescriptionError

Mode = cutlass.gemm.Mode


class DeviceTensor:
    """Looks like a tensor of cupy."""

    __cuda_array_interface__ = None

    def __init__(self, shape: tuple[int, ...], step: int = 4, dtype: str = "float32") -> None:
        self.data = SimpleNamespace(ptr=0x7F0000001000)
        self.dtype, self.itemsize = np.dtype(dtype), np.dtype(dtype).itemsize
        self.shape, self.size, self.strides = shape, int(np.prod(shape)), (step,) * len(shape)


# Descriptions


@pytest.mark.parametrize("name", ARRAYS)
def test_a_description_has_a_kernel_for_arrays(name: str) -> None:
    operation = CLASSES[name]
    array = operation.array
    assert array is operation.array and array.parts([operation, array]) == [array]
    assert "gemm_array_" in array.procedural_name() and array.procedural_name() != operation.procedural_name()
    assert '#include "pycutlass/gemm_array_sm90.h"' in array.emit() and "pycutlass::GemmArraySm90<" in array.emit()
    assert ("TransposedSm90<Transposed>" in array.emit()) == operation.swap_ab
    assert array.is_sm90 and array.is_bounded and array.source().compute_capability == 90
    assert operation.parts([operation]) == [
        operation
    ]  # others take their time, and are compiled where they are asked for


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in ARRAYS])
def test_other_descriptions_say_why_they_have_none(name: str) -> None:
    with pytest.raises(DescriptionError, match=r"kernels for Mode\.Array .*: (describe|use) "):
        assert CLASSES[name].array


def test_arrays_are_copied_by_tma() -> None:
    functor = LinearCombination(F16, 1, F32, F32)
    operation = described(C=TensorDescription(F16, ROW, 1), functor=functor)
    with pytest.raises(DescriptionError, match="got C with alignment 1, not 8 and D with alignment 1, not 8: describe"):
        assert operation.array


def test_equal_descriptions_share_the_kernel_for_arrays() -> None:
    one, other = (described(C=of_tma("bf16")).array for _ in range(2))
    assert one == other and one is not other and hash(one) == hash(other) and one.artifacts is other.artifacts
    copy = pickle.loads(pickle.dumps(one))
    assert copy == one and copy.procedural_name() == one.procedural_name()
    with pytest.raises(AttributeError, match="cannot change"):
        one.single = None  # type: ignore[attr-defined]


def test_an_operation_goes_with_its_last_reference() -> None:
    operation = described(C=of_tma("bf16"), shape=(128, 64, 64))
    assert operation.array
    gone = weakref.ref(operation)
    del operation
    assert gone() is None


def test_one_ampere_style_kernel_has_all_modes() -> None:
    operation = GemmOperationUniversal(**parts("f16"))
    assert operation.array is operation


def test_of_the_stages_that_are_named_as_many_are_taken_as_fit() -> None:
    full = described(C=of_tma("f16"), stages=6)
    assert "Cooperative, 6>" in full.emit() and "Cooperative, 6>" in full.array.emit()
    most = described(C=of_tma("f16"), shape=(128, 112, 64), stages=7)
    assert "Cooperative, 7>" in most.emit() and "Cooperative, 6>" in most.array.emit()
    assert described(C=of_tma("f16"), schedule=KernelSchedule.Pingpong).array


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (described(C=of_tma("f16"), swizzle=STREAM_K), "not those of stream-K: use swizzling_functor"),
        (
            described(C=of_tma("f16", COLUMN), D=of_tma("f16")),
            "got C of cutlass.ColumnMajor and D of cutlass.RowMajor: describe",
        ),
        (described(C=of_tma("f16"), functor=ExtraEpilogue(F16, F16, 8)), "reads no tables of addresses"),
        (described(C=of_tma("f16"), shape=(128, 32, 336)), r"fewer than 2 stages of \[128, 32, 336\] fit"),
    ],
)
def test_what_tables_cannot_list_is_refused(operation: GemmOperationUniversal, said: str) -> None:
    with pytest.raises(DescriptionError, match=said):
        operation.array  # noqa: B018
    size = GemmProblemSize(64, 64, 64, Mode.Array, batch=2)
    assert not operation.supports(size) and operation.supports(GemmProblemSize(64, 64, 64, Mode.Batched, batch=2))


# Arguments


def numbers(count: int, rows: int, columns: int) -> list[Any]:
    return [np.random.default_rng(i).integers(-2, 3, (rows, columns)).astype(bfloat16) for i in range(count)]


def test_lists_of_tensors_run_on_the_host() -> None:
    operation = described("bf16", C=of_tma("bf16"))
    A, B, C = numbers(3, 24, 40), [each.T for each in numbers(3, 16, 40)], numbers(3, 24, 16)
    D = [np.full((24, 16), 99, bfloat16) for _ in range(3)]
    arguments = GemmArguments(
        operation, (24, 16, 40), A, B, C, D, Mode.Array, batch=3, output_op=operation.epilogue_type(1.0, -1.0)
    )
    operation.run(arguments)
    arguments.sync()
    for a, b, c, d in zip(A, B, C, D, strict=True):
        assert (d.astype(float) == (a.astype(float) @ b.astype(float) - c.astype(float)).astype(bfloat16)).all()
    with pytest.raises(ArgumentError, match="batch"):
        GemmArguments(operation, (24, 16, 40), A, B[:2], None, D, Mode.Array, batch=3)


def test_vectors_of_functions_are_lists_as_well() -> None:
    operation = described("bf16", C=of_tma("bf16"), functor=biased(cutlass.bfloat16, 8))
    A, B, D = (
        numbers(2, 8, 16),
        [each.T for each in numbers(2, 24, 16)],
        [np.empty((8, 24), bfloat16) for _ in range(2)],
    )
    bias = [np.full(24, number, bfloat16) for number in (3, -5)]
    arguments = GemmArguments(operation, (8, 24, 16), A, B, None, D, Mode.Array, batch=2, epilogue={"bias": bias})
    operation.run(arguments)
    arguments.sync()
    for a, b, d, added in zip(A, B, D, (3, -5), strict=True):
        assert (d.astype(float) == (a.astype(float) @ b.astype(float) + added).clip(0).astype(bfloat16)).all()


# Scalars of each matrix

FIELDS = (
    *(("alpha", "value", "f32", 0, 4, 0, False), ("beta", "value", "f32", 4, 4, 0, False)),
    *(("alpha", "address", "f32", 8, 8, 0, False), ("beta", "address", "f32", 16, 8, 0, False)),
    *(("alpha", "stride", "s64", 24, 8, 0, False), ("beta", "stride", "s64", 32, 8, 0, False)),
)
FUNCTOR = LinearCombination(F16, 8, F32, F32)


@pytest.mark.parametrize(
    ("alpha", "beta", "steps"), [(1.5, 3, (0, 1)), (1, 1, (0, 0)), (3, 3, (1, 1)), (3, 2.0, (1, 0))]
)
def test_a_kernel_gets_the_step_between_scalars(alpha: Any, beta: Any, steps: tuple[int, int]) -> None:
    given = [DeviceTensor((each,)) if isinstance(each, int) else each for each in (alpha, beta)]
    scalars = FUNCTOR.epilogue_type(*given)
    packed = scalars.packed(EpilogueLayout(40, FIELDS))
    assert tuple(np.frombuffer(packed, np.int64)[3:]) == steps
    assert scalars.needs_source
    if 3 in (alpha, beta):
        assert check_scalars(FUNCTOR, scalars, 3).per_batch
        for batch in (0, 1, 4):
            with pytest.raises(ArgumentError, match="has 3 elements"):
                check_scalars(FUNCTOR, scalars, batch)


@pytest.mark.parametrize("tensor", [DeviceTensor((3, 1)), DeviceTensor((3,), 8), DeviceTensor((1, 3))])
def test_scalars_of_matrices_lie_one_behind_the_other(tensor: Any) -> None:
    with pytest.raises(ArgumentError, match=r"must lie one behind the other.*pass beta\.reshape\(-1\), contiguous"):
        FUNCTOR.epilogue_type(1.0, tensor)


@pytest.mark.parametrize(
    ("operation", "mode", "said"),
    [
        (described(C=of_tma("f16")), Mode.Gemm, "beta on the device has 3 elements, and must have one"),
        (described(C=of_tma("f16")), Mode.Batched, "beta on the device has 3 elements, and batch=2"),
        (described(C=of_tma("f16")), Mode.Array, "beta on the device has 3 elements, and batch=2"),
        (
            GemmOperationUniversal(**parts("f16")),
            Mode.Batched,
            "write an epilogue function with beta: pycutlass.epilogue.PerBatch",
        ),
        (
            described(C=of_tma("f16"), functor=linear(F16, 8)),
            Mode.Batched,
            "epilogue function with beta: pycutlass.epilogue.PerBatch",
        ),
    ],
)
def test_where_each_matrix_cannot_have_a_scalar_of_its_own(
    operation: GemmOperationUniversal, mode: Any, said: str
) -> None:
    batch = 1 if mode == Mode.Gemm else 2
    memory = [np.zeros((8, 8), np.float16)] * 2 if mode == Mode.Array else np.zeros((batch, 8, 8), np.float16)
    scalars = operation.epilogue_type(1.0, DeviceTensor((3,)))
    with pytest.raises(ArgumentError, match=said):
        GemmArguments(operation, (8, 8, 8), memory, memory, memory, memory, mode, batch=batch, output_op=scalars)


def test_groups_and_reductions_have_one_scalar_for_all() -> None:
    scalars = FUNCTOR.epilogue_type(DeviceTensor((2,)))
    group = pycutlass.GemmOperationGrouped(**parts("f16", (ROW, COLUMN, ROW)))
    A = B = D = [np.zeros((8, 8), np.float16) for _ in range(2)]
    with pytest.raises(ArgumentError, match="alpha on the device has 2 elements, and must have one"):
        pycutlass.GemmGroupedArguments(group, [(8, 8, 8)] * 2, A, B, None, D, output_op=scalars)


@pytest.mark.parametrize(
    "operation",
    [
        described("s8", None, "s32", functor=to_int32()),
        described("e4m3", "e5m2", C=of_tma("bf16")),
        described("e4m3", C=of_tma("f16"), schedule=KernelSchedule.Pingpong, operation=FAST),
    ],
)
def test_groups_multiply_8_bits(operation: GemmOperationUniversal) -> None:
    group = pycutlass.GemmOperationGrouped(*operation._value()[:7])
    assert "pycutlass::GemmGroupedSm90<" in group.emit() and group.supports([(16, 16, 32), (300, 48, 64)])


@pytest.mark.parametrize(("a", "b"), [("s8", "u8"), ("u8", "s8"), ("u8", "u8")])
def test_groups_multiply_no_uint8(a: str, b: str) -> None:
    with pytest.raises(DescriptionError, match=r"or int8 in int32; got cutlass\.u?int8 by cutlass\.u?int8"):
        pycutlass.GemmOperationGrouped(*described(a, b, "s32", functor=to_int32())._value()[:7])


def test_groups_write_no_8_bits() -> None:
    with pytest.raises(DescriptionError, match=r"groups write f16, bf16, f32, got cutlass\.float_e4m3"):
        pycutlass.GemmOperationGrouped(*described("e4m3", C=of_tma("e4m3"))._value()[:7])


@pytest.mark.parametrize("k", [96, 256])
def test_sums_of_8_bit_floats_are_promoted_by_whole_tiles(k: int) -> None:
    with pytest.raises(DescriptionError, match=r"promoted to float32 every 128 products.*use K of 32, 64 or 128"):
        described("e4m3", C=of_tma("bf16"), shape=(64, 64, k))
    assert described("e4m3", C=of_tma("bf16"), shape=(64, 64, k), operation=FAST)
