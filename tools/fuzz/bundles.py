"""Kernels of a fuzz that are compiled on one machine and run on another, whose GPU then waits for no compiler."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pycutlass
from pycutlass.cache import KernelCache

__all__ = ["build", "take"]


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
    """Take in the kernels of `bundle`, and compile none from now on.

    What other compilers made is found where there are none, so that g++ is hidden from this process.
    """
    KernelCache().import_(bundle)
    os.environ["PATH"] = ""
    os.environ.pop("CXX", None)
