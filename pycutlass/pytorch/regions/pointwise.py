"""Operators of ATen that an epilogue function computes, each as what it does with traced values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from pycutlass import epilogue
from pycutlass.epilogue.traced import Traced

__all__ = ["POINTWISE", "UnfusedError", "name_of", "number", "truth"]

_COMPUTED_IN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Types that a value is rounded to on its way. Of integers torch cuts off what is behind the point, and of what is
#: beyond floats of 8 bits it makes NaN or infinity, where epilogue functions saturate.
_ROUNDED = (torch.float16, torch.bfloat16)


class UnfusedError(Exception):
    """An operator that no epilogue function computes; the text says why."""


def name_of(target: Any) -> str:
    """Return the name of an overload as tables have it: ``"add.Tensor"``, of the default one ``"gelu"``."""
    if not isinstance(target, torch._ops.OpOverload):
        return str(getattr(target, "__name__", target))
    overload: Any = target
    namespace, _, name = overload.name().partition("::")
    return str(name) if namespace == "aten" else f"{namespace}::{name}"


def number(value: Any) -> Any:
    """Return a truth value as 1 or 0, and everything else as it is."""
    if isinstance(value, bool):
        return float(value)
    return epilogue.where(value, 1.0, 0.0) if _is_truth(value) else value


def truth(value: Any) -> Any:
    """Return a number as whether it is another than 0, and a truth value as it is."""
    return value if _is_truth(value) else value != 0.0


def _is_truth(value: Any) -> bool:
    return isinstance(value, Traced) and value._trace.is_truth(value._number)


def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x + (y if _is_one(alpha) else y * alpha)


def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x - (y if _is_one(alpha) else y * alpha)


def _rsub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return y - (x if _is_one(alpha) else x * alpha)


def _is_one(value: Any) -> bool:
    return not isinstance(value, Traced) and value == 1


def _div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        raise UnfusedError(
            f"divides with rounding_mode={rounding_mode!r}, which depends on the last bit of the quotient"
        )
    return x / y


def _power(x: Any, exponent: Any) -> Any:
    if not isinstance(exponent, Traced):
        if exponent == 1:
            return x
        if exponent == 3:
            return x * x * x
    return x**exponent


def _round(x: Any, *, decimals: int = 0) -> Any:
    if decimals:
        raise UnfusedError(f"rounds to {decimals} digits")
    return epilogue.round(x)


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    kind: Any = epilogue.gelu if approximate == "none" else epilogue.gelu_tanh
    return kind(x)


def _slope_of_gelu(x: Any, approximate: str) -> Any:
    if approximate == "none":
        density = epilogue.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        return 0.5 + 0.5 * epilogue.erf(x * math.sqrt(0.5)) + x * density
    factor, cubic = math.sqrt(2 / math.pi), 0.044715
    bent: Any = epilogue.tanh(factor * (x + cubic * x * x * x))
    return 0.5 + 0.5 * bent + 0.5 * factor * x * (1 - bent * bent) * (1 + 3 * cubic * x * x)


def _gelu_backward(grad: Any, x: Any, *, approximate: str = "none") -> Any:
    return grad * _slope_of_gelu(x, approximate)


def _silu_backward(grad: Any, x: Any) -> Any:
    share: Any = epilogue.sigmoid(x)
    return grad * (share + x * share * (1 - share))


def _hardswish_backward(grad: Any, x: Any) -> Any:
    return epilogue.where(x < -3.0, 0.0, epilogue.where(x <= 3.0, grad * (x * (1 / 3) + 0.5), grad))


def _less_one(x: Any) -> Any:
    """Return exp(x) - 1 for x of at most 0, without cancellation: by tanh(x / 2)."""
    half: Any = epilogue.tanh(0.5 * x)
    return 2.0 * half / (1.0 - half)


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if input_scale < 0:
        raise UnfusedError("grows exponentially below 0, since it divides by a negative alpha")
    below = _less_one(epilogue.minimum(x * input_scale, 0.0)) * (alpha * scale)
    return epilogue.where(x > 0.0, x * scale, below)


def _selu(x: Any) -> Any:
    return _elu(x, 1.6732632423543772, 1.0507009873554805)


def _celu(x: Any, alpha: float = 1.0) -> Any:
    return _elu(x, alpha, 1.0, 1.0 / alpha)


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    made = epilogue.softplus(x * beta) * (1.0 / beta)
    return epilogue.where(x * beta > threshold, x, made)


def _leaky_relu(x: Any, slope: float = 0.01) -> Any:
    return epilogue.where(x > 0.0, x, x * slope)


def _leaky_relu_backward(grad: Any, x: Any, slope: float, is_result: bool) -> Any:
    return epilogue.where(x > 0.0, grad, grad * slope)


def _clamp(x: Any, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Any:  # torch's names
    low, high = (min if low is None else low), (max if high is None else high)
    return x if low is None and high is None else epilogue.clamp(x, low, high)


def _hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return epilogue.clamp(x, low, high)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return epilogue.where(truth(condition), x, y)


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return epilogue.where(truth(mask), value, x)


def _lerp(x: Any, end: Any, weight: Any) -> Any:
    return x + weight * (end - x)


def _cast(x: Any, dtype: Any) -> Any:
    if dtype is None:
        return x
    if dtype is torch.bool:
        return truth(x)
    if dtype in _ROUNDED:
        return epilogue.cast(number(x), dtype)
    if dtype not in _COMPUTED_IN:
        raise UnfusedError(f"converts to {dtype}, and epilogue functions round and saturate otherwise than torch")
    return number(x)


def _to_copy(x: Any, *, dtype: Any = None, **others: Any) -> Any:
    return _cast(x, dtype)  # of another device or layout a result is none of a region


def _same(x: Any, *_: Any, **__: Any) -> Any:
    return x


def _dropout(x: Any, p: float, train: bool) -> Any:
    if train:
        raise UnfusedError("is random in training")
    return x


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes truth values as 1 and 0."""

    def taking(*args: Any, **named: Any) -> Any:
        return function(*map(number, args), **{name: number(value) for name, value in named.items()})

    return taking


