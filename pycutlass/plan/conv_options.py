"""What convolutions take beside tensors: one list, for the plan and for the functions that make one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar

from pycutlass.calls import unknown_keywords
from pycutlass.plan.conv_problem import Geometry

__all__ = ["CallOptions", "PlanOptions", "completed", "geometry_in", "takes"]

_Target = TypeVar("_Target", bound=Callable[..., Any])


class PlanOptions(TypedDict, total=False):
    """What a plan of convolutions takes, as `conv2d` documents it."""

    stride: Any
    padding: Any
    dilation: Any
    groups: Any
    alpha: Any
    beta: Any
    epilogue: Any
    epilogue_inputs: Mapping[str, Any] | None
    out: Any
    out_dtype: Any
    accumulator_dtype: Any
    precision: str | None


class CallOptions(PlanOptions, total=False):
    """What a convolution in one line takes, as `conv2d` documents it."""

    plan: Any
    allow_copy: bool
    stream: Any


#: Of options that are left out; of all others None.
_USUAL: Mapping[str, Any] = MappingProxyType(
    {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "allow_copy": False}
)


def takes(options: type[PlanOptions]) -> Callable[[_Target], _Target]:
    """Return what gives a function with ``**options`` a signature that names them, for `help` and messages."""
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_USUAL.get(name), annotation=Any)
        for name in _names(options)
    ]

    def with_signature(function: _Target) -> _Target:
        *own, _ = inspect.signature(function).parameters.values()
        function.__signature__ = inspect.Signature([*own, *named])  # type: ignore[attr-defined]
        return function

    return with_signature


def completed(who: str, given: Mapping[str, Any], options: type[PlanOptions], *own: str) -> dict[str, Any]:
    """Return all options with those that are left out.

    Parameters
    ----------
    who : str
        What was called.
    given : mapping
        What its caller gives beside parameters of its own.
    options : type
        What it takes.
    *own : str
        Those parameters.

    Raises
    ------
    ArgumentTypeError
        Something that it does not take.
    """
    names = _names(options)
    if unknown := set(given) - set(names):
        raise unknown_keywords(who, unknown, (*own, *names))
    return {name: given.get(name, _USUAL.get(name)) for name in names}


def geometry_in(options: Mapping[str, Any]) -> Geometry:
    """Return how a filter goes over an activation."""
    return Geometry(*(options[name] for name in ("stride", "padding", "dilation", "groups")))


def _names(options: type[PlanOptions]) -> list[str]:
    """Return the names of options, those of a plan first."""
    return list(dict.fromkeys((*PlanOptions.__annotations__, *options.__annotations__)))
