"""What ``torch.vmap`` makes of operators with tensors by name: longer groups, more of them, or a batch with its scales.

``torch.library.register_vmap`` takes no operator whose keyword arguments are tensors. So the rules here are for calls
that have all arguments by position, and are registered as that function registers others.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch._functorch.autograd_function import custom_function_call_vmap_helper
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from pycutlass.pytorch.casting import as_autocast_has_it
from pycutlass.pytorch.fused_batching import described, elements, leading
from pycutlass.pytorch.groups import GROUPED_MM
from pycutlass.pytorch.operators import library
from pycutlass.pytorch.scaled import SCALED_MM, scaled_dtype

__all__ = ["register_named_batches"]

Tensor = torch.Tensor


def _grouped(mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    return GROUPED_MM(mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype)


def _grouped_mm(info: Any, axes: Any, *args: Any) -> tuple[Any, int]:
    given = tuple(as_autocast_has_it(leading(*each)) for each in zip(args, axes, strict=True))
    _grouped(*described(axes, given))
    of_a, of_b, of_offs, of_bias = (axis is not None for axis in axes[:4])
    if not of_offs and of_a and not of_b and not of_bias:
        return _more_rows(info.batch_size, *given)
    if not of_offs and of_b and not of_a:
        return _more_columns(info.batch_size, of_bias, *given)
    if given[2] is None:
        return _more_groups(info.batch_size, axes, *given)
    return torch.stack([_grouped(*each) for each in elements(info.batch_size, axes, given)]), 0


def _more_rows(count: int, mat_a: Tensor, mat_b: Tensor, offs: Any, bias: Any, out_dtype: Any) -> tuple[Tensor, int]:
    """Return products by the same right operands: those of all of the batch are rows of one."""
    extent = mat_a.shape[-2]
    if mat_a.dim() == 3 and mat_b.dim() == 3:  # rows are divided into groups, and each keeps its own
        made = _grouped(mat_a.movedim(0, 1).flatten(0, 1), mat_b, offs * count, bias, out_dtype)
        return made.unflatten(0, (extent, count)), 1
    made = _grouped(mat_a.movedim(0, -3).flatten(-3, -2), mat_b, offs, bias, out_dtype)
    return made.unflatten(-2, (count, extent)), made.dim() - 2


def _more_columns(
    count: int, of_bias: bool, mat_a: Tensor, mat_b: Tensor, offs: Any, bias: Any, out_dtype: Any
) -> tuple[Tensor, int]:
    """Return products by the same left operands: those of all of the batch are columns of one."""
    extent = mat_b.shape[-1]
    if mat_a.dim() == 3 and mat_b.dim() == 3:  # columns are divided into groups, and each keeps its own
        made = _grouped(mat_a, mat_b.movedim(0, -1).flatten(-2), offs * count, bias, out_dtype)
        return made.unflatten(-1, (extent, count)), made.dim()
    added = None if bias is None else (bias if of_bias else bias.expand(count, *bias.shape)).movedim(0, -2).flatten(-2)
    made = _grouped(mat_a, mat_b.movedim(0, -2).flatten(-2), offs, added, out_dtype)
    return made.unflatten(-1, (count, extent)), made.dim() - 1


def _more_groups(
    count: int, axes: Any, mat_a: Tensor, mat_b: Tensor, offs: None, bias: Any, out_dtype: Any
) -> tuple[Tensor, int]:
    """Return products of stacks: each matrix of each of the batch is a group."""
    a, b = (
        each.expand(count, *each.shape) if axis is None else each
        for each, axis in zip((mat_a, mat_b), axes, strict=False)
    )
    groups = a.shape[1]
    if axes[3] is not None:
        bias = (bias if bias.dim() == 3 else bias[:, None]).expand(count, groups, -1).flatten(0, 1)
    elif bias is not None and bias.dim() == 2:
        bias = bias.repeat(count, 1)
    made = _grouped(a.flatten(0, 1), b.flatten(0, 1), offs, bias, out_dtype)
    return made.unflatten(0, (count, groups)), 0


def _scaled(mat_a: Any, mat_b: Any, scale_a: Any, scale_b: Any, bias: Any = None, out_dtype: Any = None) -> Any:
    return SCALED_MM(mat_a, mat_b, scale_a, scale_b, bias=bias, out_dtype=out_dtype)


def _scaled_mm(info: Any, axes: Any, *args: Any) -> tuple[Any, int]:
    given = tuple(leading(*each) for each in zip(args, axes, strict=True))
    _scaled(*described(axes, given))
    mat_a, mat_b, scale_a, scale_b, bias, out_dtype = given
    if mat_a.dim() - (axes[0] is not None) > 2:  # stacks, whose scales may be of all matrices or of each
        return torch.stack([_scaled(*each) for each in elements(info.batch_size, axes, given)]), 0
    count, rows, columns = info.batch_size, mat_a.shape[-2], mat_b.shape[-1]
    scale_a, scale_b = _of_lines(scale_a, axes[2], rows), _of_lines(scale_b, axes[3], columns)
    if axes[0] is not None and all(axis is None for axis in (axes[1], *axes[3:])):  # more rows
        scale_a = scale_a if scale_a.numel() == 1 else scale_a.reshape(-1, rows).expand(count, -1).flatten()
        made = _scaled(mat_a.flatten(0, 1), mat_b, scale_a, scale_b, bias, out_dtype)
        return made.unflatten(0, (count, rows)), 0
    a, b = (
        each.expand(count, *each.shape) if axis is None else each
        for each, axis in zip((mat_a, mat_b), axes, strict=False)
    )
    if axes[4] is None:
        return _scaled(a, b, scale_a, scale_b, bias, out_dtype), 0
    made = _scaled(a, b, scale_a, scale_b, None, torch.float32) + bias[:, None]  # so that it is rounded once
    return made.to(scaled_dtype(mat_a, out_dtype)), 0


def _of_lines(scale: Tensor, axis: int | None, lines: int) -> Tensor:
    """Return scales of a batch with one for each row, or for each column, of each matrix; others as they are."""
    if axis is None:
        return scale
    count, *shape = scale.shape
    return scale.reshape(count, prod(shape)).expand(-1, lines).contiguous()


def register_named_batches() -> None:
    """Register the rules; what cannot be put into one product is called once for each of a batch."""
    for operator, by_position, rule in ((GROUPED_MM, _grouped, _grouped_mm), (SCALED_MM, _scaled, _scaled_mm)):
        library.impl(_name(operator), _batched(operator, by_position, rule), "FuncTorchBatched", with_keyset=True)


def _name(operator: Any) -> str:
    found: str = operator.name().partition("::")[2]
    return found


def _batched(operator: Any, by_position: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    arguments = operator._schema.arguments

    def batched(_: Any, *args: Any, **named: Any) -> Any:
        given = [*args, *(named.get(each.name) for each in arguments[len(args) :])]
        interpreter: Any = retrieve_current_functorch_interpreter()
        return custom_function_call_vmap_helper(interpreter, rule, by_position, *given)

    return batched
