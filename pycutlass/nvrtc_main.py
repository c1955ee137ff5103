"""NVRTC as a command: ``python -I nvrtc_main.py LIBRARY SOURCE OUTPUT FLAGS...``.

It runs in a process of its own, so that a crash or 3 GB of memory end with it, kernels compile in parallel, and a
failure can be repeated from a shell. It is run by its path and imports the standard library alone. Beside OUTPUT, the
cubin, it writes the PTX, with the suffix ``.ptx``.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

__all__ = ["main", "mended_headers"]


def main(library: str, source: str, output: str, *flags: str) -> int:
    """Compile the file `source` into the cubin `output` and return the exit status: 0, or 1 if it does not compile."""
    # NVRTC opens this one by its bare name, which finds it if it is loaded already.
    for builtins in sorted(Path(library).resolve().parent.glob("libnvrtc-builtins.so.[0-9]*")):
        ctypes.CDLL(str(builtins))
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    program = ctypes.c_void_p()
    headers = mended_headers(flags)
    names, texts = [name.encode() for name in headers], list(headers.values())
    for name in headers:
        print(f"{name} is compiled with the alignment of cuda.h")
    text = Path(source).read_bytes()
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text, os.fsencode(source), len(headers), _strings(texts), _strings(names)
    )
    _check(nvrtc, "nvrtcCreateProgram", created)
    options = _strings([os.fsencode(flag) for flag in flags])
    status = nvrtc.nvrtcCompileProgram(program, len(flags), options)
    print(_product(nvrtc, program, "ProgramLog").rstrip(b"\0\n ").decode(errors="replace"))
    if status:
        print(f"nvrtcCompileProgram: {nvrtc.nvrtcGetErrorString(status).decode()}")
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


def _product(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, kind: str) -> bytes:
    """Return the log, the cubin or the PTX of `program`."""
    size = ctypes.c_size_t()
    _check(nvrtc, kind, getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(max(size.value, 1))
    _check(nvrtc, kind, getattr(nvrtc, f"nvrtcGet{kind}")(program, data))
    return data.raw[: size.value]


def _check(nvrtc: ctypes.CDLL, call: str, status: int) -> None:
    if status:
        sys.exit(f"{call}: {nvrtc.nvrtcGetErrorString(status).decode()}")


def _strings(texts: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*texts)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
