"""What would be left out of a result: refused with its remedies, or said once where scripts of the original do so."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from conv_operands import SIMT
from descriptions import ampere
from groups import Group, grouped

from pycutlass import (
    Conv2dArguments,
    GemmArguments,
    GemmGroupedArguments,
    ReductionArguments,
    ReductionOperation,
    TensorDescription,
    conv2d_problem_size,
    cutlass,
)
from pycutlass.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode, SplitKMode = cutlass.gemm.Mode, cutlass.conv.SplitKMode
OPERATION = ampere("f32_simt")
M, N, K = 8, 12, 16
SIZE = (M, N, K)


def operands() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"A": (M, K), "B": (K, N), "C": (M, N), "D": (M, N)}
    made: dict[str, Any] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "B": np.asfortranarray(made["B"])}


# C without scalars


def without_scalars(given: dict[str, Any]) -> Any:
    return GemmArguments(OPERATION, SIZE, **given)


@pytest.mark.parametrize("C", [np.ones((M, N), np.float32), np.ones(N, np.float32)], ids=["C", "bias"])
def test_c_without_scalars_is_refused(C):
    with pytest.raises(ArgumentError) as caught:
        without_scalars({**operands(), "C": C})
    words = ["C is given without output_op", "beta is 0", "output_op=operation.epilogue_type(1.0, 1.0)", "C=None"]
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_both_remedies_work():
    given = operands()
    exact = given["A"] @ given["B"]
    OPERATION.run(GemmArguments(OPERATION, SIZE, **given, output_op=OPERATION.epilogue_type(1.0, 1.0)))
    np.testing.assert_allclose(given["D"], exact + given["C"], rtol=1e-5, atol=1e-5)
    OPERATION.run(without_scalars({**given, "C": None}))
    np.testing.assert_allclose(given["D"], exact, rtol=1e-5, atol=1e-5)


def test_a_beta_of_zero_that_is_given_is_meant():
    GemmArguments(OPERATION, SIZE, **operands(), output_op=OPERATION.epilogue_type(1.0, 0.0))


@pytest.mark.parametrize("bias", [None, True])
@pytest.mark.parametrize("C", [np.ones((M, N), np.float32), np.ones(N, np.float32)], ids=["C", "bias"])
def test_c_with_alpha_alone_is_refused(C, bias):
    given = {**operands(), "C": C}
    with pytest.raises(ArgumentError) as caught:
        GemmArguments(OPERATION, SIZE, **given, output_op=OPERATION.epilogue_type(2.0), bias=bias)
    words = ["C is given with output_op=operation.epilogue_type(2.0)", "beta is 0", "epilogue_type(2.0, 1.0)", "C=None"]
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("zero", [0, 0.0, np.float32(0), float("0.0")], ids=repr)
def test_a_beta_of_zero_is_known_from_one_that_is_left_out(zero):
    for scalars in (OPERATION.epilogue_type(2.0, zero), OPERATION.epilogue_type(2.0, beta=zero)):
        GemmArguments(OPERATION, SIZE, **operands(), output_op=scalars)
    left_out = pickle.loads(pickle.dumps(OPERATION.epilogue_type(beta=zero, alpha=2.0))), OPERATION.epilogue_type(2.0)
    assert [scalars.beta_is_given for scalars in left_out] == [True, False]
    assert not pickle.loads(pickle.dumps(left_out[1])).beta_is_given


def test_scalars_that_were_pickled_before_say_nothing_of_beta():
    scalars = OPERATION.epilogue_type(2.0)
    old = object.__new__(type(scalars))
    old.__dict__.update({name: value for name, value in vars(scalars).items() if name != "beta_is_given"})
    GemmArguments(OPERATION, SIZE, **operands(), output_op=old)


def test_an_update_with_alpha_alone_does_not_drop_c():
    given = operands()
    arguments = GemmArguments(OPERATION, SIZE, **given, output_op=OPERATION.epilogue_type(1.0, 1.0))
    with pytest.raises(ArgumentError, match=r"or leave C out; epilogue_type\(2.0, 0.0\) says that it is not"):
        arguments.update(output_op=OPERATION.epilogue_type(2.0))
    OPERATION.run(arguments)
    np.testing.assert_allclose(given["D"], given["A"] @ given["B"] + given["C"], rtol=1e-5, atol=1e-5)
    arguments.update(output_op=OPERATION.epilogue_type(2.0, 0.0))
    OPERATION.run(arguments)
    np.testing.assert_allclose(given["D"], 2 * (given["A"] @ given["B"]), rtol=1e-5, atol=1e-5)
    product = GemmArguments(OPERATION, SIZE, **{**given, "C": None}, output_op=OPERATION.epilogue_type(2.0))
    with pytest.raises(ArgumentError, match=r"C is given without output_op.*epilogue_type\(2.0, 1.0\).*leave C out"):
        product.update(C=given["C"])


def test_an_update_with_c_needs_scalars_too():
    given = operands()
    arguments = without_scalars({**given, "C": None})
    with pytest.raises(ArgumentError, match="C is given without output_op"):
        arguments.update(C=given["C"])
    with pytest.raises(ArgumentError, match=r"or leave C out\."):  # C=None changes nothing there
        arguments.update(C=given["C"])
    arguments.update(C=given["C"], output_op=OPERATION.epilogue_type(1.0, 1.0))
    arguments.update(C=given["C"])
    OPERATION.run(arguments)
    np.testing.assert_allclose(given["D"], given["A"] @ given["B"] + given["C"], rtol=1e-5, atol=1e-5)


def test_c_of_other_families_without_scalars_is_refused():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3)])
    with pytest.raises(ArgumentError, match="C is given without output_op"):
        GemmGroupedArguments(group.operation, group.sizes, group.A, group.B, group.C, group.D)
    arguments = group.arguments()
    with pytest.raises(ArgumentError, match="C is given without output_op"):
        arguments.update(C=group.C)
    x, w, y = (np.zeros(shape, np.float32) for shape in ((1, 4, 4, 3), (5, 3, 3, 3), (1, 2, 2, 5)))
    with pytest.raises(ArgumentError, match="C is given without output_op"):
        Conv2dArguments(*conv_of(x, w), x, w, y, y)
    reduction, planes = reduction_of(partial_sums())
    with pytest.raises(ArgumentError, match=r"source is given without output_op.*source=None"):
        ReductionArguments(reduction, (M, N), 2, planes.ptr_D, operands()["D"], operands()["C"])


def test_c_of_other_families_with_alpha_alone_is_refused():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3)])
    given = (group.sizes, group.A, group.B, group.C, group.D)
    alone = group.operation.epilogue_type(2.0)
    with pytest.raises(ArgumentError, match=r"C is given with output_op=operation.epilogue_type\(2.0\)"):
        GemmGroupedArguments(group.operation, *given, output_op=alone)
    arguments = GemmGroupedArguments(group.operation, *given, output_op=group.operation.epilogue_type(2.0, 1.0))
    with pytest.raises(ArgumentError, match=r"C is given with output_op=operation.epilogue_type\(2.0\)"):
        arguments.update(output_op=alone)
    x, w, y = (np.zeros(shape, np.float32) for shape in ((1, 4, 4, 3), (5, 3, 3, 3), (1, 2, 2, 5)))
    operation, size = conv_of(x, w)
    with pytest.raises(ArgumentError, match=r"C is given with output_op=operation.epilogue_type\(2.0\)"):
        Conv2dArguments(operation, size, x, w, y, y, operation.epilogue_type(2.0))
    reduction, planes = reduction_of(partial_sums())
    with pytest.raises(ArgumentError, match=r"source is given with output_op.*source=None"):
        ReductionArguments(
            *(reduction, (M, N), 2, planes.ptr_D, operands()["D"], operands()["C"]),
            output_op=reduction.epilogue_type(2.0),
        )


# Parallel split-K


def conv_of(x: Any, w: Any) -> Any:
    return SIMT[cutlass.conv.Operator.fprop], conv2d_problem_size(x, w)


def partial_sums(**changes: Any) -> GemmArguments:
    given = {**operands(), "C": None, "D": None, **changes}
    return GemmArguments(OPERATION, SIZE, **given, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=2)


def reduction_of(arguments: GemmArguments) -> tuple[ReductionOperation, GemmArguments]:
    described = TensorDescription(cutlass.float32, cutlass.RowMajor, 1)
    return ReductionOperation([4, 32], described, cutlass.float32, count=1), arguments


def test_what_parallel_split_k_does_not_use_is_said_once(caplog):
    partial_sums()
    assert "parallel split-K" not in caplog.text
    given = operands()
    for _ in range(2):  # as the scripts of the original do
        arguments = partial_sums(C=given["C"], D=given["D"], output_op=OPERATION.epilogue_type(2.0, 1.0))
    assert caplog.text.count("C, D, output_op of GemmArguments belong to the ReductionArguments") == 1
    reduction, _ = reduction_of(arguments)
    scalars = reduction.epilogue_type(2.0, 1.0)
    ends = ReductionArguments(reduction, (M, N), 2, arguments.ptr_D, given["D"], given["C"], output_op=scalars)
    OPERATION.run(arguments)
    reduction.run(ends)
    np.testing.assert_allclose(given["D"], 2 * (given["A"] @ given["B"]) + given["C"], rtol=1e-5, atol=1e-4)


def test_what_parallel_split_k_of_a_convolution_does_not_use_is_said_once(caplog):
    x, w, y = (np.zeros(shape, np.float32) for shape in ((1, 4, 4, 3), (5, 3, 3, 3), (1, 2, 2, 5)))
    for _ in range(2):
        Conv2dArguments(*conv_of(x, w), x, w, y, y, split_k_mode=SplitKMode.Parallel)
    assert caplog.text.count("C, D of Conv2dArguments belong to the ReductionArguments") == 1


def test_a_reduction_before_its_gemm_is_refused():
    reduction, arguments = reduction_of(partial_sums())
    D = np.full((M, N), np.nan, np.float32)
    ends = ReductionArguments(reduction, (M, N), 2, arguments.ptr_D, D)
    with pytest.raises(ArgumentError, match="have not been computed yet: run the operation that makes them before"):
        reduction.run(ends)
    assert np.isnan(D).all()
    OPERATION.run(arguments)
    reduction.run(ends)
    reduction.run(ends)
    given = operands()
    np.testing.assert_allclose(D, given["A"] @ given["B"], rtol=1e-5, atol=1e-5)


def test_a_reduction_of_other_sums_is_looked_at_again():
    reduction, arguments = reduction_of(partial_sums())
    other = partial_sums()
    D = np.full((M, N), np.nan, np.float32)
    OPERATION.run(arguments)
    ends = ReductionArguments(reduction, (M, N), 2, arguments.ptr_D, D)
    reduction.run(ends)
    ends.update(A=other.ptr_D)
    with pytest.raises(ArgumentError, match="have not been computed yet"):
        reduction.run(ends)
    OPERATION.run(other)
    reduction.run(ends)


@pytest.mark.parametrize("launched", [False, True])
def test_partial_sums_outlive_the_arguments_that_made_them(launched):
    reduction, arguments = reduction_of(partial_sums())
    D = np.full((M, N), np.nan, np.float32)
    ends = ReductionArguments(reduction, (M, N), 2, arguments.ptr_D, D)
    if launched:
        OPERATION.run(arguments)
        assert arguments.launched
    del arguments
    if launched:
        reduction.run(ends)
        assert not np.isnan(D).any()
        return
    with pytest.raises(ArgumentError, match="have not been computed yet"):
        reduction.run(ends)


# Gradients, alignments


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_an_operand_that_requires_a_gradient_is_said_once(name, caplog):
    given = {key: torch.from_numpy(np.asarray(value)) for key, value in operands().items()}
    given[name].requires_grad_()
    make = lambda: GemmArguments(OPERATION, SIZE, **given, output_op=OPERATION.epilogue_type(1.0, 1.0))  # noqa: E731
    with torch.no_grad():
        make()
    assert "gradient" not in caplog.text
    make()
    make()
    assert caplog.text.count(f"operand {name} requires a gradient, and D has none") == 1


def test_an_operand_of_a_group_that_requires_a_gradient_is_said(caplog):
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    group.arguments(A=[group.A[0], torch.from_numpy(group.A[1]).requires_grad_()])
    assert caplog.text.count("operand A[1] requires a gradient") == 1


def test_an_alignment_that_is_reduced_is_said_once(caplog):
    for _ in range(2):
        assert TensorDescription(cutlass.float16, cutlass.RowMajor, 16).alignment == 8
    TensorDescription(cutlass.float16, cutlass.RowMajor, 8)
    said = [line for line in caplog.messages if "alignment" in line]
    assert said == [
        "alignment 16 of cutlass.float16 is more than one access of 128 bits holds: it is taken as 8"
    ]  # fmt: skip


def test_alignments_that_the_library_chooses_are_not_said(caplog):
    operation = ampere("f16")  # 8 elements of D, and 4 of each partial sum
    reduction = ReductionOperation([4, 256], operation.C, cutlass.float32, count=8)
    A, B, D = np.ones((8, 64), np.float16), np.ones((8, 64), np.float16).T, np.empty((8, 8), np.float16)
    arguments = GemmArguments(operation, (8, 8, 64), A, B, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=2)
    ReductionArguments(reduction, (8, 8), 2, arguments.ptr_D, D)
    assert "alignment" not in caplog.text


# Copies


def test_a_problem_size_is_handed_out_as_a_copy():
    x, w, y = (np.ones(shape, np.float32) for shape in ((1, 4, 4, 3), (5, 3, 3, 3), (1, 2, 2, 5)))
    operation, problem = conv_of(x, w)
    arguments = Conv2dArguments(operation, problem, x, w, None, y)
    arguments.problem_size.R = 1
    assert arguments.problem_size.R == 3
    problem.R = 1  # the user's own
    operation.run(arguments)
    assert (y == 27).all()


def test_the_sizes_of_a_group_are_handed_out_as_a_copy():
    group = Group(grouped(alignment=1, stages=2), [(4, 6, 3), (5, 2, 7)])
    arguments = group.arguments()
    arguments.problem_sizes[:] = 1
    assert arguments.problem_sizes.tolist() == [[4, 6, 3], [5, 2, 7]]
    group.operation.run(arguments)
    group.check()
