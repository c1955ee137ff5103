"""The operators in C++, compiled once for all tests that have them: torch's headers take a compiler ten seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_wide import made_once

from pycutlass.pytorch import build_native
from pycutlass.pytorch.native import _built

__all__ = ["handed_out", "of_host_tensors", "shipped"]


def shipped(factory: pytest.TempPathFactory) -> Path:
    """Return the operators as they ship."""
    return made_once(factory, "operators", lambda folder: build_native(folder / "operators.so")) / "operators.so"


def of_host_tensors(factory: pytest.TempPathFactory) -> Path:
    """Return those that take tensors of the host as well."""

    def build(folder: Path) -> None:
        _built(folder / "operators.so", "-DPYCUTLASS_HOST_TENSORS")

    return made_once(factory, "operators-of-host-tensors", build) / "operators.so"


def handed_out(operators: Path, folder: Path) -> str:
    """Return the command of a host compiler that takes no time: whatever it is given, it writes these operators."""
    compiler = folder / "compiler"
    compiler.write_text(f'#!/bin/sh\nfor last; do :; done\ncp "{operators}" "$last"\n')
    compiler.chmod(0o755)
    return str(compiler)
