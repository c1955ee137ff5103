"""The reduction of split-K: what is valid, its text, and what it means."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from descriptions import COLUMN, KINDS, ROW, TAG, ampere
from hypothesis import given
from hypothesis import strategies as st
from reductions import described, partial_sums

import pycutlass
from pycutlass import (
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    ReductionArguments,
    ReductionOperation,
    TensorDescription,
    cutlass,
)
from pycutlass.errors import ArgumentTypeError, DescriptionError

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode
NAMES = {name: getattr(pycutlass, name) for name in pycutlass.__all__}
#: Types of the sums, of the epilogue's arithmetic and of D that make a kernel; a sample of them.
TYPES = [
    ("f16", "f16", "f16"),
    ("f16", "f32", "f32"),
    ("f32", "f32", "f16"),
    ("f32", "f32", "bf16"),
    ("f32", "f16", "f32"),
    ("f64", "f64", "f64"),
    ("s32", "f32", "s8"),
    ("s32", "s32", "s32"),
    ("s32", "f32", "f16"),
]


# Values and text


@st.composite
def reductions(draw: st.DrawFn) -> ReductionOperation:
    accumulator, compute, output = draw(st.sampled_from(TYPES))
    C = TensorDescription(TAG[output], draw(st.sampled_from([ROW, COLUMN])), draw(st.sampled_from([1, 2, 4, 8, 16])))
    count = draw(st.sampled_from([each for each in (1, 2, 4, 8, 16) if each <= C.alignment]))
    types = (C.element, count, TAG[accumulator], TAG[compute])
    kinds: list[Any] = [LinearCombinationClamp] if output in ("s8", "s32") else []
    kinds += [LinearCombination] if output != "s8" else []
    activations = [pycutlass.relu, pycutlass.gelu] if output not in ("s8", "s32") else []
    kinds += [functools.partial(LinearCombinationGeneric, activation) for activation in activations]
    functor = draw(st.sampled_from(kinds))(*types)
    shape = (draw(st.integers(1, 8)), 32 * count * draw(st.sampled_from([1, 2, 4])))
    return ReductionOperation(
        shape, C, TAG[accumulator], epilogue_functor=functor, count=count, partitions_per_stage=draw(st.integers(1, 8))
    )


@given(reductions())
def test_odd_sizes_are_refused_whether_or_not_a_narrower_reduction_takes_them(operation):
    """Where its threads would be too many there is none."""
    answer = operation.supports((33, 33))
    assert bool(answer) == (operation.C.alignment == 1)
    assert answer or "must be a multiple of that, got 33" in answer.reason


@given(reductions())
def test_reductions_are_values(operation):
    for twin in (eval(repr(operation), dict(NAMES)), pickle.loads(pickle.dumps(operation)), copy.deepcopy(operation)):
        assert twin == operation
        assert hash(twin) == hash(operation)
        assert twin.emit() == operation.emit()
        assert twin.procedural_name() == operation.procedural_name()


@given(reductions(), reductions())
def test_different_text_has_a_different_name(left, right):
    assert (left.body() == right.body()) == (left.procedural_name() == right.procedural_name()) or (
        left.configuration_name() != right.configuration_name()
    )


def test_text():
    operation = ReductionOperation(**described())
    assert operation.body() == (
        '#include "pycutlass/reduction.h"\n\n'
        "using Operation = pycutlass::ReduceSplitK<\n"
        "    cutlass::MatrixShape<4, 256>,\n"
        "    cutlass::epilogue::thread::LinearCombination<cutlass::half_t, 8, float, float>,\n"
        "    float, float, 4>;\n"
    )
    assert operation.configuration_name() == "cutlass_reduce_split_k_f32_f32_f32_f16_4x256"
    assert not operation.is_sm90


def test_what_is_left_out():
    C = TensorDescription(cutlass.float16, ROW, 8)
    short = ReductionOperation([4, 256], C, cutlass.float32, count=8)
    assert short == ReductionOperation(
        cutlass.MatrixCoord(4, 256),
        C,
        cutlass.float32,
        cutlass.float32,
        cutlass.float32,
        LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32),
        8,
        4,
    )
    assert short.epilogue_type(2.0, 3.0).values == (2.0, 3.0)


def typed(output: str, accumulator: str, compute: str) -> dict[str, Any]:
    """Return the keywords of a reduction that differ where it has other types."""
    tags = [getattr(cutlass, name) for name in (output, accumulator, compute)]
    C = TensorDescription(tags[0], ROW, 1)
    functor = LinearCombination(tags[0], 1, *tags[1:])
    return {"C": C, "element_accumulator": tags[1], "epilogue_functor": functor, "count": 1}


INTERLEAVED = ["interleaved", "partial sums", "RowMajor, ColumnMajor or TensorNHWC"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": None}, ["shape", "MatrixCoord(rows, columns)", "None"]),
        ({"shape": (4,)}, ["shape", "MatrixCoord(rows, columns)"]),
        ({"shape": (4.0, 256)}, ["shape", "MatrixCoord(rows, columns)", "4.0"]),
        ({"shape": (0, 256)}, ["shape", "at least 1", "0 x 256"]),
        ({"shape": cutlass.MatrixCoord(0, 256)}, ["shape", "at least 1", "0 x 256"]),
        ({"shape": cutlass.MatrixCoord(4, 0)}, ["shape", "at least 1", "4 x 0"]),
        ({"shape": (4, 128)}, ["multiple of 32 * count = 256", "4 x 128"]),
        ({"shape": (64, 256)}, ["1024", "64 x 256"]),
        ({"C": "f16"}, ["C must be a TensorDescription"]),
        ({"C": TensorDescription(cutlass.float32, ROW, 4)}, ["float16", "float32", "the same"]),
        ({"C": TensorDescription(cutlass.float16, ROW, 4)}, ["count=8", "alignment 4", "use count=4"]),
        ({"element_accumulator": cutlass.float16}, ["cutlass.float32", "cutlass.float16", "the same"]),
        ({"element_workspace": cutlass.float16}, ["element_workspace", "cutlass.float32", "cutlass.float16"]),
        ({"element_compute": cutlass.float16}, ["element_compute", "cutlass.float16", "cutlass.float32"]),
        ({"epilogue_functor": "relu"}, ["epilogue_functor", "'relu'"]),
        ({"count": 4}, ["count=4", "epilogue_vector_length=8"]),
        ({"partitions_per_stage": 0}, ["partitions_per_stage", "at least 1", "0"]),
        ({"partitions_per_stage": 1.5}, ["partitions_per_stage", "integer", "1.5"]),
        ({"partitions_per_stage": True}, ["partitions_per_stage", "integer", "True"]),
        ({"partitions_per_stage": 32}, ["count=8", "partitions_per_stage=32", "255 registers", "at most 31"]),
        ({"partitions_per_stage": 10**30}, ["partitions_per_stage", "at most 31"]),
        ({"count": 8.0}, ["count", "integer", "8.0"]),
        ({"count": True}, ["count", "integer", "True"]),
        ({"count": 0}, ["count", "at least 1", "0"]),
        ({"shape": (True, 256)}, ["shape", "MatrixCoord(rows, columns)", "True"]),
        (typed("float64", "float32", "float32"), ["accumulator of cutlass.float32", "write", "cutlass.float64"]),
        (typed("int32", "float16", "float32"), ["accumulator of cutlass.float16", "write", "cutlass.int32"]),
        (typed("tfloat32", "int32", "float32"), ["accumulator of cutlass.int32", "write", "cutlass.tfloat32"]),
        (typed("float16", "float32", "float64"), ["accumulator of cutlass.float32", "compute in", "cutlass.float64"]),
        (typed("bfloat16", "bfloat16", "float32"), ["element_accumulator", "f16, f32, f64, s32", "cutlass.bfloat16"]),
        ({"C": TensorDescription(cutlass.float16, cutlass.ColumnMajorInterleaved32, 8)}, INTERLEAVED),
        ({"C": TensorDescription(cutlass.float16, cutlass.TensorNC32HW32, 8)}, INTERLEAVED),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_one_wrong_part_is_named(change, words):
    with pytest.raises(DescriptionError) as caught:
        ReductionOperation(**described(**change))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_integers_of_numpy_are_integers():
    plain = ReductionOperation(**described())
    same = ReductionOperation(
        **described(count=np.int64(8), partitions_per_stage=np.uint8(4), shape=np.array([4, 256]))
    )
    assert same == plain
    assert same.emit() == plain.emit()
    assert type(same.count) is type(same.partitions_per_stage) is int


def test_unknown_keywords_are_refused():
    with pytest.raises(ArgumentTypeError, match=r"no keyword epilog; it has shape.*partitions_per_stage"):
        ReductionOperation(**described(), epilog=None)


# Meaning


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [ROW, COLUMN], ids=["rows", "columns"])
@pytest.mark.parametrize("bias", [False, True], ids=["matrix", "bias"])
@pytest.mark.parametrize("activation", [None, pycutlass.relu, pycutlass.leaky_relu, pycutlass.gelu], ids=str)
def test_every_type_layout_source_and_activation(kind, layout, bias, activation):
    m, n, k, slices = 24, 16, 80, 3
    rng = np.random.default_rng()
    operation = ampere(kind, (ROW, COLUMN, layout))
    dtype, functor = operation.C.type.dtype, operation.epilogue_functor
    types = (operation.C.element, operation.C.alignment, functor.element_accumulator, functor.element_epilogue)
    epilogue = LinearCombination(*types) if activation is None else LinearCombinationGeneric(activation, *types)
    count = operation.C.alignment
    shape = cutlass.MatrixCoord(2, 32 * count)
    reduction = ReductionOperation(shape, operation.C, types[2], epilogue_functor=epilogue, count=count)
    A, B = rng.integers(-2, 3, (m, k)).astype(operation.A.type.dtype), rng.integers(-2, 3, (n, k))
    B = B.astype(operation.B.type.dtype).T
    line = n if layout is ROW else m
    C = rng.integers(-4, 5, line if bias else (m, n)).astype(dtype)
    C = C if bias else np.asarray(C, order="C" if layout is ROW else "F")
    D = np.full((m, n), np.nan, dtype, order="C" if layout is ROW else "F")
    _, arguments = partial_sums(kind, layout, (m, n, k), slices, A, B)
    ends = ReductionArguments(
        reduction, (m, n), slices, arguments.ptr_D, D, C, output_op=reduction.epilogue_type(0.5, 2.0)
    )
    operation.run(arguments)
    reduction.run(ends)
    ends.sync()
    added = C if not bias else C[None] if layout is ROW else C[:, None]
    x = 0.5 * (A.astype(int) @ B.astype(int)) + 2 * added.astype(float)
    right = {
        None: lambda x: x,
        pycutlass.relu: lambda x: max(x, 0.0),
        pycutlass.leaky_relu: lambda x: x if x > 0 else 0.2 * x,
        pycutlass.gelu: lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    }[activation]
    exact = np.vectorize(right, otypes=[float])(x)
    epsilon = max(operation.C.type.epsilon, functor.compute.epsilon)
    np.testing.assert_allclose(D.astype(float), exact, rtol=2 * epsilon, atol=8 * functor.compute.epsilon)


def test_sums_beyond_the_type_are_infinite():
    operation = ampere("f16_acc16")
    A, B = np.full((8, 16), 200, np.float16), np.full((8, 16), 200, np.float16).T
    reduction = ReductionOperation((4, 256), operation.C, cutlass.float16, count=8)
    D = np.zeros((8, 8), np.float16)
    _, arguments = partial_sums("f16_acc16", ROW, (8, 8, 16), 2, A, B)
    ends = ReductionArguments(reduction, (8, 8), 2, arguments.ptr_D, D)
    operation.run(arguments)
    reduction.run(ends)
    assert np.isposinf(D).all()
