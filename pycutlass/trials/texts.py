"""JSON that is the same text whenever it means the same, and what is refused of JSON that others have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError

__all__ = ["canonical", "compact", "parsed"]

_LONGEST = 1 << 16  # characters of a problem or a candidate; real ones have hundreds


def canonical(name: str, value: Any) -> str:
    """Return what describes `name`, a problem perhaps, as canonical JSON: sorted, without spaces, in ASCII.

    Parameters
    ----------
    name : str
        What is described, for messages.
    value : str or mapping
        An object of JSON.

    Raises
    ------
    ArgumentError
        It is not an object of JSON, names a field twice, has a number that is not finite, or is too long.
    ArgumentTypeError
        It is neither text nor a mapping, or holds something that JSON cannot.
    """
    if isinstance(value, Mapping):
        try:
            value = json.dumps(dict(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentTypeError(f"{name} is made of what JSON has, but {shown(value)} is not: {error}") from error
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name} must be a mapping, or the text of a JSON object; got {shown(value)}")
    return _canonical(name, str.__str__(value))


@lru_cache(maxsize=1024)  # one problem has hundreds of trials
def _canonical(name: str, text: str) -> str:
    if len(text) > _LONGEST:
        raise ArgumentError(f"{name} must have at most {_LONGEST:,} characters as JSON, got {len(text):,}")
    try:
        return compact(parsed(text))
    except ValueError as error:
        raise ArgumentError(f"{name} must be a JSON object, got {shown(text)}: {error}") from error


def compact(value: Mapping[str, Any]) -> str:
    """Return `value` as JSON, the same text for equal values.

    Raises
    ------
    ValueError
        It holds a number that is not finite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parsed(text: str) -> dict[str, Any]:
    """Return the JSON object that `text` is.

    Raises
    ------
    ValueError
        It is no such thing, is nested too deeply, names a field twice or has a constant that JSON lacks.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it is {type(value).__name__}, not an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {twice!r} twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
