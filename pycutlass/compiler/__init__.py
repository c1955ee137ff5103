"""Compiling operations: `add_module` gives each its artifact, from the cache or from the compilers.

Read in this order: ``session`` (the story of one call), ``target`` (what a kernel is built for), ``tools`` (which
compilers, and the fields of the cache key), ``build`` (one kernel, both sides) and ``schedule`` (many at once).
"""

from __future__ import annotations

from typing import NoReturn

from pycutlass.calls import missing
from pycutlass.compiler.session import add_module, backend, nvcc, nvrtc

__all__ = ["add_module", "backend", "nvcc", "nvrtc"]


def __getattr__(name: str) -> NoReturn:
    """Say what is near a name that is not here."""
    raise missing(__name__, name, __all__)
