"""What ``torch.vmap`` makes of operators with an epilogue: a batch, which kernels know, or more images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from pycutlass.pytorch.casting import operands_as_autocast_has_them
from pycutlass.pytorch.fused import FUSED_CONV2D, FUSED_MM
from pycutlass.pytorch.fused_groups import FUSED_GROUPED_MM
from pycutlass.pytorch.handles import Read, fused

__all__ = ["RULES", "described", "elements", "leading"]

Tensor = torch.Tensor


def _fused_mm(info: Any, axes: Any, *args: Any) -> Any:
    mat_a, mat_b, epilogue, tensors, *scalars = _led(FUSED_MM, axes, args)
    first = FUSED_MM(*described(axes, (mat_a, mat_b, epilogue, tensors, *scalars)))
    of_a, of_b = (each.dim() - (axis is not None) for each, axis in zip((mat_a, mat_b), axes, strict=False))
    if (of_a, of_b) != (2, 2):
        return _one_by_one(FUSED_MM, info, axes, (mat_a, mat_b, epilogue, tensors, *scalars))
    if axes[0] is None and axes[1] is None:
        mat_a = mat_a.expand(info.batch_size, *mat_a.shape)
    reads, rows = fused(epilogue, mat_a.dtype).reads, mat_a.shape[-2]
    given = [_of_batch(*each, rows) for each in zip(reads, tensors, axes[3], strict=True)]
    return FUSED_MM(mat_a, mat_b, epilogue, given, *scalars), [0] * len(first)


def _of_batch(read: Read, tensor: Tensor, axis: int | None, rows: Any) -> Tensor:
    """Return a tensor as one of a batch has it, with what is behind the batch as a matrix has it."""
    if axis is None:
        return tensor
    if read.form == "number":
        return tensor.flatten()
    if read.form == "source" and tensor.dim() == 2:  # a bias
        return tensor[:, None].expand(-1, rows, -1)
    return tensor


def _fused_conv2d(info: Any, axes: Any, *args: Any) -> Any:
    given = _led(FUSED_CONV2D, axes, args)
    first = FUSED_CONV2D(*described(axes, given))
    input, weight, *geometry, epilogue, tensors = given[:8]
    made = fused(epilogue, input.dtype)
    is_more_images = axes[0] is not None and axes[1] is None and all(each.form == "matrix" for each in made.writes)
    if not is_more_images or not all(map(_goes_by_images, made.reads, tensors, axes[7])):
        return _one_by_one(FUSED_CONV2D, info, axes, given)
    flat = [each if axis is None else each.flatten(0, 1) for each, axis in zip(tensors, axes[7], strict=True)]
    results = FUSED_CONV2D(input.flatten(0, 1), weight, *geometry, epilogue, flat, *given[8:])
    return [each.unflatten(0, (info.batch_size, -1)) for each in results], [0] * len(first)


def _goes_by_images(read: Read, tensor: Tensor, axis: int | None) -> bool:
    """Return whether a tensor goes with the images of a batch one after the other."""
    is_one = read.form in ("row", "number") or (read.form == "source" and tensor.dim() - (axis is not None) == 1)
    return is_one == (axis is None)


def _fused_grouped_mm(info: Any, axes: Any, *args: Any, **options: Any) -> Any:
    given = _led(FUSED_GROUPED_MM, axes, args)
    FUSED_GROUPED_MM(*described(axes, given), **options)
    return _one_by_one(partial(FUSED_GROUPED_MM, **options), info, axes, given)


def _one_by_one(operator: Any, info: Any, axes: Any, given: tuple[Any, ...]) -> Any:
    """Call an operator once for each of a batch."""
    made = [operator(*each) for each in elements(info.batch_size, axes, given)]
    return [torch.stack(each) for each in zip(*made, strict=True)], [0] * len(made[0])


def _led(operator: Any, axes: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what an operator is given, with the batch of each tensor in front, and as autocast has it."""
    given = operands_as_autocast_has_them(operator, args)
    return tuple(leading(each, axis) for each, axis in zip(given, axes, strict=True))


def leading(value: Any, axis: Any) -> Any:
    """Return a tensor with its batch in front; another value as it is."""
    if isinstance(value, list | tuple) and isinstance(axis, list | tuple):
        return [leading(*each) for each in zip(value, axis, strict=True)]
    return value.movedim(axis, 0) if isinstance(value, Tensor) and axis is not None else value


def elements(count: int, axes: Any, given: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield what the operator is given for each of a batch."""
    for number in range(count):
        yield tuple(_chosen(each, axis, number) for each, axis in zip(given, axes, strict=True))


def _chosen(value: Any, axis: Any, number: int) -> Any:
    if isinstance(value, list | tuple) and isinstance(axis, list | tuple):
        return [_chosen(each, of, number) for each, of in zip(value, axis, strict=True)]
    return value[number] if isinstance(value, Tensor) and axis is not None else value


def described(axes: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what the operator is given for one of a batch, without memory: it refuses what does not fit."""
    return tuple(_without_memory(value) for value in next(elements(1, axes, given)))


def _without_memory(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_memory(each) for each in value]
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, Tensor) else value


#: Operators and their rules.
RULES: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (FUSED_MM, _fused_mm),
    (FUSED_CONV2D, _fused_conv2d),
    (FUSED_GROUPED_MM, _fused_grouped_mm),
)
