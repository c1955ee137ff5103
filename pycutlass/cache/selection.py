"""Which kernels are meant: by names or beginnings of keys, by beginnings of names, by targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pycutlass.cache.store import Entry
from pycutlass.calls import shown
from pycutlass.errors import ArgumentTypeError, CacheError
from pycutlass.integers import items_of

__all__ = ["narrowed", "selected"]

_SHORTEST_PREFIX = 4
_MOST_TEXTS = 10_000


def selected(entries: Sequence[Entry], selectors: Iterable[str], where: Path) -> list[Entry]:
    """Return those of `entries`, which are in the database `where`, that have these names or beginnings of keys.

    Raises
    ------
    ArgumentTypeError
        If `selectors` is not a list of strings.
    CacheError
        If a selector fits no kernel.
    """
    if isinstance(selectors, str) or not isinstance(selectors, Iterable):
        raise ArgumentTypeError(f"keys are a list of names or beginnings of keys, got {shown(selectors)}")
    chosen: dict[str, Entry] = {}
    for selector in selectors:
        if not isinstance(selector, str):
            raise ArgumentTypeError(f"kernels are selected by name or by the beginning of a key, got {shown(selector)}")
        selector = str.__str__(selector)  # a class that is derived from str may refuse to be compared
        fitting = {entry.key: entry for entry in entries if _fits(selector, entry)}
        if not fitting:
            raise CacheError(
                f"no kernel in {where} has the name {selector!r} or a key that begins with it (at least "
                f"{_SHORTEST_PREFIX} digits); `pycutlass cache ls` shows what there is"
            )
        chosen |= fitting
    return list(chosen.values())


def narrowed(
    entries: Sequence[Entry], prefix: str | Iterable[str], target: str | Iterable[str] | None, where: Path
) -> list[Entry]:
    """Return those of `entries` whose names begin with `prefix`, or one of several, and that were built for `target`.

    Raises
    ------
    ArgumentTypeError
        If `prefix` or `target` is neither a string nor a list of them.
    CacheError
        If a prefix or a target fits no kernel, where there are any.
    """
    prefixes, targets = _texts("prefix", prefix), _texts("target", () if target is None else target)
    chosen = [entry for entry in entries if entry.name.startswith(prefixes)]
    for each in prefixes if entries else ():
        if not any(entry.name.startswith(each) for entry in entries):
            raise CacheError(f"none of the kernels chosen from {where} has a name that begins with {each!r}")
    there = sorted({entry.target for entry in chosen})
    for each in targets if entries else ():
        if each not in there:
            named = f"has a name that begins with {' or '.join(map(repr, prefixes))} and " if any(prefixes) else ""
            raise CacheError(
                f"none of the kernels chosen from {where} {named}was built for {each}; there are kernels "
                f"for {', '.join(there)}"
            )
    return [entry for entry in chosen if not targets or entry.target in targets]


def _texts(name: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """Return one text, or a list of them, as a tuple."""
    texts = (value,) if isinstance(value, str) else items_of(value, _MOST_TEXTS)
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise ArgumentTypeError(f"{name} must be a string, or a list of strings; got {shown(value)}")
    return tuple(map(str.__str__, texts))


def _fits(selector: str, entry: Entry) -> bool:
    return selector == entry.name or (len(selector) >= _SHORTEST_PREFIX and entry.key.startswith(selector))
