"""The headers of kernels, compiled once for the host sides of all of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from run_wide import made_once

from pycutlass import device, toolkit
from pycutlass.compiler.tools import find_tools
from pycutlass.toolchain import HostCompiler

__all__ = ["are_wanted", "compiled_headers", "linked"]

#: Each includes CUTLASS.
_HEADERS = ("gemm_universal", "gemm_visitor", "gemm_grouped", "conv2d", "reduction", "gemm_sm90", "gemm_grouped_sm90")
_ROOT = Path(__file__).parents[2]


def are_wanted() -> bool:
    """Return whether whole programs are to have them: a GPU runs what a user compiles."""
    return os.environ.get("HEADERS") != "plain" and not device.available()


def compiled_headers(factory: pytest.TempPathFactory) -> Path:
    """Return a header that stands for those of all kernels, compiled for host sides by the first that wants it."""
    return made_once(factory, "headers", _compile) / "kernels.h"


def _compile(directory: Path) -> None:
    """Have them in `directory`; they are kept from one run to the next, since their content is part of keys."""
    found = find_tools("nvcc", toolkit.without_memo)
    identity = hashlib.sha256(repr((sorted(found.fields.items()), found.host.includes, _HEADERS)).encode()).hexdigest()
    kept = _ROOT / "build" / "compiled headers" / identity[:16]
    if not kept.exists():
        shutil.rmtree(kept.parent, ignore_errors=True)  # of others
        making = kept.with_name(f"{kept.name}-{os.getpid()}")
        making.mkdir(parents=True)
        _compile_in(making, found.host)
        with contextlib.suppress(OSError):  # another run was faster
            making.rename(kept)
    for name in ("kernels.h", "kernels.h.gch"):
        (directory / name).symlink_to(kept / name)


def _compile_in(directory: Path, plain: HostCompiler) -> None:
    header = directory / "kernels.h"
    header.write_text("".join(f'#include "pycutlass/{name}.h"\n' for name in _HEADERS))
    command = plain.command(header, directory / "kernels.h.gch", "sm_80")
    kept = [word for word in command if word != "-shared" and not word.startswith("-Wl,")]
    kept[kept.index("c++")] = "c++-header"
    subprocess.run(kept, check=True)
    header.write_text("#error what was compiled does not fit\n")  # else it would be read, silently


def linked(header: Path) -> Path:
    """Return a path of `header` that is the same in each run: it is part of the keys of what is compiled with it."""
    link = _ROOT / "build" / "headers"
    link.parent.mkdir(exist_ok=True)
    new = link.with_name(f"headers-{os.getpid()}")
    new.symlink_to(header.parent)
    new.replace(link)
    return link / header.name
