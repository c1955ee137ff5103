"""Launches of Hopper-native GEMMs whose sums are exact."""

from __future__ import annotations

from typing import Any

import torch

from pycutlass import GemmArguments, GemmOperationUniversal, cutlass

__all__ = ["TORCH", "drawn", "integers", "launch", "matrix"]

TORCH = {
    **{"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "tf32": torch.float32},
    **{"s8": torch.int8, "u8": torch.uint8, "s32": torch.int32, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2},
}


def matrix(description: Any, values: torch.Tensor) -> torch.Tensor:
    """Return a matrix in its layout, with room behind each line."""
    lines = values if description.is_row_major else values.mT
    memory = torch.zeros((*lines.shape[:-1], lines.shape[-1] + 16), device="cuda").to(TORCH[description.type.short])
    inside = memory[..., : lines.shape[-1]]
    inside.copy_(lines)
    return inside if description.is_row_major else inside.mT


def integers(*shape: int, most: int = 1) -> torch.Tensor:
    return torch.randint(-most, most + 1, shape, device="cuda").double()


def drawn(description: Any, *shape: int, most: int = 1) -> torch.Tensor:
    """Return integers that an operand can hold."""
    values = integers(*shape, most=most)
    return values.abs() if description.type.short == "u8" else values


def launch(operation: GemmOperationUniversal, size: tuple[int, int, int], batch: int | None, **options: Any) -> None:
    """Launch with poisoned memory, and compare every element with what it must be."""
    (m, n, k), before = size, () if batch is None else (batch,)
    a, b = drawn(operation.A, *before, m, k), drawn(operation.B, *before, k, n)
    c = drawn(operation.C, *before, m, n, most=2)
    is_function = operation.epilogue_functor.is_tree
    poison = torch.full((*before, m, n), 99.0, device="cuda")
    D = matrix(operation.D, poison)
    if is_function:
        bias = integers(n, most=2)
        given = {"epilogue": {"bias": bias.to(TORCH[operation.epilogue_functor.ports[0].type.short])}}
        exact, C, output_op = (a @ b + bias).relu(), None, None
    else:
        given, C = {}, matrix(operation.C, c)
        exact, output_op = a @ b - c, operation.epilogue_type(1.0, -1.0)
        if operation.epilogue_functor.activation is not None:
            exact = exact.relu()
    if batch is not None:
        options |= {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": batch}
    arguments = GemmArguments(
        *(operation, size, matrix(operation.A, a), matrix(operation.B, b), C, D),
        output_op=output_op,
        **given,
        **options,
    )
    operation.run(arguments)
    arguments.sync()
    low, high = operation.D.type.limits
    assert torch.equal(D.double(), exact.clamp(low, high).to(TORCH[operation.D.type.short]).double())
