"""The compilers: nvcc and NVRTC for the device side of a kernel, g++ for its host side.

``signature()`` says who it is, ``flags(target)`` what decides its product, ``command(...)`` how it is run and
``compile(...)`` runs it. Each runs in processes of their own, in a private directory that is gone afterwards.
Read ``compilers`` first; ``processes`` is how they are run.
"""

from pycutlass.toolchain.compilers import (
    Compiler,
    HostCompiler,
    Nvcc,
    Nvrtc,
    Product,
    PtxOfNvcc,
    PtxOfNvrtc,
    reproduce,
)
from pycutlass.toolchain.processes import Processes, StoppedError

__all__ = [
    "Compiler",
    "HostCompiler",
    "Nvcc",
    "Nvrtc",
    "Processes",
    "Product",
    "PtxOfNvcc",
    "PtxOfNvrtc",
    "StoppedError",
    "reproduce",
]
