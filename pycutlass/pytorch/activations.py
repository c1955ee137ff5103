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
from pycutlass.epilogue.handles import at_defaults, is_handle, read_handle
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import attribute
from pycutlass.plan.shortcut import precision_of

__all__ = [
    "ACTIVATIONS",
    "NamedActivation",
    "activation_of",
    "check_has_derivative",
    "check_has_slope",
    "gradient_of_silu",
    "of_sum",
    "takes_functions",
    "with_slope",
]

_aten = torch.ops.aten


@dataclass(frozen=True)
class NamedActivation:
    """An activation with its derivatives.

    Attributes
    ----------
    kind : class or EpilogueFunction
        What an epilogue applies.
    function : function
        The same of a tensor, by torch; of a function that came by its handle, what refuses that.
    slope : function or None
        Its derivative as an epilogue function writes it, where that is not to be had from the activation's result.
    from_output : function or None
        What backward makes of the gradient of the result, and the result.
    from_input : function or None
        What backward makes of the gradient of the result, and what the activation was applied to, where there is a
        `slope`: it has derivatives itself.
    """

    kind: type[Activation] | EpilogueFunction
    function: Callable[[Any], Any]
    slope: Callable[[Any], Any] | None = None
    from_output: Callable[[Any, Any], Any] | None = None
    from_input: Callable[[Any, Any], Any] | None = None

    @property
    def is_function(self) -> bool:
        """Whether it is an epilogue function, by its handle, which `of_sum` applies."""
        return isinstance(self.kind, EpilogueFunction)

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
        assert self.from_input is not None  # `check_has_derivative` was asked
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


def activation_of(name: str | None, operand: torch.dtype = torch.float32) -> NamedActivation | None:
    """Return an activation by its name, or by the handle of an epilogue function; None of None.

    `operand` is what is multiplied.
    """
    if name is None:
        return None
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"activation must be the name of one, {', '.join(map(repr, ACTIVATIONS))}, or a handle, got {shown(name)}: "
            f"{_meant(name)}"
        )
    found = ACTIVATIONS.get(name)
    if found is None and is_handle(name):
        if not operand.is_floating_point:
            raise ArgumentError(
                f"operands are of {operand}, and activation is the handle of an epilogue function, which is computed "
                f"in fractions: call fused_mm or fused_conv2d with pycutlass.pytorch.epilogue_handle(function, "
                f"D=torch.float32)"
            )
        return _of_handle(name)
    if found is None:
        near = " swish is silu here." if name == "swish" else suggestion(name, ACTIVATIONS)  # not hardswish
        raise ArgumentError(
            f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, got {name!r}.{near} {_OTHERS}"
        )
    return found


@lru_cache(maxsize=512)  # a program has a bounded number of epilogues, each of which is a kernel
def _of_handle(handle: str) -> NamedActivation:
    """Return an epilogue function of an accumulator alone as an activation."""
    function, types = read_handle(handle)
    reads = [each.name for each in function.graph.of_form("row", "column", "matrix", "number", "source")]
    scalars = [each.name for each in function.graph.of_form("scalar") if each.default is None]
    writes = [name for name, _ in function.graph.outputs if name != "D"]
    more = [*(f"reads {each}" for each in (*reads, *scalars)), *(f"returns {each}" for each in writes)]
    more += ["combines pairs of columns"] * function.graph.is_gated + [f"has a type for {each}" for each in types]
    if more:
        raise ArgumentError(
            f"activation is the handle of an epilogue function that {', '.join(more)}, and here it is applied to a sum "
            f"that the operator makes, of which it may read nothing but the accumulator, and scalars with a default: "
            f"call fused_mm or fused_conv2d with it"
        )

    def refused(_: Any) -> Any:
        raise ArgumentError(
            "activation is the handle of an epilogue function, and this transform of torch.func computes activations "
            "by torch: call fused_mm or fused_conv2d with it, whose batches are those of kernels"
        )

    return NamedActivation(function, refused)


def check_has_derivative(name: str | None) -> None:
    """Raise ArgumentError for an activation of which no derivative is known, where one is asked for."""
    named = activation_of(name)
    if named is not None and named.slope is None and named.from_output is None:
        raise ArgumentError(
            "a tensor requires a gradient, and activation is the handle of an epilogue function, whose derivative is "
            "not known: call the operator, or make the layer, without activation and compute it with torch behind it; "
            "where nothing is trained, call it under torch.no_grad()"
        )


_OTHERS = "Others are written as epilogue functions: pass pycutlass.pytorch.epilogue_handle(function)"


def _meant(given: Any) -> str:
    """Return what to pass instead of what is no name of an activation, for the end of a message."""
    called = attribute(given, "__name__")
    if type(called) is str and called in ACTIVATIONS and not isinstance(given, EpilogueFunction):
        return f"pass {called!r}"
    write = "" if isinstance(given, EpilogueFunction) else "write anything else as an epilogue function, and "
    return f"{write}pass pycutlass.pytorch.epilogue_handle(function)"


def takes_functions(operand: torch.Tensor) -> bool:
    """Return whether kernels for products of such an operand take epilogue functions: those of tensor cores do."""
    return operand.dtype is not torch.float32 or precision_of(operand) == "tf32"


def check_has_slope(operator: str, name: str) -> NamedActivation:
    """Return an activation, or raise ArgumentError unless it has a slope that is not to be had from its result."""
    named = activation_of(name)
    if named is None or named.slope is None:
        whose = f"{name!r} is made of its result"
        if named is not None and named.is_function:
            whose = "an epilogue function is not known"
        known = ", ".join(repr(each) for each, row in ACTIVATIONS.items() if row.slope is not None)
        raise ArgumentError(f"{operator}_with_slope is for {known}, and the derivative of {whose}: call {operator}")
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
    of_slope = activation.slope
    assert of_slope is not None
    called = "_".join((name, "with_slope", *([] if addend is None else [addend])))
    return _of_sum(called, addend, scaled, lambda t: {"D": activation.kind(t), "slope": of_slope(t)})


@lru_cache(maxsize=512)  # as `_of_handle`
def of_sum(handle: str, addend: str | None, scaled: bool = False) -> EpilogueFunction:
    """Return the epilogue function that applies that of a handle to a sum, which is said as `with_slope` is told."""
    function, _ = read_handle(handle)
    return _of_sum("of_sum", addend, scaled, lambda t: at_defaults(function, t))


def _of_sum(name: str, addend: str | None, scaled: bool, results: Callable[[Any], Any]) -> EpilogueFunction:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    markers: dict[str, Any] = {} if addend is None else {addend: Row if addend == "bias" else Source}
    scalars = ("alpha", *(() if addend is None else ("beta",))) if scaled else ()
    markers |= dict.fromkeys(scalars, Scalar)

    def function(accum: Any, *values: Any) -> Any:
        given = dict(zip(markers, values, strict=True))
        t = given["alpha"] * accum if scaled else accum
        if addend is not None:
            t = t + (given["beta"] * given[addend] if scaled else given[addend])
        return results(t)

    parameters = [inspect.Parameter("accum", kind)]
    for each, marker in markers.items():  # a scalar that is left out is 1
        default = 1.0 if marker is Scalar else inspect.Parameter.empty
        parameters.append(inspect.Parameter(each, kind, annotation=marker, default=default))
    function.__name__ = name
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return epilogue_function(function)
