"""The reduction of split-K: what is valid, its text, what it means, and the workspace that it reads."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from descriptions import COLUMN, KINDS, ROW, TAG, ampere
from hypothesis import given
from hypothesis import strategies as st

import pycutlass
from pycutlass import (
    GemmArguments,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    ReductionArguments,
    ReductionOperation,
    TensorDescription,
    cutlass,
)
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, DescriptionError, PyCutlassError

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode
NAMES = {name: getattr(pycutlass, name) for name in pycutlass.__all__}
SHORTS = ("f16", "f32", "f64", "s32")


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
    output = draw(st.sampled_from(["f16", "bf16", "f32", "f64", "s32", "s8"]))
    C = TensorDescription(TAG[output], draw(st.sampled_from([ROW, COLUMN])), draw(st.sampled_from([1, 2, 4, 8, 16])))
    count = draw(st.sampled_from([each for each in (1, 2, 4, 8, 16) if each <= C.alignment]))
    accumulator, compute = (TAG[draw(st.sampled_from(SHORTS))] for _ in range(2))
    types = (C.element, count, accumulator, compute)
    functor = draw(
        st.sampled_from(
            [
                LinearCombination(*types),
                LinearCombinationClamp(*types),
                LinearCombinationGeneric(pycutlass.relu, *types),
                LinearCombinationGeneric(pycutlass.gelu, *types),
            ]
        )
    )
    shape = (draw(st.integers(1, 8)), 32 * count * draw(st.sampled_from([1, 2, 4])))
    return ReductionOperation(
        shape, C, accumulator, epilogue_functor=functor, count=count, partitions_per_stage=draw(st.integers(1, 8))
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
        ({"partitions_per_stage": 1.5}, ["partitions_per_stage", "1.5"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_one_wrong_part_is_named(change, words):
    with pytest.raises(DescriptionError) as caught:
        ReductionOperation(**described(**change))
    assert all(word in str(caught.value) for word in words), str(caught.value)


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
        ({"problem_size": (0, 40)}, ArgumentError, ["problem_size", "at least 1", "[0, 40]"]),
        ({"partitions": 0}, ArgumentError, ["partitions", "at least 1", "0"]),
        ({"partitions": "2"}, ArgumentTypeError, ["partitions", "integer", "'2'"]),
        ({"partitions": 3}, ArgumentError, ["workspace", "ptr_D", "3 slices", "this one has 2 planes of 24 x 40"]),
        ({"problem_size": (40, 24), "destination": np.zeros((40, 24), "f2")}, ArgumentError, ["same problem size"]),
        ({"workspace": None}, ArgumentTypeError, ["workspace", "NoneType"]),
        ({"workspace": 4096}, ArgumentError, ["workspace", "ptr_D", "GemmSplitKParallel"]),
        ({"workspace": np.zeros((2, 24, 40), np.float32)}, ArgumentError, ["workspace", "ptr_D"]),
        ({"destination": None}, ArgumentError, ["destination is missing", "24 x 40"]),
        ({"destination": np.zeros((24, 40), np.float32)}, ArgumentTypeError, ["operand D", "float16", "float32"]),
        ({"destination": np.zeros((40, 24), np.float16)}, ArgumentError, ["operand D", "(24, 40)", "(40, 24)"]),
        ({"destination": np.zeros((24, 44), "f2")[:, :40]}, AlignmentError, ["operand D", "alignment 8", "44"]),
        ({"destination": np.broadcast_to(np.zeros(40, "f2"), (24, 40))}, ArgumentError, ["operand D"]),
        ({"source": None}, ArgumentError, ["source is None", "beta is not 0"]),
        ({"source": np.zeros((24, 40))}, ArgumentTypeError, ["operand C", "float16", "float64"]),
        ({"source": np.zeros(41, np.float16)}, ArgumentError, ["operand C", "960", "41"]),
        ({"source": SQUARE[1:], "destination": SQUARE[:24]}, ArgumentError, ["D overlaps C"]),
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
    with pytest.raises(AlignmentError, match=r"operand D is described with alignment 8.*got 12"):
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
