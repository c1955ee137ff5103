"""What CUTLASS's headers say, asked by programs for the host."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pycutlass.source import KernelSource
from pycutlass.toolchain import HostCompiler, Processes

#: Whether all of a proof is wanted, and not a sample.
WHOLE = os.environ.get("PROOF") == "whole"


def constants(compiler: HostCompiler, text: str, expressions: Sequence[str]) -> list[int]:
    """Return what constant expressions are behind `text`, as unsigned integers."""
    values = ",\n  ".join(f"unsigned({expression})" for expression in expressions)
    source = f"{text}\nPYCUTLASS_EXPORT unsigned const constants[] = {{\n  {values}}};\n"
    product = compiler.compile(KernelSource("constants", source, 90, True), "sm_90a", Processes(1, 8 << 30))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "constants.so"
        path.write_bytes(product.binary)
        return list((ctypes.c_uint * len(expressions)).in_dll(ctypes.CDLL(str(path)), "constants"))
