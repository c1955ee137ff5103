"""Manifests: the kernels that a program will need as a file of their texts, to be compiled ahead of it.

The text of a kernel is all that a compiler has to know, so a manifest needs none of the program's descriptions, and a
machine without a GPU can make what another one runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pycutlass.cache import Artifact
from pycutlass.cache.files import as_path, regular_file, written_whole
from pycutlass.calls import public, shown
from pycutlass.compiler.session import add_module, checked
from pycutlass.errors import ArgumentError
from pycutlass.source import Compilable, KernelSource, WrittenKernel

__all__ = ["manifest", "warm", "write_manifest"]

_FORMAT, _VERSION = "pycutlass manifest", 1
_LARGEST = 256 << 20  # bytes of a file: more than a hundred thousand kernels
_KINDS = {"name": str, "text": str, "compute_capability": int, "native": bool, "follows": bool}
_ENDING = re.compile(r"\nPYCUTLASS_(?:BOUNDED_)?KERNEL\((\w+), Operation\)\n\Z")


@public
def manifest(operations: Iterable[Compilable]) -> dict[str, Any]:
    """Return the kernels that operations need as a manifest, in JSON's types.

    Parameters
    ----------
    operations : iterable of operations
        As for `add_module`. What each launches besides, such as the kernel of partial sums, is in the manifest as well.

    Raises
    ------
    ArgumentTypeError
        `operations` holds something else.

    Examples
    --------
    >>> from pycutlass import compiler
    >>> compiler.manifest([])
    {'format': 'pycutlass manifest', 'version': 1, 'kernels': []}
    """
    listed = checked(operations, "manifest")
    parts = [part for each in listed for part in (each.parts(listed) if hasattr(each, "parts") else [each])]
    kernels = {part.source(): getattr(part, "follows", False) for part in parts}
    return _manifest([{**asdict(source), "follows": follows} for source, follows in kernels.items()])


@public
def write_manifest(path: str | os.PathLike[str], operations: Iterable[Compilable]) -> int:
    """Write what `manifest` returns to a file that `warm` reads, and return how many kernels it has.

    Raises
    ------
    ArgumentTypeError
        `path` is not a path, or `operations` holds something else.
    CacheError
        The file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pycutlass import compiler
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     compiler.write_manifest(f"{folder}/kernels.json", [])
    0
    """
    made = manifest(operations)
    with written_whole(as_path("path", path), "the manifest") as file:
        file.write(json.dumps(made, indent=1).encode())
    return len(made["kernels"])


@public
def warm(
    manifests: str | os.PathLike[str] | Mapping[str, Any] | Sequence[str | os.PathLike[str] | Mapping[str, Any]],
    *,
    target: str | Sequence[str] | None = None,
    strict: bool | None = None,
) -> list[Artifact]:
    """Compile the kernels of manifests that the cache lacks, so that programs which need them compile nothing.

    Compilers read the text of a manifest: take it only from those whose programs you would compile.

    Parameters
    ----------
    manifests : path, mapping, or sequence of these
        Files that `write_manifest` wrote, or what `manifest` returned.
    target, strict : optional
        As for `add_module`.

    Returns
    -------
    list of Artifact
        As `add_module` returns them.

    Raises
    ------
    ArgumentError
        Something is no manifest, or was changed; nothing is compiled then.
    ArgumentTypeError, BuildReportError, CompileError, NotCompiledError, ToolkitError
        As for `add_module`.

    Examples
    --------
    >>> from pycutlass import compiler
    >>> compiler.warm(compiler.manifest([]))
    []
    """
    several = [manifests] if isinstance(manifests, str | os.PathLike | Mapping) else manifests
    try:
        listed = list(several)
    except TypeError:
        raise ArgumentError(f"warm takes manifests or paths of them, got {shown(manifests)}") from None
    kernels: dict[KernelSource, WrittenKernel] = {}
    for one in listed:
        what, made = _read(one)
        for number, fields in enumerate(made):
            written = _kernel(f"kernel {number} of {what}", fields)
            kernels.setdefault(written.kernel, written)
    return add_module(list(kernels.values()), target=target, strict=strict)


def _manifest(kernels: list[dict[str, Any]]) -> dict[str, Any]:
    return {"format": _FORMAT, "version": _VERSION, "kernels": kernels}


def _read(given: Any) -> tuple[str, list[Any]]:
    """Return what to call a manifest, and its kernels, which are still to be looked at."""
    if isinstance(given, Mapping):
        what, content = "the manifest", dict(given)
    else:
        path = as_path("manifest", given)
        what, content = f"the manifest {path}", _content(path)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ArgumentError(f"{what} is none: it lacks the line that says {_FORMAT!r}, which write_manifest writes")
    if content.get("version") != _VERSION:
        raise ArgumentError(
            f"{what} is of version {shown(content.get('version'))}, and this PyCUTLASS reads version {_VERSION}: write "
            f"it anew with this one"
        )
    kernels = content.get("kernels")
    if not isinstance(kernels, list):
        raise ArgumentError(f"{what} lacks its list of kernels: write it anew")
    return what, kernels


def _content(path: Path) -> Any:
    try:
        with regular_file(path, "a manifest") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ArgumentError(f"the manifest {path} has more than {_LARGEST >> 20} MiB: write several")
        return json.loads(text)
    except OSError as error:
        raise ArgumentError(f"the manifest {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"the manifest {path} is not JSON: {error}") from error


def _kernel(what: str, fields: Any) -> WrittenKernel:
    """Return a kernel of a manifest whose name and text belong together."""
    if not isinstance(fields, dict) or fields.keys() != _KINDS.keys():
        names = sorted(map(str, fields)) if isinstance(fields, dict) else shown(fields)
        raise ArgumentError(f"{what} must have the fields {', '.join(_KINDS)}; got {names}")
    for name, kind in _KINDS.items():
        if type(fields[name]) is not kind:
            raise ArgumentError(f"{name} of {what} must be of type {kind.__name__}, got {shown(fields[name])}")
    name, text = fields["name"], fields["text"]
    ending = _ENDING.search(text)
    body = text[: ending.start()] if ending else ""
    if ending is None or ending[1] != name or not name.endswith(hashlib.sha256(body.encode()).hexdigest()[:12]):
        raise ArgumentError(f"{what}, {shown(name)}, was changed: its text is not the one that its name ends with")
    source = KernelSource(name, text, fields["compute_capability"], fields["native"])
    return WrittenKernel(source, fields["follows"])
