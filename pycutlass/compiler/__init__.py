"""Compiling operations: `add_module` gives each its artifact, from the cache or from the compilers.

`compile_many` does so one by one, as they get done, and takes failures as results.

Read in this order: ``session`` (the story of one call), ``wanted`` (what it asks for, and what that is built for),
``tools`` (which compilers, and the fields of the cache key), ``build`` (one kernel, both sides), ``schedule`` (many at
once) and ``missing`` (kernels that can be neither found nor made).
"""

from typing import NoReturn as _NoReturn

from pycutlass.calls import missing as _missing
from pycutlass.compiler.session import Compiled, add_module, backend, compile_many, nvcc, nvrtc

__all__ = ["Compiled", "add_module", "backend", "compile_many", "nvcc", "nvrtc"]


def __getattr__(name: str) -> _NoReturn:
    """Say what is near a name that is not here."""
    raise _missing(__name__, name, __all__)
