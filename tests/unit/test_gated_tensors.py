"""Tensors and reductions beside pairs of columns: of (M, N) before them, of (M, N / 2) behind them."""

from __future__ import annotations

import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest
from descriptions import native_parts, parts
from epilogue_functions import gated, gated_reduced, gated_several, gated_tiles
from marks import thorough_but

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    GemmProblemSize,
    KernelSchedule,
    TensorDescription,
    TensorSpec,
    cutlass,
    epilogue,
)
from pycutlass.epilogue import Column, Row, Scalar, Tensor, fusions, pairs, silu
from pycutlass.errors import AlignmentError, ArgumentError, DescriptionError

f16, f32 = cutlass.float16, cutlass.float32
M, N, K = 40, 48, 32
_Mode = cutlass.gemm.Mode
KERNELS: dict[str, dict[str, Any]] = {
    "ampere": parts("f16", tile=(64, 64, 32)),
    "ampere, stream-K": parts("f16") | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK},
    "hopper": native_parts(),
}
FUNCTIONS = {each.name: each for each in (gated_several, gated_reduced)}


def make(function: Any, kernel: str = "ampere", **types: Any) -> GemmOperationUniversal:
    return GemmOperationUniversal(**KERNELS[kernel] | {"epilogue_functor": function(f16, 8, **types)})