_NUMERIC: dict[str, Callable[..., Any]] = {
    "add.Tensor": _add,
    "add.Scalar": lambda x, y, alpha=1: _add(x, y, alpha=alpha),
    "sub.Tensor": _sub,
    "sub.Scalar": lambda x, y, alpha=1: _sub(x, y, alpha=alpha),
    "rsub.Tensor": _rsub,
    "rsub.Scalar": _rsub,
    "mul.Tensor": lambda x, y: x * y,
    "mul.Scalar": lambda x, y: x * y,
    "div.Tensor": _div,
    "div.Scalar": _div,
    "div.Tensor_mode": _div,
    "div.Scalar_mode": _div,
    "true_divide.Tensor": _div,
    "neg": lambda x: -x,
    "abs": epilogue.abs,
    "floor": epilogue.floor,
    "ceil": epilogue.ceil,
    "round": _round,
    "round.decimals": _round,
    "exp": epilogue.exp,
    "exp2": epilogue.exp2,
    "log": epilogue.log,
    "log2": lambda x: epilogue.log(x) * (1 / math.log(2)),
    "log10": lambda x: epilogue.log(x) * (1 / math.log(10)),
    "sqrt": epilogue.sqrt,
    "rsqrt": epilogue.rsqrt,
    "erf": epilogue.erf,
    "reciprocal": lambda x: 1.0 / x,
    "square": lambda x: x * x,
    "pow.Tensor_Scalar": _power,
    "pow.Tensor_Tensor": _power,
    "pow.Scalar": _power,
    "remainder.Scalar": lambda x, y: x % y,
    "remainder.Tensor": lambda x, y: x % y,
    "minimum": epilogue.minimum,
    "maximum": epilogue.maximum,
    "clamp": _clamp,
    "clamp.Tensor": _clamp,
    "clamp_min": lambda x, low: epilogue.maximum(x, low),
    "clamp_min.Tensor": lambda x, low: epilogue.maximum(x, low),
    "clamp_max": lambda x, high: epilogue.minimum(x, high),
    "clamp_max.Tensor": lambda x, high: epilogue.minimum(x, high),
    "lerp.Scalar": _lerp,
    "lerp.Tensor": _lerp,
    "addcmul": lambda x, y, z, value=1: x + y * z * value,
    "addcdiv": lambda x, y, z, value=1: x + y / z * value,
    "relu": lambda x: epilogue.maximum(x, 0.0),
    "relu6": lambda x: epilogue.clamp(x, 0.0, 6.0),
    "hardtanh": _hardtanh,
    "leaky_relu": _leaky_relu,
    "threshold": lambda x, threshold, value: epilogue.where(x <= threshold, value, x),
    "sigmoid": epilogue.sigmoid,
    "tanh": epilogue.tanh,
    "silu": epilogue.silu,
    "gelu": _gelu,
    "hardswish": epilogue.hardswish,
    "hardsigmoid": lambda x: epilogue.clamp(x + 3.0, 0.0, 6.0) * (1 / 6),
    "softplus": _softplus,
    "mish": lambda x: x * epilogue.tanh(epilogue.softplus(x)),
    "log_sigmoid": lambda x: -epilogue.softplus(-x),
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "_prelu_kernel": lambda x, slope: epilogue.where(x > 0.0, x, x * slope),
    "gelu_backward": _gelu_backward,
    "silu_backward": _silu_backward,
    "hardswish_backward": _hardswish_backward,
    "sigmoid_backward": lambda grad, y: grad * y * (1.0 - y),
    "tanh_backward": lambda grad, y: grad * (1.0 - y * y),
    "threshold_backward": lambda grad, x, threshold: epilogue.where(x <= threshold, 0.0, grad),
    "leaky_relu_backward": _leaky_relu_backward,
    "isnan": lambda x: x != x,
    **{f"gt.{kind}": lambda x, y: x > y for kind in ("Scalar", "Tensor")},
    **{f"ge.{kind}": lambda x, y: x >= y for kind in ("Scalar", "Tensor")},
    **{f"lt.{kind}": lambda x, y: x < y for kind in ("Scalar", "Tensor")},
    **{f"le.{kind}": lambda x, y: x <= y for kind in ("Scalar", "Tensor")},
    **{f"eq.{kind}": lambda x, y: x == y for kind in ("Scalar", "Tensor")},
    **{f"ne.{kind}": lambda x, y: x != y for kind in ("Scalar", "Tensor")},
}

#: What each operator does with traced values and numbers, in the place of its tensors.
POINTWISE: dict[str, Callable[..., Any]] = {
    **{name: _of_numbers(function) for name, function in _NUMERIC.items()},
    **{f"where.{kind}": _where for kind in ("self", "ScalarOther", "ScalarSelf", "Scalar")},
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
    "logical_and": lambda x, y: truth(x) & truth(y),
    "logical_or": lambda x, y: truth(x) | truth(y),
    "logical_not": lambda x: ~truth(x),
    **{f"{name}.Tensor": lambda x, y: truth(x) & truth(y) for name in ("bitwise_and", "__and__")},
    **{f"{name}.Tensor": lambda x, y: truth(x) | truth(y) for name in ("bitwise_or", "__or__")},
    "bitwise_not": lambda x: ~truth(x),
    "to.dtype": lambda x, dtype, *_, **__: _cast(x, dtype),
    "prims::convert_element_type": _cast,
    "_to_copy": _to_copy,
    "clone": _same,
    "contiguous": _same,
    "lift_fresh_copy": _same,
    "dropout": _dropout,
}
