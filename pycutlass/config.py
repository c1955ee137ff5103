"""Every environment variable that PyCUTLASS reads, in one typed table, and where installed packages are.

They are read when they are needed, not at import, so that a program or a test may set them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from pycutlass.errors import ArgumentError

__all__ = [
    "VARIABLES",
    "Variable",
    "cache_directory",
    "compiler_environment",
    "database_file",
    "flag",
    "of_the_search",
    "package_directories",
    "path",
    "search_path",
    "text",
    "unchanging",
]


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, its default in words, and what it does."""

    name: str
    default: str
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("CUTLASS_PATH", "unset", "root of a CUTLASS checkout; comes before third_party/cutlass and the package"),
    Variable("CUDA_INSTALL_PATH", "unset", "root of a CUDA toolkit; comes first"),
    Variable("CUDA_HOME", "unset", "root of a CUDA toolkit; comes second, before nvcc on PATH and the wheels"),
    Variable("PYCUTLASS_CACHE_DIR", "the user's cache directory", "where compiled kernels are kept"),
    Variable("PYCUTLASS_DATABASE", "that of the cache", "file of the database of measured trials"),
    Variable("PYCUTLASS_BACKEND", "nvcc if there is one, else nvrtc", "device compiler: nvcc or nvrtc"),
    Variable(
        "PYCUTLASS_TARGET",
        "the present GPU, else the operation's own",
        "what kernels are built for, for example sm_90a",
    ),
    Variable("PYCUTLASS_STRICT", "0", "1: spills, stack frames and serialised wgmma are errors"),
    Variable("PYCUTLASS_NO_COMPILE", "0", "1: raise instead of compiling; only compiled kernels run"),
    Variable("PYCUTLASS_JOBS", "from cores and memory", "most compilers to run at once"),
    Variable("CXX", "g++", "host compiler"),
)
# What compilers get to see.
_PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS"),  # a preloaded sanitizer would end the compiler
    *("CCACHE_DIR", "CCACHE_DISABLE", "SCCACHE_DIR", "DISTCC_DIR", "DISTCC_HOSTS"),  # where launchers keep things
)
_PATHS = ("CUTLASS_PATH", "CUDA_INSTALL_PATH", "CUDA_HOME")
_OF_THE_SEARCH = (*_PATHS, "PYCUTLASS_BACKEND", "CXX", "PATH", "HOME")
_FLAGS = frozenset(("PYCUTLASS_STRICT", "PYCUTLASS_NO_COMPILE"))
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_KNOWN = frozenset(variable.name for variable in VARIABLES)
# What the variables of a search were when it began. Else they would be a parameter of all that looks for a file.
_fixed: ContextVar[dict[str, str | None] | None] = ContextVar("_fixed", default=None)


@contextlib.contextmanager
def unchanging() -> Iterator[None]:
    """Have the variables that decide a search be the same all the while, whatever other threads set meanwhile."""
    token = _fixed.set({name: os.environ.get(name) for name in _OF_THE_SEARCH})
    try:
        yield
    finally:
        _fixed.reset(token)


def text(name: str) -> str | None:
    """Return the value of variable `name`, or None where it is unset or empty."""
    assert name in _KNOWN, f"{name} is not in config.VARIABLES"
    return _value(name) or None


def flag(name: str) -> bool:
    """Return whether variable `name` says yes: 1, true, yes or on; unset, empty, 0, false, no and off say no.

    Raises
    ------
    ArgumentError
        It says something else.
    """
    assert name in _FLAGS, f"{name} is not among the flags of config.VARIABLES"
    value = os.environ.get(name)
    if not value or value.lower() in _NO:
        return False
    if value.lower() not in _YES:
        raise ArgumentError(f"{name} must be one of {', '.join((*_YES, *_NO))}; it is {value!r}")
    return True


def path(name: str) -> Path | None:
    """Return variable `name` as an absolute path, or None where it is unset or empty.

    A ``~`` or ``~user`` without a home stays as it is, and so does a relative path where the working directory is gone;
    whoever uses the path refuses it.
    """
    value = text(name)
    if value is None:
        return None
    try:
        return Path(value).expanduser().absolute()
    except (OSError, RuntimeError):
        return Path(value)


def cache_directory() -> Path:
    """Return the directory of the kernel cache; it need not exist yet.

    A relative ``PYCUTLASS_CACHE_DIR`` stays relative, and the cache refuses it: every working directory would have a
    cache of its own.
    """
    value = text("PYCUTLASS_CACHE_DIR")
    if value is not None:
        return (path("PYCUTLASS_CACHE_DIR") if value[0] == "~" else None) or Path(value)
    import platformdirs

    return Path(platformdirs.user_cache_dir("pycutlass", appauthor=False))


def database_file() -> Path | None:
    """Return the file that is named for trials, or None for that of the kernel cache.

    A relative path stays relative, and the database refuses it, as `cache_directory` says.
    """
    value = text("PYCUTLASS_DATABASE")
    if value is None:
        return None
    return (path("PYCUTLASS_DATABASE") if value[0] == "~" else None) or Path(value)


def of_the_search() -> tuple[str | None, ...] | None:
    """Return all variables that decide which compilers and headers are found.

    None where one of them means something else elsewhere: in another working directory, or in another list of users.
    """
    values = tuple(map(_value, _OF_THE_SEARCH))
    paths = [value for name, value in zip(_OF_THE_SEARCH, values, strict=True) if value and name in _PATHS]
    at_home = (values[-1] or "")[:1] == "/"  # the home of some users is relative
    return values if all(path[0] == "/" or (at_home and f"{path}/"[:2] == "~/") for path in paths) else None


def package_directories(package: str) -> list[Path]:
    """Return the directories of an installed package without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    return [Path(location) for location in (spec.submodule_search_locations or ())] if spec else []


def search_path() -> str:
    """Return where programs are looked for."""
    path = _value("PATH")
    return os.defpath if path is None else path


def compiler_environment() -> dict[str, str]:
    """Return the environment that compilers run in.

    Many variables decide what a compiler makes (``CPATH``, ``GCC_EXEC_PREFIX``, ``NVCC_APPEND_FLAGS``, ...), and no
    list of them is complete. None is part of a cache key, so a compiler sees none but those that it cannot do without.
    Where there is no ``PATH``, compilers are found on the default one, and so are the programs that they start.
    """
    passed_on = {name: value for name in _PASSED_ON if (value := _value(name)) is not None}
    return {"PATH": os.defpath, **passed_on, "LC_ALL": "C"}


def _value(name: str) -> str | None:
    fixed = _fixed.get()
    return fixed[name] if fixed and name in fixed else os.environ.get(name)
