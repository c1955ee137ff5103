"""Kernels of the installed package, between those of the user's cache and the compilers.

A kernel of the package was made by compilers that are not here, so no key finds it. It is the right one where it was
made from the same text and the same headers of ours, for the same target and call record: that decides what it
computes, and how it is launched. Headers of CUTLASS that are here must be those that it was made from as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pycutlass import config
from pycutlass.cache import Artifact
from pycutlass.cache.package import DISTRIBUTION, KernelPackage, PackagedBundle
from pycutlass.calls import counted
from pycutlass.errors import CacheError
from pycutlass.log import say_once
from pycutlass.version import __version__

__all__ = ["InstalledKernels", "PackageState"]

_MODULE = DISTRIBUTION.replace("-", "_")
_AGAIN = f"Install it again: pip install --force-reinstall --no-deps {DISTRIBUTION}"
#: Who names compilers or headers wants kernels that are made with them.
_NAMING = ("PYCUTLASS_BACKEND", "CUDA_INSTALL_PATH", "CUDA_HOME", "CUTLASS_PATH", "CXX")


@dataclass(frozen=True)
class PackageState:
    """How it stands with one directory of the package.

    Attributes
    ----------
    directory : Path
        Where it is.
    package : KernelPackage or None
        The package, where it can be used.
    reason : str
        Why it is not used, or empty.
    """

    directory: Path
    package: KernelPackage | None
    reason: str

    @property
    def bundles(self) -> tuple[PackagedBundle, ...]:
        """What the package has."""
        return () if self.package is None else self.package.bundles

    def facts(self) -> dict[str, Any]:
        """Return all of it, as JSON can carry it."""
        bundles = [{**asdict(each), "targets": list(each.targets)} for each in self.bundles]
        return {"directory": str(self.directory), "bundles": bundles, "reason": self.reason}

    def __str__(self) -> str:
        listed = [f"{counted(each.kernels, 'kernel')} for {' and '.join(each.targets)}" for each in self.bundles]
        whole = f"{self.directory}, {', '.join(listed)}" if listed else str(self.directory)
        return f"{whole}; not used: {self.reason}" if self.reason else whole


class InstalledKernels:
    """The package as it is installed now: looked for when a kernel is, and read once for each place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[Path, str], KernelPackage | str] = {}

    def find(self, fields: Mapping[str, str], backend: str | None) -> Artifact | None:
        """Return the kernel with these fields; None where there is none, or the package is not used.

        What is wrong with the package is said in the log, once.

        Parameters
        ----------
        fields : mapping
            Of a key, as far as the kernel must have them.
        backend : str or None
            The device compiler that the program has chosen.
        """
        headers = fields["headers"]
        for state in self.states(headers, backend):
            reason = state.reason
            if state.package is not None and not reason:
                try:
                    artifact = state.package.find(fields)
                except CacheError as error:
                    reason = f"it is damaged: {error}. {_AGAIN}"
                    with self._lock:
                        self._known[state.directory, headers] = reason
                else:
                    if artifact is not None:
                        return artifact
            if reason:
                level = logging.INFO if _bypassed(backend) else logging.WARNING
                say_once(f"the package {DISTRIBUTION} in {state.directory} is not used: {reason}", level)
        return None

    def states(self, headers: str, backend: str | None) -> Iterator[PackageState]:
        """Yield how it stands with each directory of the package; none where it is not installed."""
        bypassed = _bypassed(backend)
        for directory in config.package_directories(_MODULE):
            opened = self._opened(directory, headers)
            if isinstance(opened, str):
                yield PackageState(directory, None, bypassed or opened)
            else:
                yield PackageState(directory, opened, bypassed)

    def said(self, headers: str, backend: str | None) -> str:
        """Return a sentence about the package for a message about a kernel that is nowhere; empty without one."""
        return "".join(
            f" The package {DISTRIBUTION} {'is not used' if state.reason else 'does not have it'}: {state}."
            for state in self.states(headers, backend)
        )

    def _opened(self, directory: Path, headers: str) -> KernelPackage | str:
        """Return the package in a directory, or why it is of no use; that stays so in this process."""
        with self._lock:
            known = self._known.get((directory, headers))
            if known is None:
                try:
                    known = KernelPackage(directory, __version__, headers)
                except CacheError as error:
                    known = str(error)
                self._known[directory, headers] = known
            return known


def _bypassed(backend: str | None) -> str:
    """Return why no kernel of the package is used, though there may be one; empty where they are."""
    named = [name for name in _NAMING if config.text(name)]
    if named:
        return f"{' and '.join(named)} {'names' if len(named) == 1 else 'name'} what kernels are made with"
    return f"the program has chosen {backend}" if backend else ""
