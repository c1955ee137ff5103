"""Layouts of D and of the tensors of an epilogue function, on the host's reference and in descriptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from descriptions import COLUMN, ROW, native_parts, parts
from epilogue_functions import FUNCTIONS, in_other_layouts

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    ReductionOperation,
    TensorDescription,
    cutlass,
)
from pycutlass.epilogue import fusions
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, DescriptionError

M, N, K = 72, 40, 24
f16, f32 = cutlass.float16, cutlass.float32


def make(functor: Any, layouts: tuple[Any, Any, Any] = (ROW, COLUMN, COLUMN), **changes: Any) -> GemmOperationUniversal:
    return GemmOperationUniversal(**parts("f16", layouts, **changes) | {"epilogue_functor": functor})


def by_columns(array: Any) -> Any:
    return np.asfortranarray(array)


def drawn(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(np.float16)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_transposed_function_computes_transposed_results(name: str) -> None:
    """On which kernels rely that have a column-major D."""
    function = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    forms = {each.name: each.form for each in function.graph.inputs[1:]}
    shapes = {"row": (N,), "column": (M,), "scalar": (), "number": ()}
    given = {name: rng.normal(size=shapes.get(form, (M, N))) for name, form in forms.items()}
    accumulator = rng.normal(size=(M, N))
    functor = function(f16, 8, f32)
    other = functor.transposed()
    assert other.transposed() == functor
    right = function.numpy(accumulator, **given)
    found = other.function.numpy(accumulator.T, **{name: each.T for name, each in given.items()})
    if not isinstance(right, dict):
        right, found = {"D": right}, {"D": found}
    for output, values in right.items():
        np.testing.assert_allclose(found[output], values.T, rtol=1e-12)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_d_by_columns_is_what_it_is_by_rows(name: str, slices: int, without_gpu: None) -> None:
    made = {}
    for order in (ROW, COLUMN):
        operation = make(FUNCTIONS[name](f16, 8, f32), (ROW, COLUMN, order))
        functor = operation.epilogue_functor
        keep = by_columns if order is COLUMN else np.ascontiguousarray
        shapes = {"matrix": (M, N), "row": (N,), "column": (M,), "scalar": (1,), "number": (1,)}
        given = {port.name: keep(drawn(*shapes[port.form]).astype(port.type.dtype)) for port in functor.inputs}
        given |= {
            port.name: keep(np.full(shapes[port.form], 7, port.type.dtype))
            for port in operation.epilogue_functor.outputs
        }
        C = keep(drawn(M, N)) if operation.epilogue_functor.reads_source else None
        D = keep(np.zeros((M, N), np.float16))
        arguments = GemmArguments(
            operation, (M, N, K), drawn(M, K), by_columns(drawn(K, N)), C, D, epilogue=given, split_k_slices=slices
        )
        operation.run(arguments)
        arguments.sync()
        made[order] = {"D": D} | {port.name: given[port.name] for port in functor.outputs}
    for output, values in made[ROW].items():
        np.testing.assert_array_equal(made[COLUMN][output], values)


def test_a_tensor_by_rows_is_refused_where_d_is_by_columns() -> None:
    operation = make(fusions.residual_relu(f16, 8))
    given = {"residual": drawn(M, N)}
    D = by_columns(np.zeros((M, N), np.float16))
    with pytest.raises(ArgumentError, match=r"residual.*ColumnMajor"):
        GemmArguments(operation, (M, N, K), drawn(M, K), by_columns(drawn(K, N)), None, D, epilogue=given)


@pytest.mark.parametrize(("of_D", "of_others"), [(ROW, COLUMN), (COLUMN, ROW), (ROW, ROW), (COLUMN, COLUMN)])
def test_tensors_may_lie_otherwise_than_d(of_D: Any, of_others: Any, without_gpu: None) -> None:
    operation = make(in_other_layouts(f16, 8, f32, of_others), (ROW, COLUMN, of_D))
    keep = {ROW: np.ascontiguousarray, COLUMN: by_columns}
    given = {
        "x": keep[of_D](drawn(M, N)),
        "y": keep[of_others](drawn(M, N) + 1),
        "left": drawn(M),
        "first": keep[of_D](np.zeros((M, N), np.float16)),
        "second": keep[of_others](np.zeros((M, N), np.float32)),
    }
    A, B, C = drawn(M, K), drawn(K, N), drawn(M, N)
    D = keep[of_D](np.zeros((M, N), np.float16))
    arguments = GemmArguments(operation, (M, N, K), A, by_columns(B), keep[of_D](C), D, epilogue=given)
    operation.run(arguments)
    arguments.sync()
    sums = A.astype(np.float32) @ B.astype(np.float32)
    right = FUNCTIONS["several"].numpy(sums, c=C, **{name: given[name] for name in ("x", "y", "left")}, slope=0.5)
    for name, made in {"D": D, "first": given["first"], "second": given["second"]}.items():
        np.testing.assert_array_equal(made, right[name].astype(made.dtype), err_msg=name)
    count = operation.emit().count("pycutlass::ColumnMajorMatrix<")
    assert count == (0 if of_D is of_others else 2)


@pytest.mark.parametrize("order", [ROW, COLUMN])
def test_a_tensor_may_be_d_itself(order: Any, without_gpu: None) -> None:
    """As C may: a residual is added where it is."""
    operation = make(fusions.bias_residual_relu(f16, 8), (ROW, COLUMN, order))
    keep = by_columns if order is COLUMN else np.ascontiguousarray
    A, B, bias, before = drawn(M, K), by_columns(drawn(K, N)), drawn(N), drawn(M, N)
    D = keep(before.copy())
    arguments = GemmArguments(operation, (M, N, K), A, B, None, D, epilogue={"bias": bias, "residual": D})
    operation.run(arguments)
    arguments.sync()
    sums = A.astype(np.float64) @ B.astype(np.float64)
    right = fusions.bias_residual_relu.numpy(sums, bias=bias, residual=before)
    np.testing.assert_array_equal(D, right.astype(np.float16))


def test_what_a_tensor_in_the_place_of_d_must_be() -> None:
    memory = np.zeros((M + 1, N), np.float16)
    A, B, bias = drawn(M, K), by_columns(drawn(K, N)), drawn(N)
    wider = np.zeros((M, N), np.float32)
    for functor, D, residual in (
        (fusions.bias_residual_relu(f16, 8), memory[:M], memory[1:]),  # a row off
        (fusions.bias_residual_relu(f16, 8, residual=f32), wider.view(np.float16).reshape(2 * M, N)[:M], wider),
    ):
        operation = make(functor, (ROW, COLUMN, ROW))
        with pytest.raises(ArgumentError, match=r"D overlaps residual.* cannot write over what it still reads"):
            GemmArguments(operation, (M, N, K), A, B, None, D, epilogue={"bias": bias, "residual": residual})
    operation = make(FUNCTIONS["residual"](f16, 8), (ROW, COLUMN, ROW))
    D, T = np.zeros((2, M, N), np.float16)
    with pytest.raises(ArgumentError, match=r"T overlaps addend"):  # D alone
        GemmArguments(operation, (M, N, K), A, B, None, D, epilogue={"bias": bias, "addend": T, "T": T})


def test_tensors_in_the_places_of_d_of_groups(without_gpu: None) -> None:
    functor = fusions.residual_relu(f16, 8)
    operation = GemmOperationGrouped(**parts("f16") | {"epilogue_functor": functor})
    A, B = [drawn(M, K), drawn(M, K)], [by_columns(drawn(K, N)), by_columns(drawn(K, N))]
    before = drawn(2, M, N)
    D = [*before.copy()]
    arguments = GemmGroupedArguments(operation, [[M, N, K]] * 2, A, B, None, D, epilogue={"residual": D})
    operation.run(arguments)
    arguments.sync()
    for number in range(2):
        sums = A[number].astype(np.float64) @ B[number].astype(np.float64)
        right = fusions.residual_relu.numpy(sums, residual=before[number])
        np.testing.assert_array_equal(D[number], right.astype(np.float16))
    with pytest.raises(ArgumentError, match=r"problems of a group run in any order"):
        GemmGroupedArguments(operation, [[M, N, K]] * 2, A, B, None, D, epilogue={"residual": D[::-1]})


def test_groups_have_either(without_gpu: None) -> None:
    functor = fusions.bias_residual_relu(f16, 8)
    operation = GemmOperationGrouped(**parts("f16", (ROW, COLUMN, COLUMN)) | {"epilogue_functor": functor})
    A, B = [drawn(M, K)], [by_columns(drawn(K, N))]
    D, residual = [by_columns(np.zeros((M, N), np.float16))], [by_columns(drawn(M, N))]
    arguments = GemmGroupedArguments(
        operation, [[M, N, K]], A, B, None, D, epilogue={"bias": [drawn(N)], "residual": residual}
    )
    operation.run(arguments)
    arguments.sync()
    sums = A[0].astype(np.float64) @ B[0].astype(np.float64)
    right = fusions.bias_residual_relu.numpy(sums, bias=drawn(N), residual=residual[0])
    np.testing.assert_array_equal(D[0], right.astype(np.float16))


def test_descriptions_say_the_alignment_as_well() -> None:
    functor = fusions.residual_relu(f16, 8, residual=TensorDescription(f32, ROW, 1))
    assert functor.inputs[0].alignment == 1
    names = {"residual_relu": fusions.residual_relu, "cutlass": cutlass, "TensorDescription": TensorDescription}
    assert eval(repr(functor), names) == functor
    assert functor != fusions.residual_relu(f16, 8, residual=f32)
    padded = np.zeros((M, N + 1), np.float32)[:, :N]
    arguments = (drawn(M, K), by_columns(drawn(K, N)), None, np.zeros((M, N), np.float16))
    assert GemmArguments(make(functor, (ROW, COLUMN, ROW)), (M, N, K), *arguments, epilogue={"residual": padded})
    strict = make(fusions.residual_relu(f16, 8, residual=f32), (ROW, COLUMN, ROW))
    with pytest.raises(AlignmentError):
        GemmArguments(strict, (M, N, K), *arguments, epilogue={"residual": padded})


def test_what_a_description_cannot_say() -> None:
    with pytest.raises(DescriptionError, match=r"bias of bias_relu is a row, which has no layout"):
        fusions.bias_relu(f16, 8, bias=TensorDescription(f16, ROW, 8))
    with pytest.raises(DescriptionError, match=r"residual of residual_relu is a matrix.*got cutlass.TensorNHWC"):
        fusions.residual_relu(f16, 8, residual=TensorDescription(f16, cutlass.TensorNHWC, 8))


def test_hopper_native_kernels_compute_the_transposed_problem() -> None:
    functor = fusions.bias_residual_relu(f16, 8)
    C = TensorDescription(f16, COLUMN, 8)
    operation = GemmOperationUniversal(**native_parts() | {"C": C, "epilogue_functor": functor})
    text = operation.emit()
    assert "TransposedSm90<Transposed>" in text
    assert "pycutlass::Column<&FunctionArguments::tensor0" in text
    with pytest.raises(DescriptionError, match=r"Hopper-native groups with an epilogue function have a RowMajor D"):
        GemmOperationGrouped(**native_parts() | {"C": C, "epilogue_functor": functor})
    linear = FUNCTIONS["linear"](f16, 8, f32)
    assert GemmOperationUniversal(**native_parts() | {"C": C, "epilogue_functor": linear})
    apart = native_parts() | {"D": C, "epilogue_functor": linear}
    with pytest.raises(DescriptionError, match=r"reads C and writes D in the same order"):
        GemmOperationUniversal(**apart)


def test_convolutions_and_reductions() -> None:
    from convolutions import conv, fprop

    by_column = TensorDescription(f16, COLUMN, 8)
    with pytest.raises(DescriptionError, match=r"residual as cutlass.ColumnMajor, and tensors of convolutions lie"):
        conv(
            kind=fprop,
            algorithm="optimized",
            functor=lambda *_: fusions.residual_relu(f16, 8, residual=by_column),
        )
    functor = fusions.residual_relu(f16, 8, residual=by_column)
    reduction = ReductionOperation((4, 256), TensorDescription(f16, ROW, 8), f32, epilogue_functor=functor, count=8)
    assert "pycutlass::ColumnMajorMatrix<" in reduction.emit()


def test_supports_knows_the_tensors_of_the_epilogue() -> None:
    spec = pycutlass.TensorSpec
    operation = make(FUNCTIONS["residual"](f16, 8, T=f32), (ROW, COLUMN, COLUMN))
    right = {"bias": spec((N,), f16), "addend": spec((M, N), f16, (1, M)), "T": spec((M, N), f32, (1, M + 8))}
    assert operation.supports((M, N, K), right)
    for name, other, said in (
        ("bias", spec((M,), f16), "operand bias must be a contiguous vector of 40 elements"),
        ("addend", spec((M, N), f16), "operand addend is described as ColumnMajor"),
        ("T", spec((M, N), f16, (1, M)), "operand T must be float32"),
        ("T", spec((M, N), f32, (1, M - 1)), "T"),
    ):
        assert said in operation.supports((M, N, K), right | {name: other}).reason
    with pytest.raises(ArgumentTypeError, match="operands are A, B, C, D, bias, addend, T; got 'slope'"):
        operation.supports((M, N, K), {"slope": spec((1,), f16)})
    mode = cutlass.gemm.Mode
    batched = pycutlass.GemmProblemSize(M, N, K, batch=3, gemm_mode=mode.Batched)
    assert operation.supports(batched, {"addend": spec((3, M, N), f16, (M * N, 1, M))})
    assert "addend" in operation.supports(batched, {"addend": spec((4, M, N), f16, (M * N, 1, M))}).reason
    listed = pycutlass.GemmProblemSize(M, N, K, batch=2, gemm_mode=mode.Array)
    assert operation.supports(listed, {"bias": [spec((N,), f16)] * 2})
    assert "bias" in operation.supports(listed, {"bias": [spec((N + 1,), f16)] * 2}).reason


@pytest.mark.parametrize("order", [ROW, COLUMN])
def test_outputs_are_what_a_launch_writes(order: Any, without_gpu: None) -> None:
    operation = make(FUNCTIONS["reduced"](f16, 8), (ROW, COLUMN, order))
    made = operation.outputs((M, N, K))
    assert {name: each.shape for name, each in made.items()} == {
        "D": (M, N),
        "row_sum": (M,),
        "row_max": (M,),
        "column_sum": (N,),
        "column_squares": (N,),
        "least": (1,),
        "most": (1,),
    }
    D, *others = (np.ndarray(each.shape, each.dtype, strides=None) for each in made.values())
    D = by_columns(D) if order is COLUMN else D
    given = {"bias": drawn(N)} | dict(zip([*made][1:], others, strict=True))
    assert GemmArguments(operation, (M, N, K), drawn(M, K), by_columns(drawn(K, N)), None, D, epilogue=given)
    size = pycutlass.GemmProblemSize(M, N, K, batch=3, gemm_mode=cutlass.gemm.Mode.Batched)
    several = make(FUNCTIONS["several"](f16, 8), (ROW, COLUMN, order)).outputs(size)
    assert several["first"] == several["D"]
    assert operation.outputs(size)["column_sum"].shape == (3, N)
