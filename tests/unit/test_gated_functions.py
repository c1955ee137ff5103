"""Epilogue functions that combine pairs of neighbouring columns, so that D has half as many."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from descriptions import native_parts, parts
from epilogue_functions import gated
from marks import thorough_but

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    GemmProblemSize,
    KernelSchedule,
    ReductionOperation,
    TensorDescription,
    cutlass,
    epilogue,
)
from pycutlass.epilogue import Column, EpilogueFunction, Family, Row, Source, Tensor, fusions, pairs, silu
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError, DescriptionError

f16, f32 = cutlass.float16, cutlass.float32
M, N, K = 40, 48, 32
_Mode = cutlass.gemm.Mode
KERNELS: dict[str, Callable[[], dict[str, Any]]] = {
    "ampere": lambda: parts("f16", tile=(64, 64, 32)),
    "ampere, stream-K": lambda: parts("f16") | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK},
    "hopper": native_parts,
}


def make(function: EpilogueFunction, kernel: str = "ampere", **changes: Any) -> GemmOperationUniversal:
    described = KERNELS[kernel]() | changes
    functor = function(described["C"].element, described["C"].alignment, cutlass.float32)
    return GemmOperationUniversal(**described | {"epilogue_functor": functor})


def drawn(*batch: int) -> tuple[Any, Any]:
    """Return A and B of small integers."""
    random = np.random.default_rng(1)
    A, B = random.integers(-2, 3, (*batch, M, K)), random.integers(-2, 3, (*batch, N, K))
    return A.astype(np.float16), B.astype(np.float16).swapaxes(-1, -2)


def vectors() -> dict[str, Any]:
    random = np.random.default_rng(2)
    return {
        "bias": random.integers(-3, 4, N).astype(np.float16),
        "left": random.integers(-3, 4, M).astype(np.float16),
    }


def expected(A: Any, B: Any, **given: Any) -> Any:
    return gated.numpy(A.astype(float) @ B.astype(float), **given)


def launch(operation: Any, A: Any, B: Any, D: Any, given: dict[str, Any], **options: Any) -> None:
    arguments = GemmArguments(operation, (M, N, K), A, B, None, D, epilogue=given, **options)
    operation.run(arguments)
    arguments.sync()


# What it means


def test_even_and_odd_columns_of_arrays() -> None:
    even, odd = pairs(np.arange(12).reshape(2, 6))
    assert even.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert odd.tolist() == [[1, 3, 5], [7, 9, 11]]
    with pytest.raises(ArgumentError, match="takes an even number of columns, and x has 3"):
        pairs([1, 2, 3])
    for wrong in (1.0, object()):
        with pytest.raises(
            ArgumentTypeError, match=r"pairs takes a value of|what pairs is given must be an array of numbers"
        ):
            pairs(wrong)


def test_numpy_has_half_of_the_columns() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 8))
    bias = np.arange(8.0)
    even, odd = (x + bias)[..., ::2], (x + bias)[..., 1::2]
    np.testing.assert_allclose(fusions.bias_swiglu.numpy(x, bias=bias), even / (1 + np.exp(-even)) * odd, rtol=1e-12)
    with pytest.raises(ArgumentError, match=r"swiglu combines pairs .* even number of them; got shape \(2, 7\)"):
        fusions.swiglu.numpy(np.ones((2, 7)))


def test_equal_functions_are_equal() -> None:
    def f(accum: Any) -> Any:
        gate, up = pairs(accum)
        return silu(gate) * up

    def turned(accum: Any) -> Any:
        up, gate = pairs(accum)
        return silu(gate) * up

    assert pycutlass.epilogue_function(f) == fusions.swiglu != pycutlass.epilogue_function(turned)


def test_a_row_has_pairs_as_well() -> None:
    @pycutlass.epilogue_function
    def f(accum: Any, bias: Row) -> Any:
        (gate, up), (of_gate, of_up) = pairs(accum), pairs(bias)
        return (gate + of_gate) * (up + of_up)

    assert f.numpy([[1.0, 2.0, 3.0, 4.0]], bias=[1, 0, 0, 1]).tolist() == [[4.0, 15.0]]


def test_it_is_drawn_with_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "graphviz", None)
    lines = fusions.swiglu(f16, 8).visualize().splitlines()
    assert lines[1:3] == ["  %0 = accum  : (M, N) float32", "  %1 = even columns(%0)  : (M, N / 2) float32"]
    assert lines[-1] == "  D = %4  : (M, N / 2) float16"


# What is refused


def _mixed(accum: Any, bias: Row) -> Any:
    gate, up = pairs(accum + bias)
    return gate * up + bias


def _mixed_later(accum: Any, x: Tensor, y: Row) -> Any:
    gate, up = pairs(accum)
    late = gate * up + epilogue.exp(x * y)
    return {"D": late, "T": accum * y}


def _mixed_with_accum(accum: Any) -> Any:
    gate, up = pairs(accum)
    return gate * up + accum


def _whole(accum: Any) -> Any:
    gate, up = pairs(accum)
    return {"D": accum, "T": gate * up}


def _of_source(accum: Any, c: Source) -> Any:
    gate, up = pairs(accum + c)
    return gate * up


def _twice(accum: Any) -> Any:
    gate, up = pairs(pairs(accum)[0])
    return gate * up


def _of_column(accum: Any, x: Column) -> Any:
    gate, up = pairs(x)
    return gate * up


def _of_condition(accum: Any) -> Any:
    gate, up = pairs(accum > 0)
    return epilogue.where(gate, up, up)


def _reduced_before(accum: Any) -> Any:
    gate, up = pairs(accum)
    return {"D": gate * up, "total": epilogue.sum(accum)}


def _of_reduction(accum: Any) -> Any:
    gate, up = pairs(epilogue.sum(accum))
    return gate * up


def _half_used(accum: Any) -> Any:
    return pairs(accum)[0]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            _mixed,
            "(return gate * up + bias): add is given a value with all N columns, and one of pairs with N / 2: combine "
            "what has N columns before pairs(x), as in gate, up = pairs(accum + bias), or take pairs of both. By what "
            "it is combined with, a Row or Tensor has as many: bias with N",
        ),
        (_mixed_later, "multiply is given a value with all N columns, and one of pairs with N / 2: "),
        (_mixed_later, "a Row or Tensor has as many: y with N / 2"),
        (_mixed_with_accum, "and one of pairs with N / 2: combine"),
        (_whole, "_whole uses pairs, and its D has all N columns"),
        (
            _of_source,
            "_of_source uses pairs and has c: Source, which is operand C, and kernels that combine pairs do not read "
            "C: write c: Tensor, of (M, N) before pairs",
        ),
        (_twice, "pairs is given what pairs returned, or was computed from it: columns are paired once"),
        (_of_column, "pairs takes a value with all N columns, such as accum or accum + bias, and is given one that"),
        (_of_condition, "pairs takes numbers, and is given a condition: compare what pairs returns"),
        (_reduced_before, "_reduced_before uses pairs, and reduces a value with all N columns to total"),
        (_of_reduction, "what sum returned is used"),
        (_half_used, "the result of pairs for odd columns is unused"),
    ],
)
def test_what_has_no_meaning_is_refused(function: Any, said: str) -> None:
    with pytest.raises(DescriptionError, match=re.escape(said)):
        pycutlass.epilogue_function(function)


def test_a_thread_has_both_columns_of_a_pair() -> None:
    with pytest.raises(DescriptionError, match="give it epilogue_vector_length=2 at least"):
        fusions.swiglu(f16, 1)
    assert fusions.swiglu(f16, 2).columns(10) == 5


@pytest.mark.parametrize("family", Family)
def test_other_families_say_who_can(family: Family) -> None:
    said = fusions.swiglu(f16, 8).why_not(family)
    taking = (Family.AMPERE_GEMM, Family.AMPERE_GROUP, Family.SM90_GEMM, Family.SM90_GROUP)
    assert (said == "") == (family in taking)
    remedy = "use an Ampere-style or a Hopper-native GEMM, or a group of them"
    assert said == "" or said.endswith(f"{family.value} do not write: {remedy}")


def test_reductions_of_partial_sums_are_refused() -> None:
    C = TensorDescription(f16, cutlass.RowMajor, 8)
    with pytest.raises(DescriptionError, match="D has half as many"):
        ReductionOperation((4, 256), C, f32, None, None, fusions.swiglu(f16, 8), 8)


def test_columns_of_a_pair_lie_side_by_side() -> None:
    column_major = TensorDescription(f16, cutlass.ColumnMajor, 8)
    for kernel, changes in (
        ("ampere", {"C": column_major}),
        ("hopper", {"C": column_major}),
        ("hopper", {"D": column_major}),
    ):
        with pytest.raises(DescriptionError, match=r"where D is RowMajor; got cutlass.ColumnMajor: describe D so"):
            make(fusions.swiglu, kernel, **changes)


# Problems and operands


@pytest.mark.parametrize("kernel", KERNELS)
def test_d_of_a_problem(kernel: str) -> None:
    operation = make(gated, kernel)
    assert operation.output((M, N, K)).shape == (M, N // 2)
    assert operation.output(GemmProblemSize(M, N, K, _Mode.Batched, batch=3)).strides == (M * N // 2, N // 2, 1)
    assert "so that N must be even; got N=47" in operation.supports((M, 47, K)).reason
    assert "operand D is described with alignment 8" in operation.supports((M, 40, K)).reason
    D = pycutlass.TensorSpec((M, N), "float16")
    assert f"({M}, {N // 2})" in operation.supports((M, N, K), {"D": D}).reason
    assert operation.supports((M, N, K), {"D": pycutlass.TensorSpec((M, N // 2), "float16")})
    assert operation.supports((M, 0, K))


def test_parallel_split_k_has_no_pairs() -> None:
    size = GemmProblemSize(M, N, K, _Mode.GemmSplitKParallel, split_k_slices=2)
    assert "which has D with all columns: use split_k_slices" in make(gated).supports(size).reason


def test_d_of_another_shape_is_refused(without_gpu: None) -> None:
    A, B = drawn()
    operation = make(gated)
    with pytest.raises(ArgumentError, match=rf"operand D .*\({M}, {N // 2}\)"):
        launch(operation, A, B, np.empty((M, N), np.float16), vectors())
    with pytest.raises(AlignmentError, match="operand D"):
        launch(operation, A, B, np.empty((M, N // 2 + 1), np.float16)[:, :-1], vectors())
    with pytest.raises(ArgumentError, match="bias"):
        launch(operation, A, B, np.empty((M, N // 2), np.float16), vectors() | {"bias": np.empty(N // 2, np.float16)})


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_is_launched(kernel: str, without_gpu: None) -> None:
    operation, (A, B), given = make(gated, kernel), drawn(), vectors()
    memory = np.full((M, N // 2 + 8), 99, np.float16)
    launch(operation, A, B, memory[:, : N // 2], given)
    np.testing.assert_array_equal(memory[:, : N // 2], expected(A, B, **given, alpha=0.5))
    assert (memory[:, N // 2 :] == 99).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_batches(kernel: str, without_gpu: None) -> None:
    operation, (A, B), given = make(gated, kernel), drawn(3), vectors()
    D = np.empty((3, M, N // 2), np.float16)
    launch(operation, A, B, D, given, gemm_mode=_Mode.Batched, batch=3)
    np.testing.assert_array_equal(D, expected(A, B, **given, alpha=0.5))


def test_slices_and_no_products(without_gpu: None) -> None:
    operation, (A, B), given = make(gated), drawn(), vectors()
    D = np.empty(M * N // 2, np.float16)  # flat, as all operands may be
    launch(operation, A, B, D, given, split_k_slices=2)
    np.testing.assert_array_equal(D.reshape(M, -1), expected(A, B, **given, alpha=0.5))
    arguments = GemmArguments(operation, (M, N, 0), A[:, :0], B[:0], None, D.reshape(M, -1), epilogue=given)
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_array_equal(D.reshape(M, -1), expected(A * 0, B, **given, alpha=0.5))


def test_a_tree_has_pairs(without_gpu: None) -> None:
    class Gated(pycutlass.EpilogueVisitTree):
        def __call__(self, accum: "tensor", bias: "row") -> Any:  # type: ignore # noqa
            gate, up = pairs(accum + bias)
            D = gate * up
            return D

    described, (A, B), bias = parts("f16"), drawn(), vectors()["bias"]
    tree = Gated(None, described["tile_description"], f32, 8, f32, f16)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": tree})
    D = np.empty((M, N // 2), np.float16)
    arguments = GemmArguments(operation, (M, N, K), A, B, output_op=operation.epilogue_type(bias=bias, D=D))
    operation.run(arguments)
    arguments.sync()
    even, odd = pairs(A.astype(float) @ B.astype(float) + bias)
    np.testing.assert_array_equal(D, (even * odd).astype(np.float16))


@pytest.mark.compile
@pytest.mark.parametrize(
    ("kernel", "kind"),
    thorough_but(
        [("ampere", GemmOperationGrouped), ("cooperative", GemmOperationUniversal)],
        itertools.product(("ampere", "pingpong", "cooperative"), (GemmOperationUniversal, GemmOperationGrouped)),
    ),
)
def test_it_builds(kernel: str, kind: Any) -> None:
    described = parts("f16")
    if kernel != "ampere":
        described = native_parts(tile=(128, 128, 64), schedule=KernelSchedule[kernel.capitalize()])
    functor = fusions.bias_swiglu(f16, 8, bias=f32)
    operation = kind(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    (artifact,) = operation.artifacts.values()
    assert artifact.report["stack_bytes"] == 0
