"""Linear combinations that no functor has: with a bias beside C, and with scales in memory, as epilogue functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pycutlass.calls import shown
from pycutlass.epilogue import (
    Activation,
    Column,
    EpilogueFunction,
    LinearCombination,
    PerBatch,
    Row,
    Scalar,
    Source,
    epilogue_function,
)
from pycutlass.errors import ArgumentError, DescriptionError
from pycutlass.types import Element, element

__all__ = ["Composed", "TypedFunction", "both_given", "composed"]


@dataclass(frozen=True)
class Composed:
    """An epilogue function that stands for a linear combination, with types of its tensors where those are not D's.

    Attributes
    ----------
    function : EpilogueFunction
        What is computed.
    types : tuple of (str, element type)
        Of tensors beside C and D, by name.
    activation : Activation or None
        What it ends with.
    """

    function: EpilogueFunction
    types: tuple[tuple[str, Any], ...] = ()
    activation: Activation | None = None

    @property
    def graph(self) -> Any:
        """What is computed."""
        return self.function.graph

    def typed(self, out: Element, length: int, accumulator: Element, compute: Any) -> Any:
        """Return the epilogue for these types, which are those of the functor in whose place it stands.

        Raises
        ------
        ArgumentError
            It would be computed in integers, which epilogue functions are not.
        DescriptionError
            The activation is to be computed in another type.
        """
        if element(compute).is_integer:
            raise ArgumentError(
                f"the result is of {out.dtype_name}, and {self.function.name} is computed in fractions: pass "
                f"out_dtype=cutlass.float32, or add c and bias beforehand and give the sum as c"
            )
        named = None if self.activation is None else self.activation.element_compute
        if named is not None and element(named) is not element(compute):
            raise DescriptionError(
                f"the activation is to compute in {element(named)}, the epilogue in {element(compute)}: make them the "
                f"same"
            )
        return self.function(out.tag, length, accumulator.tag, compute, **dict(self.types))


@dataclass(frozen=True)
class TypedFunction:
    """An epilogue function with types of its tensors, while the plan says those of D and of what is computed in.

    Attributes
    ----------
    function : EpilogueFunction
        What is computed.
    types : tuple of (str, element type)
        Of tensors beside C and D, by name.
    """

    function: EpilogueFunction
    types: tuple[tuple[str, Any], ...] = ()

    @property
    def graph(self) -> Any:
        """What is computed."""
        return self.function.graph

    def typed(self, out: Element, length: int, accumulator: Element, compute: Any) -> Any:
        """Return the epilogue for these types."""
        return self.function(out.tag, length, accumulator.tag, compute, **dict(self.types))

    def __repr__(self) -> str:
        return repr(self.function)


def both_given(what: str, epilogue: Any) -> ArgumentError:
    """Return the error of what would be added to an epilogue that says itself what it computes."""
    return ArgumentError(
        f"{what} and the epilogue {shown(epilogue)} are given, which says itself what it computes: write it as an "
        f"epilogue function with all of them, whose tensors go into epilogue_inputs, or give an activation"
    )


def composed(
    epilogue: Any, *, what: str, scales: tuple[tuple[str, Any], ...] = (), reads_c: bool = False, has_bias: bool = False
) -> Composed:
    """Return what computes activation(alpha * accum * scales + beta * C + bias); beta is that of a bias without C.

    Parameters
    ----------
    epilogue : optional
        An activation, or None; or what was composed of scales, which is extended.
    what : str
        What of a call asks for it, for messages.
    scales : tuple of (str, element type)
        Those that are in memory, by name: ``row_scale``, ``column_scale``, ``scale_a``, ``scale_b``.
    reads_c, has_bias : bool
        Whether C is added, and a bias called ``bias``.

    Raises
    ------
    ArgumentError
        Another epilogue, which says itself what it computes.
    """
    if isinstance(epilogue, Composed):  # of scales alone
        scales, epilogue = epilogue.types, epilogue.activation
    if isinstance(epilogue, type) and issubclass(epilogue, Activation):
        epilogue = epilogue()
    if epilogue is LinearCombination:
        epilogue = None
    if epilogue is not None and not isinstance(epilogue, Activation):
        raise both_given(what, epilogue)
    activation = None if epilogue is None else type(epilogue)
    function = _function(activation, tuple(name for name, _ in scales), reads_c, has_bias)
    return Composed(function, scales, epilogue)


_MARKERS = {"row_scale": Column, "column_scale": Row, "scale_a": PerBatch, "scale_b": PerBatch}


@lru_cache(maxsize=512)  # with ten activations there are 360
def _function(
    activation: type[Activation] | None, scales: tuple[str, ...], reads_c: bool, has_bias: bool
) -> EpilogueFunction:
    """Return the traced function, whose parameters are what it reads."""
    markers: dict[str, tuple[Any, Any]] = {name: (_MARKERS[name], inspect.Parameter.empty) for name in scales}
    markers |= {"c": (Source, inspect.Parameter.empty)} if reads_c else {}
    markers |= {"bias": (Row, inspect.Parameter.empty)} if has_bias else {}
    markers["alpha"] = (Scalar, 1.0)
    markers |= {"beta": (Scalar, 1.0)} if reads_c or has_bias else {}
    extra = () if activation is None else activation.extra
    markers |= {name: (Scalar, default) for name, default in extra}

    def linear(accum: Any, *values: Any) -> Any:
        given = dict(zip(markers, values, strict=True))
        x = accum
        for name in scales:
            x = x * given[name]
        x = given["alpha"] * x
        if reads_c:
            x = x + given["beta"] * given["c"]
        if has_bias:
            x = x + (given["bias"] if reads_c else given["beta"] * given["bias"])
        return x if activation is None else activation(x, *(given[name] for name, _ in extra))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = [inspect.Parameter("accum", kind)]
    signature += [inspect.Parameter(n, kind, annotation=mark, default=usual) for n, (mark, usual) in markers.items()]
    function: Callable[..., Any] = linear
    function.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    parts = (*(["scaled"] if scales else []), *(["source"] if reads_c else []), *(["bias"] if has_bias else []))
    function.__name__ = "_".join((*parts, *([] if activation is None else [activation.__name__])))
    return epilogue_function(function)
