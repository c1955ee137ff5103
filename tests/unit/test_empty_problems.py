"""Problems with an extent of 0, and operands of more dimensions than a matrix has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from descriptions import COLUMN, ROW, ampere, hopper
from gemm_operands import matrices

from pycutlass import GemmArguments, cutlass
from pycutlass.errors import ArgumentError

Mode = cutlass.gemm.Mode
OPERATIONS = {
    "simt": ampere("f32_simt", (ROW, ROW, ROW)),
    "by columns": ampere("f16", (COLUMN, COLUMN, COLUMN), alignment=8),
    "hopper": hopper(),
}


def run(operation: Any, size: Any, **given: Any) -> GemmArguments:
    arguments = GemmArguments(operation, size, **given)
    operation.run(arguments)
    arguments.sync()
    return arguments


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [(0, 16, 32), (16, 0, 32), (0, 0, 0), (0, 16, 0)], ids=str)
def test_without_rows_or_columns_nothing_happens(name: str, size: Any) -> None:
    operation = OPERATIONS[name]
    arguments = run(operation, size, **matrices(operation, *size), output_op=operation.epilogue_type(1.0, 1.0))
    arguments.update(**matrices(operation, *size))
    operation.run(arguments)
    assert arguments.lda is not None
    with pytest.raises(ArgumentError, match="operand A must have shape"):
        arguments.update(A=np.empty((size[0], 8), operation.A.type.dtype))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("scalars", [(1.0, 0.0), (2.0, -0.5), (np.nan, 0.0)], ids=str)
def test_without_products_the_sum_is_zero(name: str, scalars: Any) -> None:
    operation, (m, n) = OPERATIONS[name], (16, 32)
    given = matrices(operation, m, n, 0)
    run(operation, (m, n, 0), **given, output_op=operation.epilogue_type(*scalars))
    expected = np.full((m, n), scalars[0] * 0.0)
    if scalars[1]:
        expected = expected + scalars[1] * given["C"].astype(float)
    # Numbers below the least normal one of float16 are rounded to a multiple of 2^-24, which is no small part of them.
    np.testing.assert_allclose(given["D"].astype(float), expected, rtol=1e-3, atol=2.0**-24)


def test_batches_and_arrays_without_products() -> None:
    operation = OPERATIONS["simt"]
    A, B = np.empty((3, 4, 0), np.float32), np.empty((3, 0, 5), np.float32)
    C, D = np.random.default_rng().random((3, 4, 5), np.float32), np.full((3, 4, 5), np.nan, np.float32)
    for given in ({"A": A, "B": B[0], "C": C, "D": D}, {n: list(t) for n, t in zip("ABCD", (A, B, C, D), strict=True)}):
        D[:] = np.nan
        mode = Mode.Array if isinstance(given["D"], list) else Mode.Batched
        run(operation, (4, 5, 0), **given, gemm_mode=mode, batch=3, output_op=operation.epilogue_type(1.0, 2.0))
        np.testing.assert_array_equal(D, 2 * C)


@pytest.mark.parametrize("mode", [Mode.Batched, Mode.Array])
def test_empty_matrices_of_batches_and_arrays(mode: Any) -> None:
    operation = OPERATIONS["simt"]
    A, B, D = (np.empty(shape, np.float32) for shape in ((3, 0, 4), (3, 4, 5), (3, 0, 5)))
    given = {"A": A, "B": B, "D": D}
    if mode == Mode.Array:
        given = {name: list(tensor) for name, tensor in given.items()}
    run(operation, (0, 5, 4), **given, gemm_mode=mode, batch=3)


@pytest.mark.parametrize("slices", [1, 3])
def test_slices_of_no_products(slices: int) -> None:
    operation = OPERATIONS["simt"]
    given = matrices(operation, 4, 8, 0)
    run(operation, (4, 8, 0), **given, split_k_slices=slices, output_op=operation.epilogue_type(1.0, 2.0))
    np.testing.assert_array_equal(given["D"], 2 * given["C"])


@pytest.mark.parametrize("size", [(4, 8, 0), (0, 8, 16), (4, 0, 16)], ids=str)
def test_a_reduction_of_an_empty_problem(size: Any) -> None:
    from pycutlass import LinearCombination, ReductionArguments, ReductionOperation, TensorDescription

    operation, f32 = OPERATIONS["simt"], cutlass.float32
    described = TensorDescription(f32, ROW)
    reduction = ReductionOperation(
        cutlass.MatrixCoord(4, 32), described, f32, epilogue_functor=LinearCombination(f32, 1), count=1
    )
    given = matrices(operation, *size)
    C, D = given.pop("C"), given.pop("D")
    sums = run(operation, size, **given, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=1 if size[2] else 2)
    ends = ReductionArguments(
        reduction, size[:2], sums.split_k_slices, sums.ptr_D, D, C, output_op=reduction.epilogue_type(1.0, 3.0)
    )
    reduction.run(ends)
    ends.sync()
    np.testing.assert_array_equal(D, 3 * C)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"A": np.empty((5, 0), np.float32)}, ["operand A", "(4, 0)", "(5, 0)"]),
        ({"A": np.empty((4, 1), np.float32)}, ["operand A", "(4, 0)", "(4, 1)"]),
        ({"B": None}, ["operand B is missing"]),
        ({"D": np.empty((4, 9), np.float32)}, ["operand D", "(4, 8)", "(4, 9)"]),
    ],
)
def test_wrong_operands_of_empty_problems(change: Any, words: list[str]) -> None:
    operation = OPERATIONS["simt"]
    with pytest.raises(ArgumentError) as caught:
        GemmArguments(operation, (4, 8, 0), **{**matrices(operation, 4, 8, 0), "C": None, **change})
    assert all(word in str(caught.value) for word in words), caught.value


# Operands of more dimensions


@pytest.mark.parametrize("name", ["simt", "by columns"])
def test_sequences_and_one_weight(name: str) -> None:
    operation, (b, s, k, n) = OPERATIONS[name], (3, 8, 16, 24)
    dtype = torch.float32 if name == "simt" else torch.float16
    x, y = torch.randn(b, s, 2, k, dtype=dtype)[:, :, 1], torch.full((b, s, n), torch.nan, dtype=dtype)
    W, bias = torch.randn(k, n, dtype=dtype), torch.randn(n, dtype=dtype)
    if name == "by columns":
        W = W.T.contiguous().T
        x = torch.randn(k, b, s, dtype=dtype).permute(1, 2, 0)
        y = torch.full((n, b, s), torch.nan, dtype=dtype).permute(1, 2, 0)
        bias = y.clone(memory_format=torch.preserve_format)
    bias.normal_()
    run(operation, (b * s, n, k), A=x, B=W, C=bias, D=y, output_op=operation.epilogue_type(1.0, 1.0))
    torch.testing.assert_close(y.float(), x.float() @ W.float() + bias.float(), rtol=1e-2, atol=1e-2)


def test_rows_that_are_no_constant_step_apart_are_refused() -> None:
    operation, x = OPERATIONS["simt"], torch.randn(3, 8, 16)
    W, y = torch.randn(16, 24), torch.empty(9, 24)
    rule, copy = (
        r"operand A of shape \(3, 3, 16\).*constant step.*\(128, 16, 1\)",
        r"Pass A\.reshape\(9, 16\), which copies",
    )
    with pytest.raises(ArgumentError, match=rf"{rule}.*{copy}.*: M=3, .*Mode\.Batched, batch=3, and D of three"):
        GemmArguments(operation, (9, 24, 16), x[:, :3], W, None, y)
    with pytest.raises(ArgumentError, match=r"operand B must have shape \(16, 24\)"):
        GemmArguments(operation, (9, 24, 16), x[0, :1].expand(9, 16).clone(), W.view(4, 4, 24), None, y)
    y.fill_(torch.nan)  # the remedies
    run(operation, (9, 24, 16), A=x[:, :3].reshape(9, 16), B=W, D=y)
    torch.testing.assert_close(y.view(3, 3, 24), x[:, :3] @ W)
    y.fill_(torch.nan)
    run(operation, (3, 24, 16), A=x[:, :3], B=W, D=y.view(3, 3, 24), gemm_mode=Mode.Batched, batch=3)
    torch.testing.assert_close(y.view(3, 3, 24), x[:, :3] @ W)
