"""Where CUTLASS and CUDA are looked for.

CUDA's headers and the device compiler come from one root, since mixing two toolkits fails in ways that nobody can read.
Where a variable names a place that does not hold what it should, that is an error: no other place is tried.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from pycutlass import config
from pycutlass.errors import ToolkitError
from pycutlass.toolkit.files import (
    Memo,
    content_digest,
    file_fingerprint,
    is_directory,
    is_file,
    is_script,
    names_in,
    on_path,
    read_bytes,
    real_path,
    run_quietly,
    without_memo,
)
from pycutlass.toolkit.models import Cutlass, Toolkit, numbers_defined
from pycutlass.toolkit.trace import unrepeatable

__all__ = [
    "CHECKOUT",
    "CORRECT",
    "CUDA_PACKAGE",
    "CUTLASS_PACKAGE",
    "GET_CUTLASS",
    "GET_NVCC",
    "GET_NVRTC",
    "bindings_directory",
    "find_cutlass",
    "find_nvcc",
    "find_nvrtc",
    "find_tool",
    "missing",
    "own_headers_digest",
    "own_include",
    "search_cutlass",
    "search_nvcc",
    "search_nvrtc",
]

GET_CUTLASS = "pip install nvidia-cutlass==4.2.0.0, or set CUTLASS_PATH to a checkout of CUTLASS 4.2"
GET_NVCC = "pip install 'pycutlass[nvcc]', or install the CUDA 13.0 toolkit and set CUDA_HOME to its root"
GET_NVRTC = "pip install " + " ".join(f"'nvidia-cuda-{part}==13.0.*'" for part in ("nvrtc", "runtime", "crt", "cccl"))
GET_BINDINGS = "pip install 'cuda-bindings>=13.0.1,<14'"
#: How messages about a variable that is wrong end.
CORRECT = "Correct the variable or unset it."


def find_cutlass() -> Cutlass:
    """Return the CUTLASS headers: ``CUTLASS_PATH``, then ``third_party/cutlass`` of a checkout, then the package.

    Raises
    ------
    ToolkitError
        If there are none, or if ``CUTLASS_PATH`` does not hold them.
    """
    found, tried = search_cutlass()
    return found or missing("CUTLASS's headers (include/cutlass/cutlass.h)", tried, GET_CUTLASS, "CUTLASS_PATH")


def find_nvcc(memo: Memo = without_memo) -> Toolkit:
    """Return the first toolkit with headers and nvcc.

    The order is ``CUDA_INSTALL_PATH``, ``CUDA_HOME``, nvcc on ``PATH``, the wheels, ``/usr/local/cuda``.

    Raises
    ------
    ToolkitError
        If there is none, or if one of the variables does not name a toolkit.
    """
    found, tried = search_nvcc(memo)
    return found or missing("nvcc together with CUDA's headers", tried, GET_NVCC, *_VARIABLES)


def find_nvrtc(memo: Memo = without_memo) -> Toolkit:
    """Return the first toolkit with headers and the NVRTC library, or else the two of one version from two places.

    Raises
    ------
    ToolkitError
        If there are none, or if one of the variables does not name a toolkit.
    """
    found, tried = search_nvrtc(memo)
    return found or missing("NVRTC together with CUDA's headers", tried, GET_NVRTC, *_VARIABLES)


def find_tool(name: str, memo: Memo = without_memo) -> Path | None:
    """Return a program that may come with the toolkit, for example ``nvdisasm``, or None."""
    from cuda.pathfinder import find_nvidia_binary_utility

    named = [toolkit.root / "bin" / name for toolkit in _toolkits(memo, []) if toolkit.found_via in _VARIABLES]
    found = next(map(str, filter(is_file, named)), None) or on_path(name) or find_nvidia_binary_utility(name)
    return Path(found) if found else None


def bindings_directory() -> Path:
    """Return the directory of packages that ``cuda.bindings`` is in.

    Raises
    ------
    ToolkitError
        It is not installed.
    """
    for package in config.package_directories("cuda.bindings"):
        return package.parents[1]
    raise ToolkitError(f"NVRTC is called through cuda.bindings, which is not installed: {GET_BINDINGS}")


def own_include() -> Path:
    """Return the include directory that comes with PyCUTLASS."""
    return CHECKOUT / "pycutlass" / "include"


def own_headers_digest() -> str:
    """Return the SHA-256 of the headers that come with PyCUTLASS."""
    return content_digest([own_include()])


def search_cutlass() -> tuple[Cutlass | None, list[str]]:
    """Return the CUTLASS headers, or None, and the places that were tried."""
    tried: list[str] = []
    for root, via in _cutlass_roots(tried):
        tried.append(f"{root} ({via})")
        lacks = [name for name, has in _CUTLASS_HAS.items() if not has(root / name)]
        if not lacks:
            return Cutlass(root, _cutlass_version(root), via), tried
        if via == "CUTLASS_PATH":
            _refuse_variable(via, root, lacks[0])
        tried[-1] += f": no {lacks[0]}"
    return None, tried


def search_nvcc(memo: Memo) -> tuple[Toolkit | None, list[str]]:
    """Return a toolkit with nvcc, or None, and the places that were tried."""
    tried: list[str] = []
    for toolkit in _toolkits(memo, tried):
        if toolkit.nvcc:
            return toolkit, tried
        tried[-1] += ": CUDA headers, but no bin/nvcc"
        if toolkit.found_via in _VARIABLES:
            break
    return None, tried


def search_nvrtc(memo: Memo) -> tuple[Toolkit | None, list[str]]:
    """Return a toolkit with NVRTC, or None, and the places that were tried."""
    tried: list[str] = []
    headers: list[Toolkit] = []
    for toolkit in _toolkits(memo, tried):
        if toolkit.nvrtc:
            return toolkit, tried
        tried[-1] += ": CUDA headers, but no libnvrtc"
        headers.append(toolkit)
        if toolkit.found_via in _VARIABLES:
            break
    for root, via in _cuda_roots(memo, []):
        library = _nvrtc_library(root)
        for toolkit in headers if library else ():
            assert library
            tried.append(f"{library} ({via}) with the headers in {toolkit.include}")
            if _library_version(library) == toolkit.version:
                mixed = f"{via}, headers: {toolkit.found_via}"
                return Toolkit(toolkit.root, toolkit.include, toolkit.version, mixed, toolkit.nvcc, library), tried
            tried[-1] += f": one is {_library_version(library)}, the other {toolkit.version}"
    return None, tried


def missing(what: str, tried: list[str], remedy: str, *variables: str) -> NoReturn:
    """Say that there is nothing; it is not just absent where one of the `variables` has said where to look.

    The first that is set decides, and no other.
    """
    looked = "\n".join(f"  - {place}" for place in tried)
    named = next(filter(config.text, variables), None)
    correct = f" What {named} names comes before all else: correct {named} or unset it." if named else ""
    message = f"{what} cannot be found. Looked for in\n{looked}\nTo get it: {remedy}.{correct}"
    raise ToolkitError(message, absent=not named)


CHECKOUT = Path(__file__).resolve().parents[2]  # or the directory of the installed packages
_CUTLASS_HAS = {"include/cutlass/cutlass.h": is_file, "include/cute": is_directory}  # older ones have no cute
CUTLASS_PACKAGE, CUDA_PACKAGE = "cutlass_library", "nvidia.cu13"  # packages
_VARIABLES = ("CUDA_INSTALL_PATH", "CUDA_HOME")
_HEADER_PLACES = ("include", "targets/x86_64-linux/include")
_LIBRARY_PLACES = ("lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu")
# A script that does nothing but run a program by its absolute path.
_RUNS_ANOTHER = re.compile(rb"#! ?/\S*/(?:ba|da)?sh\n(?:[ \t]*(?:#.*)?\n)*exec[ \t]+(/[\w./+-]+)[ \t]+" + rb'"\$@"\s*')
_NVRTC_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def _refuse_variable(variable: str, root: Path, needed: str) -> NoReturn:
    raise ToolkitError(f"{variable} is {root}, and there is no {needed} in it. {CORRECT}")


def _cutlass_roots(tried: list[str]) -> Iterator[tuple[Path, str]]:
    chosen = config.path("CUTLASS_PATH")
    if chosen:
        yield chosen, "CUTLASS_PATH"
    else:
        tried.append("$CUTLASS_PATH (not set)")
    if is_file(CHECKOUT / "setup.py"):
        yield CHECKOUT / "third_party" / "cutlass", "third_party/cutlass of the source checkout"
    installed = config.package_directories(CUTLASS_PACKAGE)
    yield from ((package / "source", "package nvidia-cutlass") for package in installed)
    if not installed:
        tried.append("package nvidia-cutlass (not installed)")


def _toolkits(memo: Memo, tried: list[str]) -> Iterator[Toolkit]:
    """Yield every root with CUDA headers, in order; note each place in `tried`."""
    for root, via in _cuda_roots(memo, tried):
        tried.append(f"{root} ({via})")
        includes = [root / place for place in _HEADER_PLACES if is_file(root / place / "cuda_runtime.h")]
        if includes:
            nvcc = root / "bin" / "nvcc"
            version = _cuda_version(includes[0])
            yield Toolkit(root, includes[0], version, via, nvcc if is_file(nvcc) else None, _nvrtc_library(root))
        elif via in _VARIABLES:
            _refuse_variable(via, root, "include/cuda_runtime.h")
        else:
            tried[-1] += ": no include/cuda_runtime.h"


def _cuda_roots(memo: Memo, tried: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield the roots to look in and what led to them, each once; note in `tried` what leads nowhere."""
    yielded: list[Path] = []
    for root, via in _all_cuda_roots(memo, tried):
        if not yielded or real_path(root) not in map(real_path, yielded):
            yield root, via
            yielded.append(root)


