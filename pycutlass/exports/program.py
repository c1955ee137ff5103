"""`export`: one plan as a program, or as a bundle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pycutlass.cache.bundle import write_bundle
from pycutlass.cache.files import as_path
from pycutlass.calls import public, shown
from pycutlass.errors import ArgumentError

__all__ = ["FORMATS", "export"]

FORMATS = ("cpp", "cubin", "bundle")


@public
def export(
    plan: Any, path: str | os.PathLike[str], *, format: str, problem_size: Any = None, target: str | None = None
) -> None:
    """Write a plan."""
    raise ArgumentError(shown(format))
