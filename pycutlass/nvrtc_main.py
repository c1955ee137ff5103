"""NVRTC as a command: ``python -I nvrtc_main.py PACKAGES LIBRARY SOURCE OUTPUT FLAGS...``.

It runs in a process of its own, so that a crash or 3 GB of memory end with it, kernels compile in parallel, and a
failure can be repeated from a shell. It is run by its path and imports, beside the standard library, ``cuda.bindings``
from the directory PACKAGES alone. Beside OUTPUT, the cubin, it writes the PTX, with the suffix ``.ptx``.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Any

__all__ = ["main", "mended_headers"]


def main(packages: str, library: str, source: str, output: str, *flags: str) -> int:
    """Compile the file `source` into the cubin `output` and return the exit status: 0, or 1 if it does not compile."""
    nvrtc = _load(packages, library)
    headers = mended_headers(flags)
    names, texts = [name.encode() for name in headers], list(headers.values())
    for name in headers:
        print(f"{name} is compiled with the alignment of cuda.h")
    text = Path(source).read_bytes()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(text, os.fsencode(source), len(headers), texts, names))
    status, *_ = nvrtc.nvrtcCompileProgram(program, len(flags), [os.fsencode(flag) for flag in flags])
    print(_product(nvrtc, program, "ProgramLog").rstrip(b"\0\n ").decode(errors="replace"))
    if status:
        print(f"nvrtcCompileProgram: {status.name}")
        return 1
    Path(output).write_bytes(_product(nvrtc, program, "CUBIN"))
    Path(output).with_suffix(".ptx").write_bytes(_product(nvrtc, program, "PTX").rstrip(b"\0"))
    return 0


def mended_headers(flags: tuple[str, ...]) -> dict[str, bytes]:
    """Return the headers, by the name they are included by, that NVRTC must not take as they are on disk.

    For NVRTC, CUTLASS declares a tensor map of its own, aligned to 64 bytes. Where CUDA's is aligned to more, the
    parameters of a Hopper kernel would lie elsewhere than the host side puts them.
    """
    name = "cute/arch/copy_sm90_desc.hpp"
    header, driver_api = _included(flags, name), _included(flags, "cuda.h")
    declared = re.search(rb"struct\s+CUtensorMap_st\s*\{.*?alignas\((\d+)\)", driver_api, re.DOTALL)
    own = rb"(= *struct +alignas\()(\d+)(\) *\{ *char +bytes\[128\]; *\};)"
    if declared is None or all(match[2] == declared[1] for match in re.finditer(own, header)):
        return {}
    return {name: re.sub(own, rb"\g<1>" + declared[1] + rb"\g<3>", header)}


def _included(flags: tuple[str, ...], name: str) -> bytes:
    """Return the header that ``#include <name>`` finds, or nothing."""
    places = (Path(flag.removeprefix("-I")) / name for flag in flags if flag.startswith("-I"))
    return next((place.read_bytes() for place in places if place.is_file()), b"")


def _load(packages: str, library: str) -> Any:
    """Return the module that calls NVRTC, which calls `library` and no other that it might find by itself."""
    # NVRTC opens its builtins by their bare name; both are found if they are loaded already.
    for file in [*sorted(Path(library).resolve().parent.glob("libnvrtc-builtins.so.[0-9]*")), library]:
        ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)
    sys.path.append(packages)
    from cuda.bindings import nvrtc
    from cuda.pathfinder import load_nvidia_dynamic_lib

    used = load_nvidia_dynamic_lib("nvrtc").abs_path
    if used is None or not Path(used).samefile(library):
        sys.exit(f"cuda.bindings calls {used}, not {library}")
    return nvrtc


def _product(nvrtc: Any, program: Any, kind: str) -> bytes:
    """Return the log, the cubin or the PTX of `program`."""
    data = bytes(_checked(nvrtc, getattr(nvrtc, f"nvrtcGet{kind}Size")(program)))
    _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{kind}")(program, data))  # which writes into them
    return data


def _checked(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """Return what a call gave besides its status, which must be success."""
    status, *given = answer
    if status:
        sys.exit(f"NVRTC: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return given[0] if given else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
