"""The operator of groups with any epilogue function: what it computes, what it refuses, and what torch makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch_operators import ops, passes_opcheck

from pycutlass import epilogue, epilogue_function
from pycutlass.epilogue import Column, PerBatch, Row, Scalar, Source, Tensor, fusions, silu
from pycutlass.errors import ArgumentError, ArgumentTypeError, PyCutlassError
from pycutlass.pytorch import epilogue_handle

ENDS = [5, 5, 18]  # the second group is empty, and the last two rows belong to none
GROUPS = [0] * 5 + [2] * 13


@epilogue_function
def several(
    accum: Any, up: Tensor, bias: Row, share: Column, number: PerBatch, before: Source, factor: Scalar = 1.0
) -> Any:
    gated = silu(accum) * up
    return {"D": ((gated + bias) * share * number + before) * factor, "inner": gated}


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def given(dtype: torch.dtype = torch.float32, ends: Any = ENDS, offs: torch.dtype = torch.int32) -> tuple[Any, ...]:
    """Return operands, and the tensors of `several`."""
    beside = [drawn(20, 24, dtype=dtype), drawn(3, 24), drawn(20), drawn(3), drawn(20, 24, dtype=dtype)]
    return drawn(20, 16, dtype=dtype), drawn(3, 16, 24, dtype=dtype), torch.tensor(ends, dtype=offs), beside


def exact(a: Any, b: Any, tensors: Any, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return results of rows that belong to groups, in float64."""
    a, b, (up, bias, share, number, before) = a.double(), b.double(), [each.double() for each in tensors]
    sums = torch.cat([a[:5] @ b[0], a[5:18] @ b[2]])
    gated = functional.silu(sums) * up[:18]
    bias, number = bias.expand(3, 24)[GROUPS], number.expand(3)[GROUPS, None]
    return ((gated + bias) * share[:18, None] * number + before[:18]) * factor, gated


