"""Kernels of a fuzz that are compiled on one machine and run on another, whose GPU then waits for no compiler."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pycutlass
from pycutlass.cache import KernelCache

__all__ = ["Content", "build", "hide_compilers", "take", "unpack"]

_MOST_IN_A_ROW = 500  # kernels that a bundle lacks, behind which it is not of this seed, or there are no more in it


class Content:
    """What a bundle has, by the names of kernels, and what of it has been asked for."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._unmet = set(self._names)
        self._missing = 0

    def has(self, names: Iterable[str]) -> bool:
        """Return whether all of some kernels are there."""
        asked = set(names)
        found = asked <= self._names
        self._unmet -= asked if found else set()
        self._missing = 0 if found else self._missing + 1
        return found

    @property
    def is_exhausted(self) -> bool:
        """Whether everything has been asked for, or many in a row that are not there."""
        return not self._unmet or self._missing >= _MOST_IN_A_ROW


def build(operations: Sequence[Any], bundle: Path) -> list[str]:
    """Compile operations for an H100 or H200, write their kernels to `bundle`, and return what failed."""
    keys: set[str] = set()
    failures = []
    for target, native in (("sm_90a", True), ("sm_90", False)):
        chosen = [each for each in operations if each.is_sm90 is native]
        for done in pycutlass.compiler.compile_many(chosen, target=target):
            if isinstance(done.result, Exception):
                failures.append(str(done.result)[:2000])
        # With all that is compiled beside an operation: kernels of partial sums, where there are reductions.
        parts = [part for each in chosen for part in each.parts(chosen)]
        keys |= {artifact.key for part in parts for artifact in part.artifacts.values()}
    KernelCache().export(bundle, keys)
    return failures


def take(bundle: Path) -> None:
    """Take in the kernels of `bundle`, and compile none from now on."""
    KernelCache().import_(bundle)
    hide_compilers()


def unpack(bundle: Path, directory: Path) -> Content:
    """Take the kernels of `bundle` into the cache of a directory, and return which they are."""
    cache = KernelCache(directory)
    taken = cache.import_(bundle)
    keys = {*taken.added, *taken.present}
    return Content(entry.name for entry in cache.entries() if entry.key in keys)


def hide_compilers() -> None:
    """Hide g++ from this process, to which the cache then gives what other compilers made, too."""
    os.environ["PATH"] = ""
    os.environ.pop("CXX", None)
