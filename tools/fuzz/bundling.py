"""Kernels of a seed that are only compiled, into a bundle: a run of the fuzz without problems."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycutlass.cache import KernelCache
from tools.fuzz.kernels import Kernel
from tools.fuzz.session import Session

__all__ = ["Bundling"]


@dataclass
class Bundling(Session):
    """A run that builds, until time is up or it is interrupted, and writes what it has by then."""

    file: Path = Path("kernels.zip")
    _keys: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Do it."""
        with contextlib.suppress(KeyboardInterrupt):
            super().run()

    def _accept(self, kernel: Kernel, artifacts: list[Any]) -> None:
        super()._accept(kernel, artifacts)
        self._waiting.clear()  # for nobody
        self._keys |= {artifact.key for artifact in artifacts}

    def _keep(self) -> None:
        if self._keys:
            KernelCache(self._cache).export(self.file, self._keys)

    @property
    def well(self) -> bool:
        """Whether kernels were built, and none failed."""
        return bool(self._keys) and not self.tally.failures

    @property
    def _idle(self) -> list[str]:
        return []  # no problem is run

    @property
    def _where(self) -> str:
        return f"{len(self._keys)} kernels in {self.file}" if self._keys else "no kernels"
