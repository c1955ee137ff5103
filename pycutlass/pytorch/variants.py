"""Variants of operators that write into `out`: defined from what the operators are defined from."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import torch

from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.pytorch.operators import (
    check_no_gradient,
    check_no_tangent,
    define,
    plain,
    refusing_by_name,
    was_written,
)
from pycutlass.pytorch.shapes import check_out, result_dtype

__all__ = ["define_out"]

_TYPE = "out_dtype"
_OUT_DTYPE = re.compile(r"(, \*)?, ScalarType\? out_dtype=None$")


def define_out(operator: Any, compute: Callable[..., Any], fake: Callable[..., Any], operand: str | None = None) -> Any:
    """Define the variant with ``out`` of an operator, and return its overload.

    Parameters
    ----------
    operator : overload
        What `define` returned.
    compute : function
        What it was defined with, which takes ``out`` by keyword as well.
    fake : function
        As of `define`.
    operand : str, optional
        The one whose type says that of the result. Without it, the type of `out` is what ``out_dtype`` is otherwise,
        which the variant does not take.
    """
    names = [each.name for each in operator._schema.arguments]
    variant = f"{operator.name().partition('::')[2]}.out"

    def checked(out: torch.Tensor, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Return what is given by name beside `out`, unless that is none for this result."""
        if out is None:  # which torch lets pass for any tensor
            raise ArgumentTypeError("out must be a tensor, got None")
        given = {**dict(zip(names, args, strict=False)), **named}
        check_no_gradient(variant, **given, out=out)
        if operand is None:
            return {**named, _TYPE: out.dtype}
        if given[operand] is not None:
            dtype = result_dtype(operand, given[operand].dtype)
            if out.dtype is not dtype:
                raise ArgumentError(f"out is of {out.dtype} and the result of {dtype}: pass an out of that type")
        return named

    def into(*args: Any, out: torch.Tensor, **named: Any) -> None:
        options = checked(out, args, named)
        check_no_tangent(variant, *args, *named.values(), out)
        compute(*args, **options, out=plain(out))
        was_written(out)

    @wraps(fake)
    def fake_into(*args: Any, out: torch.Tensor, **named: Any) -> None:
        made = fake(*args, **checked(out, args, named))
        check_out(out, tuple(made.shape))

    known = [each for each in signature(fake).parameters.values() if each.name != _TYPE]
    fake_into.__signature__ = signature(fake).replace(  # type: ignore[attr-defined]
        parameters=[*known, Parameter("out", Parameter.KEYWORD_ONLY)]
    )
    return define(_schema(operator), refusing_by_name(into, fake_into), fake_into)


def _schema(operator: Any) -> str:
    """Return the schema of the variant of an operator, as torch writes it."""
    name, _, rest = str(operator._schema).partition("::")[2].partition("(")
    given = _OUT_DTYPE.sub("", rest.rpartition(") -> ")[0])
    return f"{name}.out({given}{', ' if '*, ' in given else ', *, '}Tensor(a!) out) -> ()"
