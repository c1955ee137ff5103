"""What ``torch.autocast`` makes of operators: their tensors are cast to its type, as those of torch's own products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pycutlass.pytorch.convolutions import CONV2D
from pycutlass.pytorch.fused import FUSED_CONV2D, FUSED_MM
from pycutlass.pytorch.fused_groups import FUSED_GROUPED_MM
from pycutlass.pytorch.gated import SWIGLU
from pycutlass.pytorch.groups import GROUPED_MM
from pycutlass.pytorch.handles import fused
from pycutlass.pytorch.interleaved import INTERLEAVED_SWIGLU
from pycutlass.pytorch.mixed import MIXED_MM
from pycutlass.pytorch.operators import library
from pycutlass.pytorch.products import LINEAR, MATMUL
from pycutlass.pytorch.sums import ADDMM

__all__ = ["as_autocast_has_it", "operands_as_autocast_has_them", "register_casts"]


def _cast_on(device_type: str, operator: Any, most: int | None = None) -> Callable[..., Any]:
    """Return what casts the tensors of an operator that are on such a device, and calls it without autocast.

    Of `most` tensors, if that is said: scales stay as they are.
    """
    disabled = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEYS[device_type]))

    def cast(*args: Any, **named: Any) -> Any:
        dtype = torch.get_autocast_dtype(device_type)
        given = [_lowered(each, device_type, dtype) for each in args[:most]]
        given += args[len(given) :]
        options = {name: _lowered(each, device_type, dtype) for name, each in named.items()}
        with torch._C._ExcludeDispatchKeyGuard(disabled):
            return operator(*given, **options)

    return cast


def _cast_fused_on(device_type: str, operator: Any) -> Callable[..., Any]:
    """Return what casts the operands of a fused operator, and its C, which has the type of the result.

    What else an epilogue reads stays as it is: scales are in float32 for a reason, and kernels read any type.
    """
    cast = _cast_on(device_type, operator, 2)

    def cast_fused(*args: Any, **named: Any) -> Any:
        return cast(*operands_as_autocast_has_them(operator, args), **named)

    return cast_fused


def operands_as_autocast_has_them(operator: Any, args: tuple[Any, ...]) -> list[Any]:
    """Return what a fused operator is given, with operands and C in the type of the autocast around the call."""
    names, given = [each.name for each in operator._schema.arguments], list(args)
    epilogue, tensors = names.index("epilogue"), names.index("tensors")
    given[:2] = map(as_autocast_has_it, given[:2])
    reads = fused(given[epilogue], given[0].dtype).reads
    given[tensors] = [
        as_autocast_has_it(each) if number < len(reads) and reads[number].form == "source" else each
        for number, each in enumerate(given[tensors])
    ]
    return given


def _lowered(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    """Return a tensor in a type: as torch does it, float64 and tensors of other devices stay as they are."""
    is_cast = isinstance(value, torch.Tensor) and value.is_floating_point() and value.device.type == device_type
    return value.to(dtype) if is_cast and value.dtype is not torch.float64 else value


def as_autocast_has_it(value: Any) -> Any:
    """Return a tensor in the type of the autocast around the call, if there is one; another value as it is."""
    device_type = value.device.type if isinstance(value, torch.Tensor) else None
    if device_type not in _KEYS or not torch.is_autocast_enabled(device_type):
        return value
    return _lowered(value, device_type, torch.get_autocast_dtype(device_type))


_KEYS = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}


def register_casts() -> None:
    """Register the rules. Operators that write into `out` and those that backward calls take types as they are."""
    for operator in (MATMUL, LINEAR, ADDMM, SWIGLU, INTERLEAVED_SWIGLU, GROUPED_MM, CONV2D):
        for device_type, key in _KEYS.items():
            library.impl(operator.name().partition("::")[2], _cast_on(device_type, operator), key)
    for device_type, key in _KEYS.items():
        library.impl("mixed_mm", _cast_on(device_type, MIXED_MM, 1), key)
    for operator in (FUSED_MM, FUSED_CONV2D, FUSED_GROUPED_MM):
        for device_type, key in _KEYS.items():
            library.impl(operator.name().partition("::")[2], _cast_fused_on(device_type, operator), key)
