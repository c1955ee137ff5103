"""Variants of operators that write into `out`: defined from what the operators are defined from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import torch

from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.pytorch.operators import (
    check_no_gradient,
    check_no_tangent,
    define,
    is_repeated,
    plain,
    refusing_by_name,
    tensors_of,
    was_written,
)
from pycutlass.pytorch.shapes import check_out, result_dtype
from pycutlass.pytorch.targets import Expected, check_apart, check_fits, targets_of

__all__ = ["define_out", "define_outs"]

_TYPE = "out_dtype"
_FILL = re.compile(r"(, \*)?, bool fill=True$")
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
        check_apart(("out",), (out,), (), set())  # what lies otherwise is copied to, behind the kernel
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
    return define(_schema(operator), refusing_by_name(into, fake_into), fake_into, repeats=is_repeated(operator))


def define_outs(
    operator: Any,
    compute: Callable[..., Any],
    expected: Callable[..., Sequence[Expected]],
    names: Sequence[str] = ("out",),
    *,
    in_place: Callable[..., Sequence[tuple[int, Any]]] | None = None,
    keeps: bool = False,
) -> Any:
    """Define the variant with ``out`` of an operator that launches more than once, or has several results.

    All is checked before anything is launched, and what kernels cannot write is copied behind them.

    Parameters
    ----------
    operator : overload
        What `define` returned.
    compute : function
        What it was defined with, which takes ``out`` by keyword as well, a list of memory that kernels write.
    expected : function
        Takes what the operator takes and returns what it would return, or raises what is wrong with its tensors.
    names : sequence of str
        Parameters of the variant, one for each result; a list of all of them where the operator returns one.
    in_place : function, optional
        Takes what the operator takes and returns results, by number, each with a tensor that may be the same, since an
        element of it is read before that of the result is written.
    keeps : bool
        Whether a part of a result is left as it is.
    """
    parameters = [each.name for each in operator._schema.arguments]
    variant = f"{operator.name().partition('::')[2]}.out"
    is_list = str(operator._schema).endswith("-> Tensor[]")

    def taken(named: dict[str, Any]) -> tuple[list[Any], tuple[str, ...], dict[str, Any]]:
        """Return what is written, how it is called, and all else that is given by name."""
        missing = [name for name in names if named.get(name) is None]
        if missing:  # which torch lets pass for any tensor
            raise ArgumentTypeError(f"{', '.join(missing)} must be a tensor, got None")
        others = {name: each for name, each in named.items() if name not in names}
        if not is_list:
            return [named[name] for name in names], tuple(names), others
        outs = list(named["out"])
        return outs, tuple(f"out[{number}]" for number in range(len(outs))), others

    def into(*args: Any, **named: Any) -> None:
        outs, called, others = taken(named)
        given = {**dict(zip(parameters, args, strict=False)), **others}
        check_no_gradient(variant, **given, **{name: named[name] for name in names})
        read = tensors_of(given)
        check_no_tangent(variant, *read.values(), *outs)
        results = expected(*args, **others)
        check_fits(called, outs, results, next(iter(read.values())))
        pairs = () if in_place is None else in_place(*args, **others)
        alike = {(called[at], name) for at, same in pairs for name, each in read.items() if each is same}
        check_apart(called, outs, list(read.items()), alike)
        targets = targets_of(outs, results, keep=keeps)
        compute(*args, **others, out=targets)
        for out, target in zip(outs, targets, strict=True):
            if target.data_ptr() != out.data_ptr():
                out.copy_(target)
            was_written(out)

    def fake_into(*args: Any, **named: Any) -> None:
        outs, called, others = taken(named)
        given = {**dict(zip(parameters, args, strict=False)), **others}
        check_no_gradient(variant, **given, **{name: named[name] for name in names})
        check_fits(called, outs, expected(*args, **others), next(iter(tensors_of(given).values())))

    known = signature(expected).parameters.values()
    fake_into.__signature__ = signature(expected).replace(  # type: ignore[attr-defined]
        parameters=[*known, *(Parameter(name, Parameter.KEYWORD_ONLY) for name in names)]
    )
    written = ["Tensor(a!)[] out"] if is_list else [f"Tensor({chr(97 + at)}!) {each}" for at, each in enumerate(names)]
    schema = _schema(operator, ", ".join(written))
    return define(schema, refusing_by_name(into, fake_into), fake_into, repeats=is_repeated(operator))


def _schema(operator: Any, written: str = "Tensor(a!) out") -> str:
    """Return the schema of the variant of an operator, as torch writes it."""
    name, _, rest = str(operator._schema).partition("::")[2].partition("(")
    given = _FILL.sub("", _OUT_DTYPE.sub("", rest.rpartition(") -> ")[0]))
    return f"{name}.out({given}{', ' if '*, ' in given else ', *, '}{written}) -> ()"
