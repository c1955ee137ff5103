"""Kernels that convert one operand in registers: a float of 16 bits by an integer of 8 bits, against float64.

Operands are such that sums are exact in the accumulator's type: results are what is exact, rounded once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from descriptions import COLUMN, ROW, TAG, mixed_parts

import pycutlass
import pycutlass.pytorch
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    TensorDescription,
    cutlass,
)
from pycutlass.plan.launches import Launch
from pycutlass.plan.upcast import is_faster_converted
from pycutlass.tensor import wrap

Mode = cutlass.gemm.Mode
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "s8": torch.int8, "u8": torch.uint8}
#: What sums are multiplied by, so that those of all of int8 fit into float16.
SCALE = 1 / 64
PAIRS = [pair for wide in ("f16", "bf16") for narrow in ("s8", "u8") for pair in ((wide, narrow), (narrow, wide))]
#: Layouts of A, B and D: the integer lies along K.
KERNELS = {
    f"{a} x {b} {'tn'[la is COLUMN]}{'tn'[lb is COLUMN]}{'tn'[ld is COLUMN]}": GemmOperationUniversal(
        **mixed_parts(a, b, (la, lb, ld), tile=(64, 64, 64))
    )
    for (a, b), la, lb, ld in itertools.product(PAIRS, (ROW, COLUMN), (ROW, COLUMN), (ROW, COLUMN))
    if (la is ROW if a in ("s8", "u8") else lb is COLUMN)
}
SUMMED_IN_F16 = [
    GemmOperationUniversal(**mixed_parts(a, b, types=(a, "f16", "f16"), tile=(64, 64, 32)))
    for a, b in PAIRS
    if "bf16" not in (a, b)
]
FOUR_BYTES = mixed_parts("f16", "s8", tile=(64, 64, 32))
NARROW = GemmOperationUniversal(
    **FOUR_BYTES
    | {"A": TensorDescription(TAG["f16"], ROW, 2), "B": TensorDescription(TAG["s8"], COLUMN, 4)}
    | {
        "C": TensorDescription(TAG["f16"], ROW, 1),
        "epilogue_functor": pycutlass.LinearCombination(TAG["f16"], 1, TAG["f32"], TAG["f32"]),
    }
)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    pycutlass.compiler.add_module([*KERNELS.values(), *SUMMED_IN_F16, NARROW])


def values(description: Any, *shape: int, most: int | None = None) -> Any:
    """Return whole numbers in the type and layout of an operand, whose lines are longer than its extents."""
    dtype = DTYPES[description.type.short]
    limits = {"s8": (-128, 128), "u8": (0, 256)}.get(description.type.short, (-8, 9))
    if most is not None:
        limits = (0 if description.type.short == "u8" else -most, most + 1)
    *batch, rows, columns = shape
    lines = (rows, columns + 16) if description.is_row_major else (columns, rows + 16)
    whole = torch.randint(*limits, (*batch, *lines), device="cuda").to(dtype)
    return whole[..., :columns] if description.is_row_major else whole[..., :rows].mT


def poisoned(operation: Any, *shape: int) -> tuple[Any, Any]:
    """Return a D of NaN, and what lies around it as well."""
    *batch, m, n = shape
    by_rows = operation.C.is_row_major
    lines = (m, n + 16) if by_rows else (n, m + 16)
    whole = torch.full((*batch, *lines), float("nan"), device="cuda", dtype=DTYPES[operation.C.type.short])
    return (whole[..., :n] if by_rows else whole[..., :m].mT), (whole[..., n:] if by_rows else whole[..., m:])


def check(operation: Any, size: tuple[int, int, int], most: int | None = None, **how: Any) -> None:
    """Run a kernel and compare all of D, and what lies around it."""
    m, n, k = size
    batch = (how["batch"],) if "batch" in how else ()
    A, B = values(operation.A, *batch, m, k, most=most), values(operation.B, *batch, k, n, most=most)
    D, around = poisoned(operation, *batch, m, n)
    alpha = SCALE if most is None else 1.0
    given: Any = (A, B, None, D)
    if how.get("gemm_mode") is Mode.Array:
        given = (list(A), list(B), None, list(D))
    arguments = GemmArguments(operation, size, *given, output_op=operation.epilogue_type(alpha, 0.0), **how)
    operation.run(arguments)
    arguments.sync()
    assert D.equal((alpha * (A.double() @ B.double())).to(D.dtype))
    assert around.isnan().all()


@pytest.mark.parametrize("size", [(8, 8, 16), (72, 200, 336), (264, 56, 1040)], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_every_pair_of_types_in_every_layout(name: str, size: tuple[int, int, int]) -> None:
    check(KERNELS[name], size)


@pytest.mark.parametrize("operation", SUMMED_IN_F16, ids=lambda each: f"{each.A.type.short} x {each.B.type.short}")
def test_sums_in_float16(operation: GemmOperationUniversal) -> None:
    check(operation, (72, 200, 336), most=2)


@pytest.mark.parametrize("size", [(1, 1, 4), (77, 33, 52), (129, 65, 340)], ids=str)
def test_lines_of_four_bytes(size: tuple[int, int, int]) -> None:
    check(NARROW, size)


@pytest.mark.parametrize("mode", [Mode.Batched, Mode.Array], ids=str)
@pytest.mark.parametrize("name", ["f16 x s8 tnt", "u8 x bf16 ttn"])
def test_batches(name: str, mode: Any) -> None:
    check(KERNELS[name], (72, 200, 336), batch=5, gemm_mode=mode)


@pytest.mark.parametrize("slices", [2, 3, 5])
@pytest.mark.parametrize("name", ["f16 x s8 tnt", "u8 x f16 ttt", "bf16 x s8 nnt"])
def test_slices_of_k(name: str, slices: int) -> None:
    """Each slice leaves its sum in the type of D."""
    check(KERNELS[name], (72, 200, 336), most=2, split_k_slices=slices)


@pytest.mark.parametrize("narrow", ["s8", "u8"])
@pytest.mark.parametrize("wide", ["f16", "bf16"])
def test_every_integer_is_exact(wide: str, narrow: str) -> None:
    first = 0 if narrow == "u8" else -128
    weights = torch.arange(first, first + 256, device="cuda").to(DTYPES[narrow])[None].expand(64, 256).contiguous()
    one = torch.eye(256, device="cuda", dtype=DTYPES[wide])
    for made in (pycutlass.matmul(one, weights.T), pycutlass.matmul(weights, one).T):
        assert made.dtype is one.dtype and made.double().equal(weights.T.double())


def some_of(candidates: Any) -> list[Any]:
    """Return a few candidates of each way to divide the work: tiles, stream-K, and slices of either way."""
    kinds: dict[Any, list[Any]] = {}
    for each in candidates:
        candidate = each.candidate
        way = candidate.is_stream_k, candidate.is_parallel, candidate.split_k_slices > 1
        kinds.setdefault(way, []).append(candidate)
    return [candidate for found in kinds.values() for candidate in found[:: max(1, len(found) // 4)][:4]]


@pytest.mark.parametrize("operands", ["f16 x s8", "u8 x bf16"])
def test_candidates_of_a_plan(operands: str) -> None:
    m, n, k = 200, 264, 1040
    a, b = operands.split(" x ")
    row, column = (TensorDescription(TAG[each], lies, 8) for each, lies in ((a, ROW), (b, COLUMN)))
    A, B = values(row, m, k, most=2), values(column, k, n, most=2)
    plan = pycutlass.Gemm(A, B)
    found = some_of(plan.candidates())
    assert len(found) > 8
    pycutlass.compiler.add_module({kernel: None for each in found for kernel in each.kernels})
    wanted = (A.double() @ B.double()).to(DTYPES["f16" if "f16" == a else "bf16"])
    for candidate in found:
        D = torch.full((m, n), float("nan"), device="cuda", dtype=wanted.dtype)
        Launch(candidate, candidate.size(m, n, k), (A, B, None, D), {"alpha": 1.0, "beta": 0.0}, {}).run(None)
        assert D.equal(wanted), candidate.name


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5)], ids=str)
@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16], ids=str)
def test_a_quantised_linear_layer_in_one_line(shape: tuple[int, ...], wide: Any) -> None:
    """Weights of int8 with a scale for each row, a bias and an activation: one kernel."""
    x = torch.randn(*shape, 136, device="cuda").to(wide)
    w = torch.randint(-128, 128, (72, 136), device="cuda").to(torch.int8)
    scales, bias = torch.rand(72, device="cuda") / 64, torch.randn(72, device="cuda").to(wide)
    made = pycutlass.linear(x, w, bias, pycutlass.gelu, scales=(1.0, scales))
    exact = torch.nn.functional.gelu(x.double() @ w.double().T * scales.double() + bias.double())
    assert made.dtype is wide and made.shape == exact.shape
    tolerance = 2.0**-7 if wide is torch.bfloat16 else 2.0**-10
    torch.testing.assert_close(made.double(), exact, rtol=tolerance, atol=2e-3)


def casts(call: Callable[[], Any]) -> bool:
    """Return whether a kernel of torch casts something in a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen:
        call()
        torch.cuda.synchronize()
    names = [each.key for each in seen.key_averages()]
    assert any("cutlass" in name for name in names), names
    return any("elementwise" in name for name in names)


