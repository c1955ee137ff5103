"""The operator for products of operands of 8 bits with scales. It has no gradient, as torch's own has none."""

from __future__ import annotations

from typing import Any

import torch

from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.plan.matmul import matmul
from pycutlass.pytorch.operators import define, plain, without_gradient
from pycutlass.pytorch.shapes import (
    check_bias,
    check_equal_types,
    product_shape,
    result_dtype,
)
from pycutlass.pytorch.variants import define_out

__all__ = ["SCALED_MM", "scaled_dtype"]

Tensor = torch.Tensor


def _scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Any:
    _check_operands(mat_a, mat_b)
    scales, out_dtype = (plain(scale_a), plain(scale_b)), scaled_dtype(mat_a, out_dtype)
    options = {"bias": plain(bias), "scales": scales, "out": out, "out_dtype": out_dtype, "allow_copy": True}
    return matmul(*_with_whole_lines(plain(mat_a), plain(mat_b)), **options)


def _fake(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    _check_operands(mat_a, mat_b)
    check_equal_types(mat_a, mat_b, ("mat_a", "mat_b"))
    shape = product_shape(mat_a, mat_b, ("mat_a", "mat_b"))
    _check_scale("scale_a", "row of mat_a", scale_a, shape[:-1], -1)
    _check_scale("scale_b", "column of mat_b", scale_b, (*shape[:-2], shape[-1]), -2)
    check_bias(bias, shape[-1], scaled_dtype(mat_a, out_dtype))
    return mat_a.new_empty(shape, dtype=scaled_dtype(mat_a, out_dtype))


def _with_whole_lines(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return operands of which a single row, or column, has adjacent elements: no other one says how they lie."""
    if a.shape[-2] == 1 and a.stride(-1) != 1:
        a = a.contiguous()
    if b.shape[-1] == 1 and b.stride(-2) != 1:
        b = b.mT.contiguous().mT
    return a, b


def _check_operands(mat_a: Tensor, mat_b: Tensor) -> None:
    """Raise ArgumentError unless operands have 8 bits, and are matrices, or stacks of as many."""
    wide = next((each for each in (mat_a, mat_b) if each.dtype.itemsize > 1), None)
    if wide is not None:
        raise ArgumentTypeError(
            f"mat_a and mat_b must be of 8 bits, such as torch.float8_e4m3fn or torch.int8, got {mat_a.dtype} and "
            f"{mat_b.dtype}: convert them, or call torch.ops.pycutlass.matmul, and multiply its result by the scales"
        )
    shapes = tuple(mat_a.shape), tuple(mat_b.shape)
    if tuple(map(len, shapes)) in ((2, 2), (3, 3)) and shapes[0][:-2] == shapes[1][:-2]:
        return
    raise ArgumentError(
        f"mat_a and mat_b must be matrices, or stacks of as many matrices, got shapes {shapes[0]} and {shapes[1]}"
    )


def _check_scale(name: str, what: str, scale: Tensor, lines: tuple[Any, ...], axis: int) -> None:
    """Raise ArgumentError unless a scale is one number, or has one for each line, of all matrices or of each.

    `axis` is where the result has one extent more.
    """
    shape, extent = tuple(scale.shape), lines[-1]
    ends = (extent,), ((1, extent) if axis == -2 else (extent, 1))
    allowed = [(*batch, *end) for batch in ((), lines[:-1])[: len(lines)] for end in ends]
    if scale.numel() != 1 and shape not in allowed:
        listed = " or ".join(map(str, allowed))
        raise ArgumentError(f"{name} must be one number, or one for each {what}, of shape {listed}; got {shape}")
    if scale.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ArgumentError(f"{name} must be of float32, float16 or bfloat16, got {scale.dtype}: convert it")


def scaled_dtype(mat_a: Tensor, out_dtype: torch.dtype | None) -> torch.dtype:
    """Return the type of the result: scales are fractions, and so is a scaled product of integers."""
    if out_dtype is None and not mat_a.dtype.is_floating_point:
        out_dtype = torch.float32
    return result_dtype("mat_a", mat_a.dtype, out_dtype)


SCALED_MM = define(
    "scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, *, Tensor? bias=None, "
    "ScalarType? out_dtype=None) -> Tensor",
    _scaled_mm,
    _fake,
    repeats=True,
)
define_out(SCALED_MM, _scaled_mm, _fake)
without_gradient(SCALED_MM)
