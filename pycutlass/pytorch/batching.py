"""What ``torch.vmap`` makes of operators: a batched product, or one of more rows where weights have no batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from pycutlass.pytorch.activations import activation_of
from pycutlass.pytorch.casting import as_autocast_has_it
from pycutlass.pytorch.convolutions import CONV2D, CONV2D_INPUT
from pycutlass.pytorch.fused_batching import RULES, elements
from pycutlass.pytorch.gated import SWIGLU
from pycutlass.pytorch.interleaved import INTERLEAVED_SWIGLU
from pycutlass.pytorch.mixed import MIXED_MM
from pycutlass.pytorch.operators import library
from pycutlass.pytorch.products import LINEAR, MATMUL
from pycutlass.pytorch.sums import ADDMM

__all__ = ["register_batches"]

Tensor = torch.Tensor


def _matmul(_: Any, axes: Any, input: Tensor, other: Tensor, *, out_dtype: torch.dtype | None = None) -> Any:
    a, b = _leading(input, axes[0]), _leading(other, axes[1])
    of_a, of_b = (each.dim() - (axis is not None) for each, axis in ((a, axes[0]), (b, axes[1])))
    a, b = a.unsqueeze(-2) if of_a == 1 else a, b.unsqueeze(-1) if of_b == 1 else b
    rank = max(of_a, of_b, 2)
    made = MATMUL(_padded(a, rank, axes[0]), _padded(b, rank, axes[1]), out_dtype=out_dtype)
    made = made.squeeze(-1) if of_b == 1 else made
    return made.squeeze(-1 if of_b == 1 else -2) if of_a == 1 else made, 0


def _linear(
    _: Any, axes: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Any:
    of_input, of_weight, of_bias = (*axes, None)[:3]
    x, w = _leading(input, of_input), _leading(weight, of_weight)
    if of_weight is None and of_bias is None:
        return LINEAR(x, w, bias, activation), 0
    b = None if bias is None else _leading(bias, of_bias)
    count = w.shape[0] if b is None or of_weight is not None else b.shape[0]
    x = x.expand(count, *x.shape) if of_input is None else x
    rows = x[:, None] if x.dim() == 2 else x.flatten(1, -2)
    made = MATMUL(rows, w.mT)
    if b is not None:
        made = made + (b if of_bias is None else b[:, None])
    return _activated(made, activation).reshape(*x.shape[:-1], made.shape[-1]), 0


def _addmm(
    _: Any,
    axes: Any,
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    activation: str | None = None,
) -> Any:
    added = _padded(_leading(input, axes[0]), 2, axes[0])
    made = alpha * MATMUL(_leading(mat1, axes[1]), _leading(mat2, axes[2]))
    if beta == 0:  # torch reads nothing of `input` then
        added, beta = torch.zeros_like(added), 1
    return _activated(made + beta * added, activation), 0


def _swiglu(info: Any, axes: Any, input: Tensor, gate_weight: Tensor, up_weight: Tensor) -> Any:
    of_input, of_gate, of_up = axes
    if of_gate is None and of_up is None:
        return SWIGLU(_leading(input, of_input), gate_weight, up_weight), 0
    gate, _ = _linear(info, (of_input, of_gate), input, gate_weight, None, "silu")
    up, _ = _linear(info, (of_input, of_up), input, up_weight)
    return gate * up, 0  # where one of them has no batch, it broadcasts


def _interleaved_swiglu(info: Any, axes: Any, input: Tensor, weight: Tensor) -> Any:
    if axes[1] is None:
        return INTERLEAVED_SWIGLU(_leading(input, axes[0]), weight), 0
    sums, _ = _linear(info, axes, input, weight)
    return functional.silu(sums[..., 0::2]) * sums[..., 1::2], 0


def _conv2d(
    info: Any, axes: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, *given: Any
) -> tuple[Any, int]:
    of_input, of_weight, of_bias = (*axes, None)[:3]
    x, w = _leading(input, of_input), _leading(weight, of_weight)
    b = None if bias is None else _leading(bias, of_bias)
    if of_weight is None and of_bias is None:  # more images
        return CONV2D(x.flatten(0, 1), w, b, *given).unflatten(0, (info.batch_size, -1)), 0
    groups = given[3] if len(given) > 3 else 1
    if of_input is None and of_weight is not None and groups == 1:  # more filters
        if b is not None and of_bias is None:
            b = b.expand(info.batch_size, -1)
        made = CONV2D(x, w.flatten(0, 1), None if b is None else b.flatten(), *given)
        return made.unflatten(1, (info.batch_size, -1)), 1
    places = (*(None if axis is None else 0 for axis in (of_input, of_weight, of_bias)), *(None for _ in given))
    return torch.stack([CONV2D(*each) for each in elements(info.batch_size, places, (x, w, b, *given))]), 0


def _conv2d_input(
    info: Any, axes: Any, input_size: Any, weight: Tensor, grad_output: Tensor, *given: Any
) -> tuple[Any, int]:
    w, dy = _leading(weight, axes[1]), _leading(grad_output, axes[2])
    if axes[1] is None:  # more images
        size = [info.batch_size * input_size[0], *input_size[1:]]
        return CONV2D_INPUT(size, w, dy.flatten(0, 1), *given).unflatten(0, (info.batch_size, -1)), 0
    places = (None, *(None if axis is None else 0 for axis in axes[1:3]), *(None for _ in given))
    return torch.stack(
        [CONV2D_INPUT(*each) for each in elements(info.batch_size, places, (input_size, w, dy, *given))]
    ), 0


def _mixed_mm(
    info: Any,
    axes: Any,
    mat_a: Tensor,
    mat_b: Tensor,
    scale: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> tuple[Any, int]:
    of_a, of_b, of_scale = (*axes, None)[:3]
    a, b = _leading(mat_a, of_a), _leading(mat_b, of_b)
    if of_b is None and of_scale is None:  # more rows
        return MIXED_MM(a.flatten(0, 1), b, scale, out_dtype=out_dtype).unflatten(0, (info.batch_size, -1)), 0
    given = a, b, None if scale is None else _leading(scale, of_scale)
    places = [None if axis is None else 0 for axis in (of_a, of_b, of_scale)]
    return torch.stack([MIXED_MM(*each, out_dtype=out_dtype) for each in elements(info.batch_size, places, given)]), 0


def _leading(tensor: Tensor, axis: int | None) -> Tensor:
    """Return a tensor with its batch in front."""
    return tensor if axis is None else tensor.movedim(axis, 0)


def _padded(tensor: Tensor, rank: int, axis: int | None) -> Tensor:
    """Return a tensor whose batch is in front of `rank` axes, of which those that it lacks are 1."""
    if axis is None:
        return tensor
    return tensor.reshape(tensor.shape[0], *(1,) * (rank + 1 - tensor.dim()), *tensor.shape[1:])


def _activated(tensor: Tensor, activation: str | None) -> Any:
    named = activation_of(activation)
    return tensor if named is None else named.function(tensor)


def _checked(operator: Any, rule: Callable[..., Any], most: int | None = None) -> Callable[..., Any]:
    """Return a rule that takes what the operator takes, so that nothing broadcasts that does not without a batch.

    Of `most` tensors, if that is said, autocast changes the type.
    """

    def batched(info: Any, axes: Any, *tensors: Any, **options: Any) -> Any:
        padded = (*axes, *(None,) * (len(tensors) - len(axes)))
        given = [as_autocast_has_it(each) for each in tensors[:most]]  # torch calls rules before it casts
        given += tensors[len(given) :]
        operator(*(_described(each, axis) for each, axis in zip(given, padded, strict=True)), **options)
        return rule(info, axes, *given, **options)

    return batched


def _described(value: Any, axis: int | None) -> Any:
    """Return one tensor of a batch, without its memory."""
    if not isinstance(value, Tensor):
        return value
    shape = list(value.shape)
    if axis is not None:
        del shape[axis]
    return torch.empty(shape, dtype=value.dtype, device="meta")


def register_batches() -> None:
    """Register the rules; torch calls an operator that has none once for each of a batch."""
    gated = ((SWIGLU, _swiglu), (INTERLEAVED_SWIGLU, _interleaved_swiglu))
    for operator, rule in ((MATMUL, _matmul), (LINEAR, _linear), (ADDMM, _addmm), *gated, (CONV2D, _conv2d)):
        torch.library.register_vmap(operator.name(), _checked(operator, rule), lib=library)
    torch.library.register_vmap(MIXED_MM.name(), _checked(MIXED_MM, _mixed_mm, 1), lib=library)
    torch.library.register_vmap(CONV2D_INPUT.name(), _checked(CONV2D_INPUT, _conv2d_input, 0), lib=library)
    for operator, rule in RULES:
        torch.library.register_vmap(operator.name(), rule, lib=library)