@pytest.mark.parametrize("offs", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_everything_beside_a_group(dtype: torch.dtype, offs: torch.dtype) -> None:
    a, b, ends, tensors = given(dtype, offs=offs)
    handle = epilogue_handle(several)
    made = ops.fused_grouped_mm(a, b, ends, handle, tensors, [0.5])
    tolerance = 1e-4 if dtype is torch.float32 else 4e-2
    for got, expected in zip(made, exact(a, b, tensors, 0.5), strict=True):
        assert got.dtype is dtype
        torch.testing.assert_close(got[:18].double(), expected, rtol=tolerance, atol=tolerance)
        assert not got[18:].any()
    assert passes_opcheck(ops.fused_grouped_mm.default, a, b, ends, handle, tensors, [0.5])


def test_what_all_groups_have_in_common() -> None:
    a, b, ends, (up, bias, share, number, before) = given()
    tensors = [up, bias[1], share, number[:1], before]
    D, inner = ops.fused_grouped_mm(a, b.mT.contiguous().mT, ends, epilogue_handle(several), tensors)
    for got, expected in zip((D, inner), exact(a, b, tensors, 1.0), strict=True):
        torch.testing.assert_close(got[:18].double(), expected, rtol=1e-4, atol=1e-4)


def test_rows_behind_the_last_group_may_be_left_as_memory_was(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, ends, tensors = given()
    made = torch.Tensor.new_empty

    def poisoned(self: Any, *shape: Any, **how: Any) -> Any:
        return made(self, *shape, **how).fill_(7.0)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    results = ops.fused_grouped_mm(a, b, ends, epilogue_handle(several), tensors, fill=False)
    for got, expected in zip(results, exact(a, b, tensors, 1.0), strict=True):
        torch.testing.assert_close(got[:18].double(), expected, rtol=1e-4, atol=1e-4)
        assert (got[18:] == 7.0).all()


@pytest.mark.parametrize("name", ["relu", "silu", "gelu"])
def test_activations_by_name(name: str) -> None:
    a, b, ends, _ = given()
    (got,) = ops.fused_grouped_mm(a, b, ends, name, [])
    sums = torch.cat([a[:5] @ b[0], a[5:18] @ b[2]])
    torch.testing.assert_close(got[:18], getattr(functional, name)(sums), rtol=1e-4, atol=1e-4)


def test_pairs_of_columns() -> None:
    a, b, ends, _ = given(torch.float16)
    (got,) = ops.fused_grouped_mm(a, b, ends, epilogue_handle(fusions.swiglu), [])
    sums = torch.cat([a[:5] @ b[0], a[5:18] @ b[2]]).float()
    torch.testing.assert_close(got[:18].float(), functional.silu(sums[:, ::2]) * sums[:, 1::2], rtol=1e-2, atol=1e-2)
    with pytest.raises(ArgumentError, match="combines pairs of columns"):
        ops.fused_grouped_mm(*given()[:3], epilogue_handle(fusions.swiglu), [])


@pytest.mark.parametrize(("rows", "columns", "groups"), [(0, 8, 2), (4, 0, 2), (4, 8, 0)])
def test_nothing_to_do(rows: int, columns: int, groups: int) -> None:
    offs = torch.full((groups,), rows, dtype=torch.int32)
    (got,) = ops.fused_grouped_mm(torch.ones(rows, 4), torch.ones(groups, 4, columns), offs, "relu", [])
    assert got.shape == (rows, columns) and not got.any()


def test_autocast_casts_operands_and_what_is_added() -> None:
    a, b, ends, tensors = given()
    plain = ops.fused_grouped_mm(a, b, ends, epilogue_handle(several), tensors)
    with torch.autocast("cpu", torch.bfloat16):
        made = ops.fused_grouped_mm(a, b, ends, epilogue_handle(several), tensors)
    for got, expected in zip(made, plain, strict=True):
        assert got.dtype is torch.bfloat16
        torch.testing.assert_close(got.float(), expected, rtol=0.1, atol=0.1)


def test_a_batch_is_computed_one_by_one() -> None:
    a, b, ends, tensors = given()
    stack, handle = torch.stack([a, 2 * a]), epilogue_handle(several)
    made = torch.vmap(lambda each: ops.fused_grouped_mm(each, b, ends, handle, tensors))(stack)
    for number, each in enumerate(stack):
        for got, expected in zip(made, ops.fused_grouped_mm(each, b, ends, handle, tensors), strict=True):
            torch.testing.assert_close(got[number], expected)


def test_in_graphs_with_any_number_of_rows() -> None:
    _, b, ends, _ = given()

    def function(a: Any) -> Any:
        return ops.fused_grouped_mm(a, b, ends, "relu", [])[0] + 1

    compiled = torch.compile(function, backend="eager", dynamic=True, fullgraph=True)
    for rows in (18, 20, 33):
        torch.testing.assert_close(compiled(drawn(rows, 16)), function(drawn(rows, 16)))


@epilogue_function
def summed(accum: Any) -> Any:
    return {"D": accum, "total": epilogue.sum(accum, axis=1)}


A, B, OFFS, BESIDE = given()
HANDLE = epilogue_handle(several)
REFUSED: dict[str, tuple[Any, ...]] = {
    r"mat_a must be of \(rows, K\), mat_b of \(groups, K, N\)": (A, B[0], OFFS, HANDLE, BESIDE),
    r"and offs of \(groups,\)": (A, B, OFFS[None], HANDLE, BESIDE),
    "offs must be of int32": (A, B, OFFS.float(), HANDLE, BESIDE),
    "different K: 15 columns of mat_a and 16 rows of mat_b": (A[:, :15], B, OFFS, HANDLE, BESIDE),
    "is of 3 groups, and offs has the ends of 2": (A, B, OFFS[:2], HANDLE, BESIDE),
    "mat_a is float32 and mat_b is float16|mat_a .*float32.*mat_b .*float16": (A, B.half(), OFFS, HANDLE, BESIDE),
    "makes total of many elements": (A, B, OFFS, epilogue_handle(summed), []),
    "reads 5 tensors, up, bias, share, number, before, and 4 are given": (A, B, OFFS, HANDLE, BESIDE[:4]),
    r"bias of the epilogue, must be of \(24,\) or \(3, 24\)": (A, B, OFFS, HANDLE, [BESIDE[0], A, *BESIDE[2:]]),
    r"before of the epilogue, must be of \(20, 24\)": (A, B, OFFS, HANDLE, [*BESIDE[:4], BESIDE[1][0]]),
    "offs .*decrease": (A, B, OFFS.flip(0), HANDLE, BESIDE),
    "the epilogue has 1 scalar, factor .by default 1., and 2 are given": (A, B, OFFS, HANDLE, BESIDE, [1.0, 2.0]),
    "mat_b requires a gradient, and pycutlass.fused_grouped_mm.default has none": (
        *(A, B.clone().requires_grad_(), OFFS, HANDLE, BESIDE),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(PyCutlassError, match=message):
        ops.fused_grouped_mm(*REFUSED[message])


def test_handles_that_are_none() -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="epilogue must be the name of an activation"):
        ops.fused_grouped_mm(A, B, OFFS, "rely", [])
