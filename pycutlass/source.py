"""The border between describing and compiling: a kernel as text, and what offers one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pycutlass.cache import Artifact

__all__ = ["Compilable", "KernelSource", "WrittenKernel"]


@dataclass(frozen=True)
class KernelSource:
    """One kernel as C++ text, for the device compiler and the host compiler alike.

    Parameters
    ----------
    name : str
        Symbol of the kernel.
    text : str
        The whole translation unit.
    compute_capability : int
        The oldest GPU that the kernel is written for, for example 80.
    native : bool
        Whether it uses what only GPUs of exactly this compute capability have (``sm_90a``).
    """

    name: str
    text: str
    compute_capability: int
    native: bool


class Compilable(Protocol):
    """What `pycutlass.compiler.add_module` takes: something with a source, and a place for what becomes of it."""

    @property
    def artifacts(self) -> dict[str, Artifact]:
        """What was compiled, by target."""

    def source(self) -> KernelSource:
        """Return the kernel's text."""


@dataclass(frozen=True)
class WrittenKernel:
    """A kernel that is there as text alone, as `pycutlass.compiler.add_module` takes it.

    Attributes
    ----------
    kernel : KernelSource
        Its text.
    follows : bool
        Whether it is built for what the others of a call are built for, where no target is named.
    artifacts : dict
        What was compiled, by target.
    """

    kernel: KernelSource
    follows: bool
    artifacts: dict[str, Artifact] = field(default_factory=dict, compare=False)

    def source(self) -> KernelSource:
        """Return the kernel's text."""
        return self.kernel
