"""Packages of kernels that are installed where a test says, and what is left without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trivial_kernels import Operation

from pycutlass import compiler, config
from pycutlass.cache import Artifact
from pycutlass.cache.bundle import write_bundle
from pycutlass.cache.package import PackagedBundle, write_index
from pycutlass.errors import NotCompiledError
from pycutlass.toolkit import own_headers_digest
from pycutlass.version import __version__

__all__ = ["NAMES", "only_kernels", "package", "refuses", "without_compilers"]

NAMES = ("kernel_a", "kernel_b", "kernel_c")


def package(
    site: Path,
    made: list[Artifact],
    version: str = __version__,
    headers: str | None = None,
    is_compressed: bool = False,
) -> Path:
    directory = site / "pycutlass_kernels"
    directory.mkdir(parents=True)
    (directory / "__init__.py").write_text("raise AssertionError('nobody imports it')\n")
    bundles = []
    for target in ("sm_80", "sm_90"):
        chosen = [each for each in made if each.target == target]
        write_bundle(directory / f"{target}.zip", chosen, is_compressed=is_compressed)
        bundles.append(PackagedBundle(f"{target}.zip", (target,), len(chosen)))
    write_index(directory, version, own_headers_digest() if headers is None else headers, bundles)
    return directory


def without_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(config, "package_directories", only_kernels(config.package_directories))


def only_kernels(look: Callable[[str], list[Path]]) -> Callable[[str], list[Path]]:
    return lambda name: look(name) if name == "pycutlass_kernels" else []


def refuses(match: str, name: str = "kernel_a") -> None:
    with pytest.raises(NotCompiledError, match=match):
        compiler.add_module([Operation(name)])
