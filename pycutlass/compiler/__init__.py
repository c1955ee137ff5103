"""Compiling operations: `add_module` gives each its artifact, from the cache or from the compilers.

`compile_many` does so one by one, as they get done, and takes failures as results.

Read in this order: ``session`` (the story of one call), ``choice`` (what a kernel is built for and by whom, and the
fields of the cache key), ``installed`` (kernels of the installed package), ``tools`` (finding the compilers), ``build``
(one kernel, both sides), ``schedule`` (several at once), ``many`` (`compile_many`), ``ahead`` (kernels that a file
names) and ``missing`` (kernels that can be neither found nor made).
"""

from typing import NoReturn as _NoReturn

from pycutlass.calls import missing as _missing
from pycutlass.calls import no_attribute as _no_attribute
from pycutlass.compiler.ahead import manifest, warm, write_manifest
from pycutlass.compiler.many import Compiled, compile_many
from pycutlass.compiler.session import add_module, backend, nvcc, nvrtc

__all__ = [
    "Compiled",
    "add_module",
    "backend",
    "compile_many",
    "manifest",
    "nvcc",
    "nvrtc",
    "warm",
    "write_manifest",
]


def __getattr__(name: str) -> _NoReturn:
    """Say what is near a name that is not here."""
    if name in ("build", "compile", "make"):
        raise _no_attribute(f"module {__name__!r}", name, " Did you mean add_module?")
    raise _missing(__name__, name, __all__)
