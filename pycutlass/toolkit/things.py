"""What can be found: a CUTLASS source tree, and a CUDA toolkit."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pycutlass.errors import ToolkitError
from pycutlass.toolkit.files import Memo, content_digest, is_directory, is_file, stat_digest, without_memo

__all__ = ["KNOWN_CUDA", "KNOWN_CUTLASS", "Cutlass", "Toolkit", "numbers_defined"]

# The generated text is written for these and tested with them.
KNOWN_CUTLASS = "4.2"
KNOWN_CUDA = "13.0"


@dataclass(frozen=True)
class Cutlass:
    """A CUTLASS source tree: its root, its version (for example ``"4.2.0"``) and what led to it."""

    root: Path
    version: str
    found_via: str

    @property
    def includes(self) -> tuple[Path, ...]:
        """Include directories: all that `digest` covers, and no other."""
        return (self.root / "include",)

    @property
    def note(self) -> str:
        """What to know about this version; empty for the one that PyCUTLASS is written for."""
        if f"{self.version}.".startswith(f"{KNOWN_CUTLASS}."):
            return ""
        return (
            f"the CUTLASS in {self.root} is version {self.version}; PyCUTLASS is written for and tested with "
            f"{KNOWN_CUTLASS}, so kernels may not compile, or compute something else. Use nvidia-cutlass==4.2.0.0"
        )

    def digest(self, memo: Memo = without_memo) -> str:
        """Return the SHA-256 of all headers, remembered by their stat.

        Raises
        ------
        ToolkitError
            If one cannot be read.
        """
        return _remembered_digest("cutlass headers", self, self.includes, memo, "CUTLASS_PATH")


@dataclass(frozen=True)
class Toolkit:
    """CUDA headers, and the device compilers that belong to them.

    Parameters
    ----------
    root : Path
        Root of the toolkit.
    include : Path
        The directory that holds ``cuda_runtime.h``.
    version : str
        CUDA version of the headers, for example ``"13.0"``.
    found_via : str
        The variable, search path or package that led here.
    nvcc, nvrtc : Path or None
        The compiler driver, and the NVRTC library, where they are part of it.
    """

    root: Path
    include: Path
    version: str
    found_via: str
    nvcc: Path | None
    nvrtc: Path | None

    @property
    def includes(self) -> tuple[Path, ...]:
        """Include directories: CUDA's own, and that of its C++ library (CUTLASS includes from both levels)."""
        library = self.include / "cccl"
        return (self.include, *([library] if is_directory(library) else []))

    def digest(self, memo: Memo = without_memo) -> str:
        """Return the SHA-256 of the headers that kernels may include, remembered by their stat.

        Raises
        ------
        ToolkitError
            If one cannot be read.
        """
        return _remembered_digest("cuda headers", self, self.headers, memo, "CUDA_HOME")

    @property
    def headers(self) -> list[Path]:
        """Return files and directories of CUDA itself.

        Libraries of which kernels include nothing have theirs beside them, and change more often.
        """
        try:
            own = sorted(place for place in self.include.iterdir() if _OF_CUDA.fullmatch(place.name))
        except OSError as error:
            raise _unreadable(self, error, "CUDA_HOME") from error
        places = [*own, self.include / "cccl" / "cuda", self.include / "cccl" / "nv"]
        return [place for place in places if is_file(place) or is_directory(place)]

    @property
    def headers_version(self) -> str:
        """Version of the headers and of the C++ library among them."""
        places = ("cccl/cuda/std/__cccl/version.h", "cuda/std/__cccl/version.h")
        found = (numbers_defined(self.include / place).get("CCCL_VERSION") for place in places)
        return f"{self.version}, C++ library {next(filter(None, found), 'unknown')}"

    @property
    def note(self) -> str:
        """What to know about this version; empty for the one that PyCUTLASS is written for."""
        if self.version == KNOWN_CUDA:
            return ""
        known_major = KNOWN_CUDA.partition(".")[0]
        worse = "" if self.version.partition(".")[0] == known_major else ", and only CUDA 13 is expected to work"
        return (
            f"the CUDA toolkit in {self.root} is version {self.version}; PyCUTLASS is tested with {KNOWN_CUDA}{worse}. "
            f"Set CUDA_HOME to another toolkit, or pip install 'pycutlass[nvcc]'"
        )


def numbers_defined(header: Path) -> dict[str, str]:
    """Return what `header` defines as plain numbers near its top, by macro; nothing if it cannot be read."""
    try:
        descriptor = os.open(header, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe by this name would not end
    except OSError:
        return {}
    try:
        top = os.read(descriptor, 16384)
    except OSError:
        return {}
    finally:
        os.close(descriptor)
    return {name.decode(): number.decode() for name, number in _NUMBER.findall(top)}


_NUMBER = re.compile(rb"#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)")
_OF_CUDA = re.compile(
    r"crt|cuda|nv|cooperative_groups|"
    r"(cuda|cuComplex|cooperative_groups|builtin_types|channel_descriptor|common_functions|device_|driver_|host_|"
    r"library_types|math_|mma|sm_|surface_|texture_|vector_)\w*\.(h|hpp)"
)


def _remembered_digest(kind: str, found: Cutlass | Toolkit, places: Sequence[Path], memo: Memo, variable: str) -> str:
    try:
        return memo(kind, str(found.root), stat_digest(places), lambda: content_digest(places))
    except OSError as error:
        raise _unreadable(found, error, variable) from error


def _unreadable(found: Cutlass | Toolkit, error: OSError, variable: str) -> ToolkitError:
    what = "CUTLASS" if isinstance(found, Cutlass) else "CUDA toolkit"
    return ToolkitError(
        f"the {what} in {found.root} ({found.found_via}) cannot be read: {error}. Make it readable, or set {variable} "
        f"to another one."
    )