def test_the_operator_of_torch_casts_nothing_for_few_rows() -> None:
    """Of many rows a cast and a Hopper-native kernel are faster on such a GPU; the numbers are the same."""
    weight = torch.randint(-128, 128, (4096, 1024), device="cuda").to(torch.int8)
    scale = torch.rand(4096, device="cuda") / 64
    operator = torch.ops.pycutlass.mixed_mm
    for rows in (1, 16, 4096):
        a = torch.randn(rows, 1024, device="cuda").half()
        is_one = is_faster_converted(wrap("a", a), wrap("b", weight.T))
        assert is_one or rows > 16
        made = operator(a, weight.T, scale)
        assert casts(functools.partial(operator, a, weight.T, scale)) is not is_one
        exact = a.double() @ weight.T.double() * scale.double()
        torch.testing.assert_close(made.double(), exact, rtol=2e-3, atol=2e-2)
        assert not is_faster_converted(wrap("a", a), wrap("b", weight.T.contiguous()))
        torch.testing.assert_close(operator(a, weight.T.contiguous(), scale), made, rtol=2e-3, atol=2e-2)


def test_a_captured_graph() -> None:
    a, weight = torch.randn(16, 256, device="cuda").half(), torch.randint(-9, 9, (64, 256), device="cuda").char()
    operator = torch.ops.pycutlass.mixed_mm
    operator(a, weight.T)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = operator(a, weight.T)
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.testing.assert_close(made.double(), a.double() @ weight.T.double(), rtol=2e-3, atol=1e-1)