def _all_cuda_roots(memo: Memo, tried: list[str]) -> Iterator[tuple[Path, str]]:
    for variable in _VARIABLES:
        chosen = config.path(variable)
        if chosen:
            yield chosen, variable
        else:
            tried.append(f"${variable} (not set)")
    nvcc = on_path("nvcc")
    if nvcc:
        yield _root_of_nvcc(Path(nvcc), memo), f"{nvcc} on PATH"
    else:
        tried.append("nvcc on PATH (there is none)")
    installed = config.package_directories(CUDA_PACKAGE)
    yield from ((package, f"package {CUDA_PACKAGE}") for package in installed)
    if not installed:
        tried.append(f"package {CUDA_PACKAGE} (not installed)")
    yield Path("/usr/local/cuda"), "the usual place"


def _root_of_nvcc(nvcc: Path, memo: Memo) -> Path:
    """Return the root of the toolkit of an nvcc; where that is a script in front of the real one, it is asked.

    A script that does more than run another program is asked each time: what it runs may change while it does not. What
    an nvcc says is remembered as it says it, since a link in it may lead to another toolkit at another time.
    """
    root = real_path(nvcc).parent.parent
    if _has_headers(root):
        return root

    def ask() -> str:
        answer = run_quietly([str(nvcc), "--dryrun", "-x", "cu", os.devnull], both_streams=True)
        top = re.search(r"^#\$ TOP=(.+)$", answer, re.MULTILINE)
        return top[1].strip() if top else str(root)

    try:
        if not is_script(nvcc):
            decide = filter(is_file, (nvcc, real_path(nvcc).with_name("nvcc.profile")))
            return real_path(memo("top of nvcc", str(nvcc), " ".join(map(file_fingerprint, decide)), ask))
        runs = _RUNS_ANOTHER.fullmatch(read_bytes(nvcc))
        if runs and _has_headers(behind := real_path(os.fsdecode(runs[1])).parent.parent):
            return behind
        unrepeatable()
        return real_path(ask())
    except (OSError, ToolkitError):  # not remembered: it may work the next time
        unrepeatable()
        return root


def _has_headers(root: Path) -> bool:
    return any(is_file(root / place / "cuda_runtime.h") for place in _HEADER_PLACES)


def _nvrtc_library(root: Path) -> Path | None:
    places = (root / place / name for place in _LIBRARY_PLACES for name in _NVRTC_NAMES)
    return next(filter(is_file, places), None)


def _library_version(library: Path) -> str:
    """Return the version of an NVRTC library, for example ``13.0``; the library beside it has it in its name."""
    versions = (re.match(r"libnvrtc-builtins\.so\.(\d+\.\d+)", name) for name in names_in(real_path(library).parent))
    return next((match[1] for match in versions if match), "unknown")


def _cutlass_version(root: Path) -> str:
    numbers = numbers_defined(root / "include" / "cutlass" / "version.h")
    return ".".join(numbers.get(f"CUTLASS_{part}", "?") for part in ("MAJOR", "MINOR", "PATCH"))


def _cuda_version(include: Path) -> str:
    number = numbers_defined(include / "cuda_runtime_api.h").get("CUDART_VERSION")
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number else "unknown"
