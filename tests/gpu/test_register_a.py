"""Hopper-native kernels with A in registers: whole ranges of numbers, any K, and what lies beside the operands."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from descriptions import COLUMN, ROW
from hopper_classes import CLASSES, described

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal, cutlass
from pycutlass.families.sm90_register_a import loads_a

TORCH = {
    **{"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "tf32": torch.float32},
    **{"s8": torch.int8, "u8": torch.uint8, "s32": torch.int32},
    **{"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2},
}
#: What no sum may reach: integers whose products are exact in the sums of each type.
MOST = {"tf32": 31, "s8": 128, "u8": 255, "e4m3": 2, "e5m2": 2}
NAMES = [
    name
    for name, operation in CLASSES.items()
    if loads_a(operation.family.parts_of(operation).A, operation.family.parts_of(operation).B)
]
#: By rows and by columns, of f32 for which nothing is rounded behind the sums.
TF32 = {
    layouts: described("tf32", layouts=layouts)
    for layouts in ((ROW, COLUMN), (ROW, ROW), (COLUMN, ROW), (COLUMN, COLUMN))
}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    pycutlass.compiler.add_module([*(CLASSES[name] for name in NAMES), *TF32.values()])


def integers(kind: str, *shape: int) -> torch.Tensor:
    """Return numbers of the whole range that a type has here."""
    most = MOST[kind]
    low = 0 if kind == "u8" else -most
    return torch.randint(low, most + (kind != "s8"), shape, device="cuda").double()


def matrix(description: Any, values: torch.Tensor, beside: float) -> torch.Tensor:
    """Return a matrix in its layout with 16 elements of something else behind each line, and some lines of that."""
    lines = values if description.is_row_major else values.mT
    *before, count, length = lines.shape
    memory = torch.full((*before, count + 3, length + 16), beside, device="cuda").to(TORCH[description.type.short])
    memory[..., :count, :length].copy_(lines)
    inside = memory[..., :count, :length]
    return inside if description.is_row_major else inside.mT


def fitting(operation: GemmOperationUniversal, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Return the size, each extent rounded up to what the alignments of operands ask for, and K as it is elsewhere."""
    A, B, C, D = operation.A, operation.B, operation.C, operation.D
    rows = math.lcm(1, *(each.alignment for each in (A, C, D) if not each.is_row_major))
    columns = math.lcm(1, *(each.alignment for each in (B, C, D) if each.is_row_major))
    depth = math.lcm(A.alignment if A.is_row_major else 1, 1 if B.is_row_major else B.alignment)
    rounded = (-(-extent // step) * step for extent, step in zip((m, n, k), (rows, columns, depth), strict=True))
    m, n, k = rounded
    return m, n, k


def launch(operation: GemmOperationUniversal, size: tuple[int, int, int], batch: int | None) -> None:
    """Launch into poisoned memory; compare every element, and what is beside D, with what it must be."""
    (m, n, k), before = size, () if batch is None else (batch,)
    is_function, D = operation.epilogue_functor.is_tree, operation.D
    a, b = integers(operation.A.type.short, *before, m, k), integers(operation.B.type.short, *before, k, n)
    exact, given = a @ b, {}
    if is_function:
        bias = torch.randint(-9, 10, (n,), device="cuda").double()
        given["epilogue"] = {"bias": bias.to(TORCH[operation.epilogue_functor.ports[0].type.short])}
        exact = (exact + bias).relu()
    if D.type.bits == 8 or D.type.is_integer:  # other types have infinities
        exact = exact.clamp(*D.type.limits)
    beside = math.nan if operation.A.type.short == "tf32" else 77.0
    A, B = matrix(operation.A, a, beside), matrix(operation.B, b, beside)
    result = matrix(D, torch.full((*before, m, n), 99.0, device="cuda"), 48.0)
    options: Any = {} if batch is None else {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": batch}
    arguments = GemmArguments(operation, size, A, B, None, result, **given, **options)
    operation.run(arguments)
    arguments.sync()
    assert torch.equal(result.double(), exact.to(TORCH[D.type.short]).double())
    lines = result if D.is_row_major else result.mT
    behind = torch.as_strided(lines, (*lines.shape[:-1], 16), lines.stride(), lines.storage_offset() + lines.shape[-1])
    assert torch.all(behind.double() == 48.0)


@pytest.mark.parametrize("size", [(1, 1, 1), (130, 70, 37), (300, 260, 129), (520, 400, 515)])
@pytest.mark.parametrize("name", NAMES)
def test_every_element_is_exact_for_any_k(name: str, size: tuple[int, int, int]) -> None:
    launch(CLASSES[name], fitting(CLASSES[name], *size), None)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_exact(name: str) -> None:
    launch(CLASSES[name], fitting(CLASSES[name], 200, 150, 333), 3)


@pytest.mark.parametrize("name", [name for name in NAMES if CLASSES[name].A.type.short != "tf32"])
def test_each_byte_of_b_arrives_where_it_belongs(name: str) -> None:
    """A selects one row of B for each row of D, of bytes of which no two neighbours are alike."""
    operation = CLASSES[name]
    m, n, k = fitting(operation, 256, 272, 256)
    chosen = torch.randperm(k, device="cuda")[torch.arange(m, device="cuda") % k]
    a = torch.nn.functional.one_hot(chosen, k).double()
    number = torch.arange(k, device="cuda")[:, None] * 5 + torch.arange(n, device="cuda") * 3
    b = (number % (127 if operation.B.type.is_integer else 8)).double()
    result = matrix(operation.D, torch.full((m, n), 99.0, device="cuda"), 48.0)
    arguments = GemmArguments(
        operation, (m, n, k), matrix(operation.A, a, 1.0), matrix(operation.B, b, 1.0), None, result
    )
    operation.run(arguments)
    arguments.sync()
    assert torch.equal(result.double(), b[chosen].to(TORCH[operation.D.type.short]).double())


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Return f32 rounded to the 10 bits of tf32, to nearest, whatever becomes of ties, which are left out."""
    bits = values.view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("layouts", TF32, ids=str)
def test_tma_rounds_both_operands_however_they_lie(layouts: Any) -> None:
    """Products with the identity are operands as they are multiplied: to nearest, and not cut off."""
    operation, size = TF32[layouts], 256
    values = torch.randn(size, size, device="cuda")
    values = torch.where((values.view(torch.int32) & 0x1FFF) == 0x1000, 1.0, values)  # no ties
    identity = torch.eye(size, device="cuda")
    assert not torch.equal(rounded(values), (values.view(torch.int32) & ~0x1FFF).view(torch.float32))
    for a, b in ((values, identity), (identity, values)):
        result = matrix(operation.D, torch.full((size, size), 99.0, device="cuda"), 48.0)
        A, B = matrix(operation.A, a.double(), 1.0), matrix(operation.B, b.double(), 1.0)
        arguments = GemmArguments(operation, (size, size, size), A, B, None, result)
        operation.run(arguments)
        arguments.sync()
        assert torch.equal(result, rounded(values))
