"""Activations of operators, by name: what computes them behind a product, and their derivatives."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from pycutlass.calls import shown, suggestion
from pycutlass.epilogue import (
    Activation,
    EpilogueFunction,
    Row,
    Scalar,
    Source,
    epilogue_function,
    gelu,
    gelu_tanh,
    hardswish,
    relu,
    sigmoid,
    silu,
    tanh,
)
from pycutlass.epilogue.functions import erf, exp, where
from pycutlass.epilogue.handles import is_handle
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import attribute
from pycutlass.plan.shortcut import precision_of

__all__ = [
    "ACTIVATIONS",
    "NamedActivation",
    "activation_of",
    "check_has_slope",
    "gradient_of_silu",
    "takes_functions",
    "with_slope",
]

_aten = torch.ops.aten


@dataclass(frozen=True)
class NamedActivation:
    """An activation with its derivatives.

    Attributes
    ----------
    kind : class
        What an epilogue applies.
    function : function
        The same of a tensor, by torch.
    slope : function or None
        Its derivative as an epilogue function writes it, where that is not to be had from the activation's result.
    from_output : function or None
        What backward makes of the gradient of the result, and the result.
    from_input : function or None
        What backward makes of the gradient of the result, and what the activation was applied to, where there is a
        `slope`: it has derivatives itself.
    """

    kind: type[Activation]
    function: Callable[[Any], Any]
    slope: Callable[[Any], Any] | None = None
    from_output: Callable[[Any, Any], Any] | None = None
    from_input: Callable[[Any, Any], Any] | None = None

    def gradient(self, grad: Any, saved: Any, inputs: Callable[[], Any]) -> Any:
        """Return the gradient of what the activation was applied to.

        Parameters
        ----------
        grad : tensor
            Gradient of the result.
        saved : tensor
            The slope where there is one, else the result.
        inputs : function
            Computes what the activation was applied to.
        """
        if self.from_output is not None:
            return self.from_output(grad, saved)
        assert self.from_input is not None
        # Where backward is to be differentiated, the slope is no constant.
        return self.from_input(grad, inputs()) if torch.is_grad_enabled() else grad * saved

    def applied(self, sums: Any) -> tuple[Any, Any]:
        """Return the activation of sums and its slope, computed by torch."""
        assert self.from_input is not None
        return self.function(sums), self.from_input(torch.ones_like(sums), sums)


def _slope_of_gelu(t: Any) -> Any:
    return 0.5 + 0.5 * erf(t * math.sqrt(0.5)) + t * exp(-0.5 * t * t) * (1 / math.sqrt(2 * math.pi))


def _slope_of_gelu_tanh(t: Any) -> Any:
    factor, cubic = math.sqrt(2 / math.pi), 0.044715
    bent: Any = tanh(factor * (t + cubic * t * t * t))
    return 0.5 + 0.5 * bent + 0.5 * factor * t * (1 - bent * bent) * (1 + 3 * cubic * t * t)


def _slope_of_hardswish(t: Any) -> Any:
    return where(t <= -3, 0.0, where(t < 3, t * (1 / 3) + 0.5, 1.0))


def _slope_of_silu(t: Any) -> Any:
    share: Any = sigmoid(t)
    return share + t * share * (1 - share)


def gradient_of_silu(grad: Any, t: Any) -> Any:
    """Return what ``aten::silu_backward`` does, which has no derivative."""
    share = torch.sigmoid(t)
    return grad * share * (1 + t * (1 - share))


#: By the names that operators take.
ACTIVATIONS: dict[str, NamedActivation] = {
    "gelu": NamedActivation(gelu, functional.gelu, _slope_of_gelu, from_input=_aten.gelu_backward),
    "gelu_tanh": NamedActivation(
        gelu_tanh,
        lambda x: functional.gelu(x, approximate="tanh"),
        _slope_of_gelu_tanh,
        from_input=lambda grad, t: _aten.gelu_backward(grad, t, approximate="tanh"),
    ),
    "hardswish": NamedActivation(
        hardswish, functional.hardswish, _slope_of_hardswish, from_input=_aten.hardswish_backward
    ),
    "relu": NamedActivation(relu, functional.relu, from_output=lambda grad, y: _aten.threshold_backward(grad, y, 0)),
    "sigmoid": NamedActivation(sigmoid, torch.sigmoid, from_output=_aten.sigmoid_backward),
    "silu": NamedActivation(silu, functional.silu, _slope_of_silu, from_input=gradient_of_silu),
    "tanh": NamedActivation(tanh, torch.tanh, from_output=_aten.tanh_backward),
}


def activation_of(name: str | None) -> NamedActivation | None:
    """Return an activation by its name; None of None."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"activation must be the name of one, {', '.join(map(repr, ACTIVATIONS))}, got {shown(name)}: "
            f"{_meant(name)}"
        )
    found = ACTIVATIONS.get(name)
    if found is None and is_handle(name):
        raise ArgumentError(
            f"activation must be the name of one, {', '.join(map(repr, ACTIVATIONS))}, whose derivative is known, and "
            f"the handle of an epilogue function is given: call fused_mm or fused_conv2d with it, with a bias and "
            f"scalars as parameters of the function"
        )
    if found is None:
        near = " swish is silu here." if name == "swish" else suggestion(name, ACTIVATIONS)  # not hardswish
        raise ArgumentError(f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, got {name!r}.{near}")
    return found


def _meant(given: Any) -> str:
    """Return what to pass instead of what is no name of an activation, for the end of a message."""
    called = attribute(given, "__name__")
    if type(called) is str and called in ACTIVATIONS and not isinstance(given, EpilogueFunction):
        return f"pass {called!r}"
    write = "" if isinstance(given, EpilogueFunction) else "write anything else as an epilogue function, and "
    return f"{write}call fused_mm or fused_conv2d with pycutlass.pytorch.epilogue_handle(function)"


def takes_functions(operand: torch.Tensor) -> bool:
    """Return whether kernels for products of such an operand take epilogue functions: those of tensor cores do."""
    return operand.dtype is not torch.float32 or precision_of(operand) == "tf32"


def check_has_slope(operator: str, name: str) -> NamedActivation:
    """Return an activation, or raise ArgumentError unless it has a slope that is not to be had from its result."""
    named = activation_of(name)
    if named is None or named.slope is None:
        known = ", ".join(repr(each) for each, row in ACTIVATIONS.items() if row.slope is not None)
        raise ArgumentError(
            f"{operator}_with_slope is for {known}, and the derivative of {name!r} is made of its result: call "
            f"{operator}"
        )
    return named


@lru_cache(maxsize=128)  # seven activations with three kinds of addends and two of scalars have fewer
def with_slope(name: str, addend: str | None, scaled: bool = False) -> EpilogueFunction:
    """Return the epilogue function that computes an activation and, as ``slope``, its derivative.

    Parameters
    ----------
    name : str
        Of an activation that has a slope.
    addend : str or None
        What is added before: ``"bias"``, a row for all, or ``"c"``, a matrix.
    scaled : bool
        Whether the product is multiplied by ``alpha``, and what is added by ``beta``.
    """
    activation = ACTIVATIONS[name]
    assert activation.slope is not None
    of_slope, kind = activation.slope, inspect.Parameter.POSITIONAL_OR_KEYWORD
    markers: dict[str, Any] = {} if addend is None else {addend: Row if addend == "bias" else Source}
    scalars = ("alpha", *(() if addend is None else ("beta",))) if scaled else ()
    markers |= dict.fromkeys(scalars, Scalar)

    def function(accum: Any, *values: Any) -> Any:
        given = dict(zip(markers, values, strict=True))
        t = given["alpha"] * accum if scaled else accum
        if addend is not None:
            t = t + (given["beta"] * given[addend] if scaled else given[addend])
        return {"D": activation.kind(t), "slope": of_slope(t)}

    parameters = [inspect.Parameter("accum", kind)]
    for each, marker in markers.items():  # a scalar that is left out is 1
        default = 1.0 if marker is Scalar else inspect.Parameter.empty
        parameters.append(inspect.Parameter(each, kind, annotation=marker, default=default))
    function.__name__ = "_".join((name, "with_slope", *([] if addend is None else [addend])))
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return epilogue_function(function)