def drawn(function: Any, size: tuple[int, int, int] = (M, N, K), batch: tuple[int, ...] = (), seed: int = 1) -> Any:
    """Return A, B, D and the tensors of a function, of small integers; what is written holds 99."""
    random, (m, n, k) = np.random.default_rng(seed), size
    given = {"A": random.integers(-1, 2, (*batch, m, k)), "B": random.integers(-1, 2, (*batch, n, k))}
    given = {name: each.astype(np.float16) for name, each in given.items()}
    given["B"] = given["B"].swapaxes(-1, -2)
    given["D"] = np.full((*batch, m, n // 2), 99, np.float16)
    functor = function(f16, 8)
    for port in functor.ports:
        columns = n // 2 if port.halved else n
        shape = {"matrix": (m, columns), "row": (columns,), "column": (m,), "scalar": (1,)}[port.form]
        made = random.integers(-3, 4, (*batch, *shape)).astype(port.type.dtype)
        given[port.name] = np.full_like(made, 99) if port in functor.outputs else made
    return given


def names(function: Any, written: bool) -> list[str]:
    functor = function(f16, 8)
    return [port.name for port in (functor.outputs if written else functor.inputs)]


def launch(operation: Any, function: Any, given: Any, size: Any = (M, N, K), **options: Any) -> GemmArguments:
    ports = {name: given[name] for written in (False, True) for name in names(function, written)}
    arguments = GemmArguments(operation, size, given["A"], given["B"], None, given["D"], epilogue=ports, **options)
    operation.run(arguments)
    arguments.sync()
    return arguments


def check(function: Any, given: Any, before: Any = None) -> None:
    before = before or given
    read = {name: before[name].astype(float) for name in names(function, False)}
    sums = given["A"].astype(float) @ given["B"].astype(float)
    scalars = {"alpha": 0.5} if "alpha" in function.graph.by_name else {}
    for name, exact in function.numpy(sums, **read, **scalars).items():
        np.testing.assert_allclose(given[name].reshape(exact.shape), exact, 1e-3, 1e-6, err_msg=name)


# What it means


def test_columns_are_those_of_what_a_parameter_goes_with() -> None:
    @pycutlass.epilogue_function
    def f(accum: Any, first: Row, x: Tensor, last: Row, y: Tensor, left: Column) -> Any:
        even, odd = pairs(accum * epilogue.exp(first - x))
        z = epilogue.maximum(last * 2.0, y)
        return {"D": even + odd * left + z, "whole": x * first, "half": z * left, "of_rows": left + 1.0}

    halved = {each.name: each.halved for each in f.graph.inputs}
    assert halved == {"accum": False, "first": False, "x": False, "last": True, "y": True, "left": False}
    functor = f(f16, 8)
    assert {port.name: (port.form, port.halved) for port in functor.outputs} == {
        "whole": ("matrix", False),
        "half": ("matrix", True),
        "of_rows": ("matrix", True),
    }
    random = np.random.default_rng(0)
    accum, x, y = (random.standard_normal((3, columns)) for columns in (8, 8, 4))
    first, last, left = (random.standard_normal(extent) for extent in (8, 4, 3))
    made = f.numpy(accum, first=first, x=x, last=last, y=y, left=left)
    t, z = accum * np.exp(first - x), np.maximum(last * 2, y)
    np.testing.assert_allclose(made["D"], t[:, ::2] + t[:, 1::2] * left[:, None] + z, rtol=1e-12)
    np.testing.assert_allclose(made["whole"], x * first, rtol=1e-12)
    np.testing.assert_allclose(made["half"], z * left[:, None], rtol=1e-12)
    np.testing.assert_allclose(made["of_rows"], np.broadcast_to(left[:, None] + 1, (3, 4)))


def test_order_does_not_matter() -> None:
    """What a parameter is follows from all of its uses, of which the first may say nothing."""

    @pycutlass.epilogue_function
    def early(accum: Any, x: Tensor, bias: Row) -> Any:
        added = x + bias
        even, odd = pairs(accum)
        return even * odd + added

    @pycutlass.epilogue_function
    def late(accum: Any, x: Tensor, bias: Row) -> Any:
        even, odd = pairs(accum)
        return even * odd + (x + bias)

    assert early == late
    assert [each.halved for each in late.graph.inputs] == [False, True, True]
    assert pickle.loads(pickle.dumps(early)) == late


def test_a_parameter_may_have_pairs_of_its_own() -> None:
    @pycutlass.epilogue_function
    def f(accum: Any, scale: Row, shift: Row) -> Any:
        (even, odd), (of_even, of_odd) = pairs(accum), pairs(scale)
        return even * of_even + odd * of_odd + shift

    assert [each.halved for each in f.graph.inputs] == [False, False, True]
    assert f.numpy([[1.0, 2.0, 3.0, 4.0]], scale=[1, 2, 3, 4], shift=[10, 20]).tolist() == [[15.0, 45.0]]


def test_functions_without_pairs_have_whole_parameters() -> None:
    for function in fusions.ALL.values():
        if not function.graph.is_gated:
            assert not any(each.halved for each in function.graph.inputs)
            text = function(f16, 8, f32).definitions(pycutlass.epilogue.Family.SM90_GEMM)
            assert "half" not in re.sub("half_t", "", text)
            assert "WholeOutputs" not in text


def test_reductions_are_of_d() -> None:
    x = (np.arange(24.0) * 7 % 24).reshape(2, 12) - 7
    residual, bias = np.ones((2, 6)), np.zeros(12)
    made = gated_reduced.numpy(x, bias=bias, residual=residual)
    difference = x[:, ::2] - x[:, 1::2]
    t = np.where(difference > 0, difference, -0.5 * difference) + 1
    np.testing.assert_allclose(made["row_most"], np.abs(t).max(1))
    np.testing.assert_allclose(made["row_squares"], (t * t).sum(1) / 64)
    np.testing.assert_allclose(made["column_sum"], difference.sum(0))
    assert made["most"] == x[:, 1::2].max()

    @pycutlass.epilogue_function
    def of_rows(accum: Any, left: Column) -> Any:
        even, odd = pairs(accum)
        return {"D": even * odd, "total": epilogue.sum(left, axis=1), "each": epilogue.sum(left, axis=0)}

    made = of_rows.numpy(x, left=[1.0, 2.0])
    assert made["total"].tolist() == [6.0, 12.0]
    assert made["each"].tolist() == [3.0] * 6
    tiles = gated_tiles(64, 8).numpy(x, bias=np.zeros(6))
    assert tiles["scales"].shape == (4,)  # of (2, 6) in tiles of 4 columns
    assert tiles["column_greatest"].shape == (6,)


def test_shapes_that_do_not_fit() -> None:
    given = {"bias": np.zeros(8), "residual": np.zeros((2, 8))}
    with pytest.raises(ArgumentError, match=r"residual of gated_reduced is a matrix, of shape \(2, 4\) where"):
        gated_reduced.numpy(np.zeros((2, 8)), **given)


def test_it_is_drawn_and_costed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "graphviz", None)
    lines = gated_reduced(f16, 8).visualize().splitlines()
    assert any(line.endswith("= residual  : (M, N / 2) float16") for line in lines)
    assert any(line.startswith("  column_sum = ") and line.endswith(": (1, N / 2) float32") for line in lines)
    assert lines[-1].endswith(": (M, N) float16")  # pre
    took = gated_several(f16, 8).cost((100, 64, 32))
    # x, residual and second; bias, shift and left
    assert took.read_bytes == 2 * (100 * 64 + 2 * 100 * 32 + 64 + 32 + 100)
    assert took.written_bytes == 2 * (100 * 64 + 2 * 100 * 32)


# Problems and operands


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_it_is_launched(name: str, kernel: str, without_gpu: None) -> None:
    function = FUNCTIONS[name]
    operation, given = make(function, kernel), drawn(function)
    arguments = launch(operation, function, given)
    check(function, given)
    other = drawn(function, seed=2)
    ports = {each: other[each] for written in (False, True) for each in names(function, written)}
    arguments.update(A=other["A"], B=other["B"], D=other["D"], epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    check(function, other)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_arrays_and_slices(name: str, without_gpu: None) -> None:
    function = FUNCTIONS[name]
    operation, given = make(function), drawn(function, batch=(3,))
    launch(operation, function, given, gemm_mode=_Mode.Batched, batch=3)
    check(function, given)
    listed = drawn(function, batch=(3,), seed=3)
    launch(operation, function, {key: list(each) for key, each in listed.items()}, gemm_mode=_Mode.Array, batch=3)
    check(function, listed)
    sliced = drawn(function, seed=4)
    launch(operation, function, sliced, split_k_slices=2)
    check(function, sliced)


@pytest.mark.parametrize("kernel", ["ampere", "hopper"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_groups(name: str, kernel: str, without_gpu: None) -> None:
    function, sizes = FUNCTIONS[name], [(40, 48, 32), (8, 16, 0), (24, 80, 16)]
    operation = GemmOperationGrouped(**KERNELS[kernel] | {"epilogue_functor": function(f16, 8)})
    problems = [drawn(function, size) for size in sizes]
    lists = {key: [each[key] for each in problems] for key in problems[0]}
    ports = {each: lists[each] for written in (False, True) for each in names(function, written)}
    arguments = GemmGroupedArguments(operation, sizes, lists["A"], lists["B"], None, lists["D"], epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    for each in problems:
        check(function, each)
    whole = [np.zeros((m, n), np.float16) for m, n, _ in sizes]
    with pytest.raises(ArgumentError, match=r"residual\[0\] .*\(40, 24\)"):
        arguments.update(epilogue={"residual": whole})


def test_a_residual_may_be_d_itself(without_gpu: None) -> None:
    operation, given = make(gated_several), drawn(gated_several)
    given["D"] = given["residual"]
    before = {key: each.copy() for key, each in given.items()}
    launch(operation, gated_several, given)
    check(gated_several, given, before)
    memory = np.zeros((M, N), np.float16)  # x is read before pairs, and has other columns than D
    with pytest.raises(ArgumentError, match="D overlaps x"):
        launch(operation, gated_several, given | {"x": memory, "D": memory[:, : N // 2]})
    with pytest.raises(ArgumentError, match="T overlaps residual"):
        launch(operation, gated_several, given | {"T": given["residual"], "D": np.zeros((M, N // 2), np.float16)})


def test_shapes_of_a_problem() -> None:
    operation = make(gated_reduced)
    shapes = {name: each.shape for name, each in operation.outputs((M, N, K)).items()}
    assert shapes == {
        "D": (M, N // 2),
        "row_most": (M,),
        "row_squares": (M,),
        "column_sum": (N // 2,),
        "most": (1,),
        "pre": (M, N),
    }
    batched = operation.outputs(GemmProblemSize(M, N, K, _Mode.Batched, batch=2))
    assert batched["pre"].shape == (2, M, N)
    assert batched["column_sum"].shape == (2, N // 2)
    whole = {"residual": TensorSpec((M, N), "float16")}
    assert f"({M}, {N // 2})" in operation.supports((M, N, K), whole).reason
    assert operation.supports((M, N, K), {"residual": TensorSpec((M, N // 2), "float16")})
    by_columns = make(gated_several, T=TensorDescription(f16, cutlass.ColumnMajor))
    assert by_columns.outputs((M, N, K))["T"].strides == (1, M)
    assert by_columns.outputs((M, N, K))["T"].shape == (M, N // 2)


def test_what_does_not_fit_is_named(without_gpu: None) -> None:
    operation, given = make(gated_several), drawn(gated_several)
    for name, wrong, error, said in (
        ("residual", np.zeros((M, N), np.float16), ArgumentError, rf"residual .*\({M}, {N // 2}\)"),
        ("x", np.zeros((M, N // 2), np.float16), ArgumentError, rf"x .*\({M}, {N}\)"),
        ("shift", np.zeros(N, np.float16), ArgumentError, "shift"),
        ("bias", np.zeros(N // 2, np.float16), ArgumentError, "bias"),
        ("pre", np.zeros((M, N // 2), np.float16), ArgumentError, rf"pre .*\({M}, {N}\)"),
        ("T", np.zeros((M, N), np.float16), ArgumentError, rf"T .*\({M}, {N // 2}\)"),
        ("second", np.zeros((M, N // 2 + 1), np.float16)[:, :-1], AlignmentError, "second"),
    ):
        with pytest.raises(error, match=said):
            launch(operation, gated_several, given | {name: wrong})


def test_tiles_are_of_the_columns_of_d() -> None:
    functor = gated_tiles(64, 64)(f16, 8)  # what a tile of 64 x 64 of the product has
    operation = GemmOperationUniversal(**KERNELS["ampere"] | {"epilogue_functor": functor})
    shapes = {name: each.shape for name, each in operation.outputs((M, 144, K)).items()}
    assert shapes["scales"] == (M * 3,)  # of 72 columns in tiles of 32
    assert shapes["column_greatest"] == (72,)
    with pytest.raises(DescriptionError, match=r"each tile of 64 columns, .* \[64, 64, 32\] has 32 of pairs: make"):
        GemmOperationUniversal(**KERNELS["ampere"] | {"epilogue_functor": gated_tiles(64, 128)(f16, 8)})


def test_a_tree_has_tensors_beside_pairs(without_gpu: None) -> None:
    class Gated(pycutlass.EpilogueVisitTree):
        def __call__(self, accum: "tensor", bias: "row", c: "tensor") -> Any:  # type: ignore # noqa
            T = accum + bias
            gate, up = pairs(T)
            D = gate * up + c
            return D, T

    described = parts("f16")
    tree = Gated(None, described["tile_description"], f32, 8, f32, f16)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": tree})
    given = drawn(gated)
    c, T = np.ones((M, N // 2), np.float16), np.zeros((M, N), np.float16)
    scalars = operation.epilogue_type(bias=given["bias"], c=c, T=T, D=given["D"])
    arguments = GemmArguments(operation, (M, N, K), given["A"], given["B"], output_op=scalars)
    operation.run(arguments)
    arguments.sync()
    sums = given["A"].astype(float) @ given["B"].astype(float) + given["bias"]
    np.testing.assert_array_equal(T, sums)
    np.testing.assert_array_equal(given["D"], (sums[:, ::2] * sums[:, 1::2] + 1).astype(np.float16))


@pycutlass.epilogue_function
def quantized_expert(accum: Any, bias: Row, inverse: Scalar = 1.0) -> Any:
    gate, up = pairs(accum)
    t = silu(gate) * up + bias
    return {"D": t, "q": t * inverse, "largest": epilogue.absmax(t, axis=1)}


BUILT, KINDS = ("ampere", "pingpong", "cooperative"), (GemmOperationUniversal, GemmOperationGrouped)


@pytest.mark.compile
@pytest.mark.usefixtures("quick_host_sides")  # test_gated_functions.py has headers as they are
@pytest.mark.parametrize(
    ("function", "kernel", "kind"),
    thorough_but(
        [(gated_reduced, "ampere", GemmOperationUniversal), (quantized_expert, "pingpong", GemmOperationGrouped)],
        itertools.product((gated_several, gated_reduced, quantized_expert), BUILT, KINDS),
    ),
    ids=lambda each: each if isinstance(each, str) else getattr(each, "name", None) or each.__name__,
)
def test_it_builds(function: Any, kernel: str, kind: Any) -> None:
    described = parts("f16")
    if kernel != "ampere":
        tile = (64 if kernel == "pingpong" else 128, 128, 64)
        described = native_parts(tile=tile, schedule=KernelSchedule[kernel.capitalize()])
    types = {"q": cutlass.float_e4m3} if function is quantized_expert else {}
    operation = kind(**described | {"epilogue_functor": function(f16, 8, **types)})
    pycutlass.compiler.add_module([operation])
    (artifact,) = operation.artifacts.values()
    assert artifact.report["stack_bytes"] == 0
