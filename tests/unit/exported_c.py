"""Libraries and programs of kernels for the stand-in driver, and a C compiler for tests of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pycutlass
from pycutlass import TensorSpec
from pycutlass.exports.building import include_flags

__all__ = ["WARNINGS", "any_plan", "compiled", "ldd"]

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")


def compiled(text: str, folder: Path, *options: str, language: str = "c") -> Path:
    """Return a program of one text, compiled with warnings as errors."""
    source, output = folder / ("program.cpp" if language == "c++" else "program.c"), folder / f"program-{language}"
    source.write_text(text)
    compiler, standard = ("g++", "-std=c++17") if language == "c++" else ("gcc", "-std=c11")
    command = [compiler, standard, *WARNINGS, *include_flags(), str(source), *options, "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


def ldd(path: Path) -> set[str]:
    """Return the libraries that a program or a shared object is linked with, but for the loader's own."""
    said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in said.splitlines()}
    return {name.partition(".so")[0] for name in names if not name.startswith(("linux-vdso", "/lib"))}


def any_plan(**options: Any) -> pycutlass.Gemm:
    """Return a plan of a small GEMM."""
    return pycutlass.Gemm(TensorSpec((64, 32), "float32"), TensorSpec((32, 16), "float32"), **options)
