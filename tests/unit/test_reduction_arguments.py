"""Arguments of a reduction: the workspace that it reads, what it writes, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from convolutions import OPERATIONS as CONVOLUTIONS
from descriptions import COLUMN, ROW, ampere
from reductions import described, partial_sums

import pycutlass
from pycutlass import (
    FastLinearCombinationClamp,
    GemmArguments,
    ReductionArguments,
    ReductionOperation,
    TensorDescription,
    cutlass,
)
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.launch.split_k import planes_at

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode


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
        ({"problem_size": (-1, 40)}, ArgumentError, ["problem_size", "from 0 to 2,147,483,647", "[-1, 40]"]),
        ({"problem_size": (2**31, 40)}, ArgumentError, ["problem_size", "from 0 to 2,147,483,647", "[2147483648, 40]"]),
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
        workspace.make(operation=half, source=None, output_op=None)


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
    for source, scalars in itertools.product((None, np.full((24, 40), np.nan, np.float16)), ((1.0, 0.0), (2.0, 0.0))):
        workspace = Workspace()
        ends = workspace.make(source=source, output_op=workspace.reduction.epilogue_type(*scalars))
        workspace.gemm.run(workspace.arguments)
        workspace.reduction.run(ends)
        np.testing.assert_array_equal(workspace.D, 32.0 * scalars[0])
