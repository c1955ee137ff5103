"""The reduction of split-K: what is valid, its text, what it means, and the workspace that it reads."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from convolutions import OPERATIONS as CONVOLUTIONS
from descriptions import COLUMN, KINDS, ROW, TAG, ampere
from hypothesis import given
from hypothesis import strategies as st

import pycutlass
from pycutlass import (
    FastLinearCombinationClamp,
    GemmArguments,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    ReductionArguments,
    ReductionOperation,
    TensorDescription,
    cutlass,
)
from pycutlass.arguments.split_k import planes_at
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, DescriptionError, PyCutlassError

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


def described(**changes: Any) -> dict[str, Any]:
    """Return the keywords of a reduction that is valid; each may be replaced."""
    return {
        "shape": cutlass.MatrixCoord(4, 256),
        "C": TensorDescription(cutlass.float16, ROW, 8),
        "element_accumulator": cutlass.float32,
        "epilogue_functor": LinearCombination(cutlass.float16, 8, cutlass.float32, cutlass.float32),
        "count": 8,
        **changes,
    }


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
    assert not operation.is_native


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
        (typed("int8", "float32", "float32"), ["LinearCombination does not limit", "int8", "LinearCombinationClamp"]),
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


def partial_sums(kind: str, layout: Any, size: tuple[int, int, int], slices: int, A: Any, B: Any) -> tuple[Any, Any]:
    """Return a GEMM and its arguments, whose ptr_D is a workspace."""
    operation = ampere(kind, (ROW, COLUMN, layout))
    arguments = GemmArguments(operation, size, A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=slices)
    return operation, arguments


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


# Arguments


class Workspace:
    """A valid workspace, and the arguments of its reduction."""

    def __init__(self, m: int = 24, n: int = 40, slices: int = 2) -> None:
        self.gemm = ampere("f16")
        self.size, self.slices = (m, n), slices
        A, B = np.ones((m, 32), np.float16), np.ones((n, 32), np.float16).T
        self.arguments = GemmArguments(
            self.gemm, (m, n, 32), A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=slices
        )
        self.address = self.arguments.ptr_D
        self.reduction = ReductionOperation(**described())
        self.D = np.full((m, n), np.nan, np.float16)

    def make(self, **changes: Any) -> ReductionArguments:
        given_ = {
            "operation": self.reduction,
            "problem_size": self.size,
            "partitions": self.slices,
            "workspace": self.address,
            "destination": self.D,
            "source": np.ones(self.size, np.float16),
            "output_op": self.reduction.epilogue_type(1.0, 1.0),
        }
        return ReductionArguments(**{**given_, **changes})


def test_the_baseline_is_valid():
    workspace = Workspace()
    ends = workspace.make()
    workspace.gemm.run(workspace.arguments)
    workspace.reduction.run(ends)
    np.testing.assert_array_equal(workspace.D, 33.0)


@pytest.mark.parametrize("size", [[24, 40], (24, 40), cutlass.MatrixCoord(24, 40), np.array([24, 40])], ids=repr)
def test_sizes_of_every_kind(size):
    assert Workspace().make(problem_size=size).problem_size == (24, 40)


SQUARE = np.zeros((25, 40), np.float16)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"operation": ampere("f16")}, ArgumentTypeError, ["ReductionOperation", "GemmOperationUniversal"]),
        ({"problem_size": (24, 40, 8)}, ArgumentTypeError, ["problem_size", "[M, N]", "(24, 40, 8)"]),
        ({"problem_size": 24}, ArgumentTypeError, ["problem_size", "[M, N]", "24"]),
        ({"problem_size": (24.5, 40)}, ArgumentTypeError, ["problem_size", "integers", "24.5"]),
        ({"problem_size": (0, 40)}, ArgumentError, ["problem_size", "from 1 to 2,147,483,647", "[0, 40]"]),
        ({"problem_size": (2**31, 40)}, ArgumentError, ["problem_size", "from 1 to 2,147,483,647", "[2147483648, 40]"]),
        ({"partitions": 0}, ArgumentError, ["partitions", "from 1 to 2,147,483,647", "0"]),
        ({"partitions": 10**30}, ArgumentError, ["partitions", "from 1 to 2,147,483,647"]),
        ({"partitions": "2"}, ArgumentTypeError, ["partitions", "integer", "'2'"]),
        ({"partitions": 3}, ArgumentError, ["workspace", "ptr_D", "3 slices", "this one has 2 planes of 24 x 40"]),
        ({"problem_size": (40, 24), "destination": np.zeros((40, 24), "f2")}, ArgumentError, ["same problem size"]),
        ({"workspace": None}, ArgumentError, ["workspace is missing", "ptr_D of GemmArguments", "Conv2dArguments"]),
        ({"workspace": "sums"}, ArgumentTypeError, ["workspace", "CUdeviceptr", "str"]),
        ({"bias": "yes"}, ArgumentTypeError, ["bias", "True, False or None", "str"]),
        ({"workspace": 4096}, ArgumentError, ["workspace", "ptr_D", "GemmSplitKParallel"]),
        ({"workspace": np.zeros((2, 24, 40), np.float32)}, ArgumentError, ["workspace", "ptr_D"]),
        ({"destination": None}, ArgumentError, ["destination is missing", "24 x 40"]),
        (
            {"destination": np.zeros((24, 40), np.float32)},
            ArgumentTypeError,
            ["destination", "float16", "float32"],
        ),
        (
            {"destination": np.zeros((40, 24), np.float16)},
            ArgumentError,
            ["destination", "(24, 40)", "(40, 24)"],
        ),
        (
            {"destination": np.zeros((24, 44), "f2")[:, :40]},
            AlignmentError,
            ["destination", "alignment 8", "44"],
        ),
        ({"destination": np.broadcast_to(np.zeros(40, "f2"), (24, 40))}, ArgumentError, ["operand destination"]),
        ({"source": None}, ArgumentError, ["source is None", "beta is not 0"]),
        ({"source": np.zeros((24, 40))}, ArgumentTypeError, ["operand source", "float16", "float64"]),
        ({"source": np.zeros(41, np.float16)}, ArgumentError, ["operand source", "960", "41"]),
        ({"source": SQUARE[1:], "destination": SQUARE[:24]}, ArgumentError, ["destination overlaps source"]),
        ({"output_op": (1.0, 0.0)}, ArgumentTypeError, ["output_op", "tuple"]),
        ({"alpha": 1.0}, ArgumentTypeError, ["no keyword alpha", "output_op"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_what_does_not_fit_is_named(change, kind, words):
    workspace = Workspace()
    with pytest.raises(kind) as caught:
        workspace.make(**change)
    assert isinstance(caught.value, PyCutlassError)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_lines_are_moved_whole():
    operation = ampere("f16", alignment=1, stages=2)
    A, B = np.ones((4, 32), np.float16), np.ones((12, 32), np.float16).T
    arguments = GemmArguments(operation, (4, 12, 32), A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=2)
    reduction, D = ReductionOperation(**described()), np.zeros((4, 12), np.float16)
    with pytest.raises(AlignmentError, match=r"operand destination is described with alignment 8.*got 12"):
        ReductionArguments(reduction, (4, 12), 2, arguments.ptr_D, D)


def test_a_workspace_is_gone_with_its_arguments():
    workspace = Workspace()
    ends = workspace.make()
    workspace.gemm.run(workspace.arguments)
    del workspace.arguments
    workspace.reduction.run(ends)  # which keep the sums, as long as they live
    np.testing.assert_array_equal(workspace.D, 33.0)
    ends.update(output_op=workspace.reduction.epilogue_type(-1.0, 0.0))
    workspace.reduction.run(ends)
    np.testing.assert_array_equal(workspace.D, -32.0)
    del ends
    with pytest.raises(ArgumentError, match="workspace must be the ptr_D"):
        workspace.make()


def test_a_reduction_exchanges_what_it_has():
    workspace = Workspace()
    ends = workspace.make()
    with pytest.raises(ArgumentTypeError, match=r"no operand B: update takes A .*, C .*, D .* and output_op"):
        ends.update(B=workspace.D, output_op=workspace.reduction.epilogue_type(-1.0, 0.0))
    workspace.gemm.run(workspace.arguments)
    workspace.reduction.run(ends)  # with the scalars of before
    np.testing.assert_array_equal(workspace.D, 33.0)
    source, target = np.full_like(workspace.D, 2), np.empty_like(workspace.D)
    other = Workspace()
    other.gemm.run(other.arguments)
    ends.update(A=other.arguments.ptr_D, C=source, D=target)
    workspace.reduction.run(ends)
    np.testing.assert_array_equal(target, 34.0)


def test_a_workspace_of_other_sums_is_refused():
    workspace = Workspace()
    half = ReductionOperation([4, 256], workspace.reduction.C, cutlass.float16, count=8)
    with pytest.raises(
        ArgumentTypeError, match=r"operand workspace must be float16.*got a workspace tensor of float32"
    ):
        workspace.make(operation=half, output_op=None)


@pytest.mark.parametrize("made", [ROW, COLUMN], ids=["made by rows", "made by columns"])
@pytest.mark.parametrize("described_", [ROW, COLUMN, cutlass.TensorNHWC], ids=["rows", "columns", "NHWC"])
def test_partial_sums_are_read_as_they_were_written(made, described_):
    rng = np.random.default_rng()
    A, B = rng.standard_normal((8, 64), np.float32), rng.standard_normal((4, 64), np.float32).T
    operation, arguments = partial_sums("f32_simt", made, (8, 4, 64), 2, A, B)
    C = TensorDescription(cutlass.float32, described_, 1)
    reduction = ReductionOperation([4, 32], C, cutlass.float32)
    D = np.full((8, 4), np.nan, np.float32, order="F" if described_ is COLUMN else "C")
    if (made is COLUMN) != (described_ is COLUMN):
        with pytest.raises(ArgumentError) as caught:
            ReductionArguments(reduction, [8, 4], 2, arguments.ptr_D, D)
        assert all(f"cutlass.{layout.__name__}" in str(caught.value) for layout in (made, described_))
        assert "the same layout" in str(caught.value)
        return
    ends = ReductionArguments(reduction, [8, 4], 2, arguments.ptr_D, D)
    operation.run(arguments)
    reduction.run(ends)
    np.testing.assert_allclose(D, A.astype(float) @ B, rtol=1e-5, atol=1e-5)


def test_partial_sums_of_a_convolution_have_its_layout():
    conv, arguments, (m, n) = convolved()
    for layout in (ROW, cutlass.TensorNHWC):
        reduction = ReductionOperation(
            [4, 256], TensorDescription(cutlass.float16, layout, 8), cutlass.float32, count=8
        )
        D = np.full((m, n), np.nan, np.float16)
        ends = ReductionArguments(reduction, [m, n], 2, arguments.ptr_D, D)
        conv.run(arguments)
        reduction.run(ends)
        assert not np.isnan(D).any()
    turned = ReductionOperation([4, 256], TensorDescription(cutlass.float16, COLUMN, 8), cutlass.float32, count=8)
    with pytest.raises(ArgumentError, match=r"cutlass.TensorNHWC.*describes C as cutlass.ColumnMajor.*the same layout"):
        ReductionArguments(turned, [m, n], 2, arguments.ptr_D, np.zeros((m, n), np.float16, order="F"))


def convolved() -> tuple[Any, Any, tuple[int, int]]:
    """Return a convolution, arguments whose ptr_D is a workspace, and the extents of its planes."""
    conv = CONVOLUTIONS["f16_fprop_optimized"]
    x, w = np.ones((1, 4, 4, 16), np.float16), np.ones((32, 3, 3, 16), np.float16)
    size = pycutlass.conv2d_problem_size(x, w, padding=1)
    arguments = pycutlass.Conv2dArguments(
        conv, size, x, w, split_k_mode=cutlass.conv.SplitKMode.Parallel, split_k_slices=2
    )
    return conv, arguments, (16, 32)


def test_partial_sums_know_k():
    _, arguments, _ = convolved()
    assert planes_at(arguments.ptr_D).k == 3 * 3 * 16
    workspace = Workspace()
    assert planes_at(workspace.address).k == 32


@pytest.mark.parametrize(("k", "fits"), [(256, True), (288, False)])
def test_a_clamp_that_holds_for_short_sums_is_held_to_it(k, fits):
    operation = ampere(
        "f16",
        types=("s8", "s32", "s32"),
        instruction=(16, 8, 32),
        tile=(128, 128, 64),
        math=pycutlass.MathOperation.multiply_add_saturate,
    )
    A, B = np.ones((8, k), np.int8), np.ones((16, k), np.int8).T
    arguments = GemmArguments(operation, (8, 16, k), A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=2)
    C = TensorDescription(cutlass.int8, ROW, 4)
    reduction = ReductionOperation(
        [4, 128], C, cutlass.int32, epilogue_functor=FastLinearCombinationClamp(cutlass.int8, 4), count=4
    )
    D = np.zeros((8, 16), np.int8)
    if not fits:
        with pytest.raises(ArgumentError, match=r"K of at most 256, .* K=288: use LinearCombinationClamp"):
            ReductionArguments(reduction, [8, 16], 2, arguments.ptr_D, D)
        return
    ends = ReductionArguments(reduction, [8, 16], 2, arguments.ptr_D, D, output_op=reduction.epilogue_type(1 / 8))
    operation.run(arguments)
    reduction.run(ends)
    np.testing.assert_array_equal(D, k // 8)


def test_an_address_of_numpy_is_an_address():
    workspace = Workspace()
    ends = workspace.make(workspace=np.int64(workspace.address))
    workspace.gemm.run(workspace.arguments)
    workspace.reduction.run(ends)
    np.testing.assert_array_equal(workspace.D, 33.0)


@pytest.mark.parametrize(
    "own",
    [
        np.zeros((24, 40), np.float32),
        np.zeros(24 * 40, np.float32),
        np.broadcast_to(np.zeros((24, 40), np.float32), (3, 24, 40)),
    ],
    ids=["matrix", "flat", "repeated"],
)
def test_one_plane_is_not_a_workspace_of_several(monkeypatch, own):
    workspace = Workspace()
    monkeypatch.setattr("pycutlass.device.available", lambda: True)  # where a workspace may be the user's own
    with pytest.raises(ArgumentError) as caught:
        workspace.make(workspace=own, partitions=3)
    words = ("workspace", "3 partitions", "(3, 24, 40)", "2880 elements", "one plane", str(own.shape), "partitions=1")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_workspace_of_the_users_own_has_a_plane_for_each_partition(monkeypatch):
    workspace = Workspace()
    ends = workspace.make()
    monkeypatch.setattr("pycutlass.device.available", lambda: True)
    for own in (np.zeros((2, 24, 40), np.float32), np.zeros(2 * 24 * 40, np.float32), 1 << 20):
        assert ends._workspace(own, 24, 40).batch_stride == 24 * 40


def test_c_may_be_d():
    workspace = Workspace()
    workspace.D[...] = 1
    ends = workspace.make(source=workspace.D)
    workspace.gemm.run(workspace.arguments)
    for right in (33.0, 65.0):
        workspace.reduction.run(ends)
        np.testing.assert_array_equal(workspace.D, right)


def test_the_source_is_not_read_where_beta_is_zero():
    for source, scalars in itertools.product((None, np.full((24, 40), np.nan, np.float16)), ((1.0, 0.0), (2.0,))):
        workspace = Workspace()
        ends = workspace.make(source=source, output_op=workspace.reduction.epilogue_type(*scalars))
        workspace.gemm.run(workspace.arguments)
        workspace.reduction.run(ends)
        np.testing.assert_array_equal(workspace.D, 32.0 * scalars[0])
