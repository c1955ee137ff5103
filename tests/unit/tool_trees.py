"""Made-up compilers and headers, and the key that a kernel has with them."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

from trivial_kernels import Operation

from pycutlass import config, toolkit
from pycutlass.cache import make_key
from pycutlass.compiler import tools
from pycutlass.errors import ToolkitError
from pycutlass.toolkit import find

__all__ = ["bare", "key_now", "program", "same_size_and_time", "script", "without_nvcc"]


def key_now() -> str:
    """Return the key that a kernel has with what is found at this moment."""
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    return make_key(found.key_fields(Operation("kernel_a").source(), "sm_80"))


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def program(path: Path, text: str) -> Path:
    """Make a program that prints a text, and is no script."""
    path.unlink(missing_ok=True)
    path.write_bytes(_compiled(text))
    path.chmod(0o755)
    return path


@functools.cache
def _compiled(text: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "program.cpp"), Path(folder, "program")
        source.write_text(f'#include <cstdio>\nint main() {{ std::puts("{text}"); }}')
        subprocess.run(["/usr/bin/g++", source, "-o", made], env={"PATH": os.defpath}, check=True, timeout=60)
        return made.read_bytes()


def same_size_and_time(path: Path, content: str) -> None:
    """Change what is in `path`, and nothing of its size and time of modification."""
    before = path.stat()
    assert before.st_size == len(content)
    path.write_text(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def bare(monkeypatch) -> None:
    """Leave nothing installed."""
    monkeypatch.delenv("PYCUTLASS_BACKEND")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(config, "package_directories", lambda package: [])
    roots = find._all_cuda_roots
    usual = Path("/usr/local/cuda")
    monkeypatch.setattr(find, "_all_cuda_roots", lambda *given: (root for root in roots(*given) if root[0] != usual))


def without_nvcc(monkeypatch) -> None:
    def refuse(memo):
        raise ToolkitError("nvcc cannot be found", absent=True)

    monkeypatch.setattr(tools, "_FINDERS", {**tools._FINDERS, "nvcc": refuse})
