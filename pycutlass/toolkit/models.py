"""What can be found: a CUTLASS source tree, and a CUDA toolkit."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pycutlass import _core
from pycutlass.errors import ToolkitError
from pycutlass.toolkit.files import Memo, content_digest, is_directory, is_file, without_memo
from pycutlass.toolkit.trace import look, look_at_trees

__all__ = ["COMPARED_CUTLASS", "KNOWN_CUDA", "KNOWN_CUTLASS", "Cutlass", "Toolkit", "numbers_defined"]

# The generated text is written for these and tested with them.
KNOWN_CUTLASS = "4.2"
KNOWN_CUDA = "13.0"
#: A later CUTLASS, from which one kernel of each kind is built and compared (tools/compare_cutlass.py), and no more.
COMPARED_CUTLASS = "4.7"


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
        if self._is(KNOWN_CUTLASS):
            return ""
        found = (
            f"the CUTLASS in {self.root} is version {self.version}; PyCUTLASS is written for and tested with "
            f"{KNOWN_CUTLASS}"
        )
        if self._is(COMPARED_CUTLASS):
            return (
                f"{found}. Of {COMPARED_CUTLASS} it is known that kernels of every kind compile with as few spills "
                f"(tools/compare_cutlass.py builds one of each and compares), no more: check results. {self._another}"
            )
        return f"{found}, so kernels may not compile, or compute something else. {self._another}"

    def _is(self, release: str) -> bool:
        """Whether this is a version of a release such as "4.2"."""
        return f"{self.version}.".startswith(f"{release}.")

    @property
    def _another(self) -> str:
        """How to have another version: what is installed counts where nothing comes before it."""
        if self.found_via.startswith("package"):
            return "pip install nvidia-cutlass==4.2.0.0, or set CUTLASS_PATH to a checkout of CUTLASS 4.2"
        return "Set CUTLASS_PATH to a checkout of CUTLASS 4.2"

    def look(self) -> _core.FileStates:
        """Begin to look at the state of all headers, for `digest`; other threads do so from now on."""
        return _core.FileStates([os.fsencode(place) for place in self.includes])

    def digest(self, memo: Memo = without_memo, states: _core.FileStates | None = None) -> str:
        """Return the SHA-256 of all headers, remembered by their `states`.

        Raises
        ------
        ToolkitError
            If one cannot be read.
        """
        return _remembered_digest("cutlass headers", self, memo, states or self.look())


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

    def look(self) -> _core.FileStates:
        """Begin to look at the state of the headers that kernels may include, for `digest`, in other threads.

        Raises
        ------
        ToolkitError
            If their directory cannot be read.
        """
        return _core.FileStates([os.fsencode(place) for place in self.headers])

    def digest(self, memo: Memo = without_memo, states: _core.FileStates | None = None) -> str:
        """Return the SHA-256 of the headers that kernels may include, remembered by their `states`.

        Raises
        ------
        ToolkitError
            If one cannot be read.
        """
        return _remembered_digest("cuda headers", self, memo, states or self.look())

    @property
    def headers(self) -> list[str]:
        """Return files and directories of CUDA itself, and all that nothing is known of.

        That may come before a header of the system: kernels are compiled with these directories first. Libraries of
        which kernels include nothing have theirs beside them, and change more often.
        """
        try:
            return [place for folder in self.includes for place in _headers_in(folder)]
        except OSError as error:
            raise _unreadable(self, error) from error

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
            f"Set {self.variable} to another toolkit{self._or_install}"
        )

    @property
    def variable(self) -> str:
        """The variable that leads to another toolkit: the one that has led here, or else what comes before all else."""
        return "CUDA_INSTALL_PATH" if "CUDA_INSTALL_PATH" in self.found_via else "CUDA_HOME"

    @property
    def _or_install(self) -> str:
        """What else does: packages come behind the variables and nvcc on PATH."""
        comes_first = "CUDA_" in self.found_via or self.found_via.endswith(" on PATH")
        return "" if comes_first else ", or pip install 'pycutlass[nvcc]'"


def numbers_defined(header: Path) -> dict[str, str]:
    """Return what `header` defines as plain numbers near its top, by macro; nothing if it cannot be read."""
    look("kind", header)
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
# Libraries and tools beside CUDA itself. Their headers are in no kernel; `cccl` is an include directory of its own.
_OF_OTHERS = re.compile(
    r"cccl|CL|Openacc|Openmp|cub|thrust|"
    r"(cu(blas|densitymat|dnn|dss|fft|file|pti|rand|solver|sparse|statevec|tensor)|generated_|nccl|npp|nv\w)\w*(\.\w+)?"
)


def _headers_in(folder: Path) -> list[str]:
    look("names", folder)
    with os.scandir(folder) as entries:
        return sorted(
            entry.path
            for entry in entries
            if not _OF_OTHERS.fullmatch(entry.name)
            and (
                entry.is_file(follow_symlinks=False)
                or entry.is_dir(follow_symlinks=False)
                or (entry.is_symlink() and (is_file(Path(entry.path)) or is_directory(Path(entry.path))))
            )
        )


def _remembered_digest(kind: str, found: Cutlass | Toolkit, memo: Memo, states: _core.FileStates) -> str:
    def read() -> str:
        return content_digest(
            found.includes if isinstance(found, Cutlass) else [Path(place) for place in found.headers]
        )

    try:
        fingerprint = hashlib.sha256(states.finish()).hexdigest()
        look_at_trees(list(map(os.fsdecode, states.places)), fingerprint)
        return memo(kind, str(found.root), fingerprint, read)
    except OSError as error:
        raise _unreadable(found, error) from error


def _unreadable(found: Cutlass | Toolkit, error: OSError) -> ToolkitError:
    what, variable = ("CUTLASS", "CUTLASS_PATH") if isinstance(found, Cutlass) else ("CUDA toolkit", found.variable)
    return ToolkitError(
        f"the {what} in {found.root} ({found.found_via}) cannot be read: {error}. Make it readable, or set {variable} "
        f"to another one."
    )
