"""A bundle: compiled kernels in one file, to carry them to machines that need not have a compiler.

It is a zip file of ``manifest.json`` and, for each kernel, ``<key>.cubin`` and ``<key>.host``. The same kernels give
the same bytes. Digests find damage; they do not make a stranger's bundle safe, for a bundle is native code.
"""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pycutlass.cache.artifact import Artifact, make_key
from pycutlass.errors import CacheError

__all__ = ["read_bundle", "write_bundle"]

_FORMAT = "pycutlass-bundle-1"
_MANIFEST = "manifest.json"
_KEY = re.compile(r"[0-9a-f]{64}")
_STAMP = (1980, 1, 1, 0, 0, 0)  # the time of day must not be in the bytes; this is the earliest that zip can write
# What zipfile, zlib and json raise on a file that is damaged, cut off, encrypted or of another kind.
_UNREADABLE = (EOFError, KeyError, OSError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)


def write_bundle(path: Path, artifacts: Iterable[Artifact]) -> None:
    """Write `artifacts` to the file `path`, all of them or nothing.

    Raises
    ------
    CacheError
        If the file cannot be written.
    """
    chosen = sorted(artifacts, key=lambda artifact: artifact.key)
    manifest = {"format": _FORMAT, "kernels": [_described(artifact) for artifact in chosen]}
    members = {_MANIFEST: json.dumps(manifest, sort_keys=True, indent=1).encode()}
    for artifact in chosen:
        members |= {f"{artifact.key}.cubin": artifact.cubin, f"{artifact.key}.host": artifact.host}
    if not path.name:
        raise CacheError(f"the bundle cannot be written to {str(path)!r}: that is a directory. Give a file name.")
    partial = path.with_name(path.name + ".partial")
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            for name, content in members.items():
                archive.writestr(_member(name), content)
        partial.replace(path)
    except (OSError, ValueError) as error:  # ValueError: what no file can be called
        with contextlib.suppress(OSError, ValueError):
            partial.unlink()
        raise CacheError(f"the bundle {path} cannot be written: {error}") from error


def read_bundle(path: Path) -> list[Artifact]:
    """Return the kernels of the bundle `path`, every one of them checked.

    Raises
    ------
    CacheError
        If it is not a whole bundle, or if a kernel is not what its key and its digest say; the message names it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _kernels(path, archive)
    except CacheError:
        raise
    except _UNREADABLE as error:
        raise CacheError(
            f"{path} cannot be read as a bundle of kernels: {error or type(error).__name__}. "
            "Write it again with `pycutlass cache export`, or copy it again."
        ) from error


def _kernels(path: Path, archive: zipfile.ZipFile) -> list[Artifact]:
    manifest = json.loads(archive.read(_MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else manifest
        raise CacheError(f"{path} is not a bundle that this version reads: it needs {_FORMAT!r} and found {found!r}")
    descriptions = _checked_descriptions(path, manifest.get("kernels"))
    expected = sorted([_MANIFEST, *(f"{entry['key']}.{part}" for entry in descriptions for part in ("cubin", "host"))])
    if sorted(archive.namelist()) != expected:
        odd = sorted(set(archive.namelist()) ^ set(expected)) or ["one name twice"]
        raise CacheError(f"{path} does not hold the files of its manifest and nothing else: {', '.join(odd)}")
    return [_artifact(path, archive, entry) for entry in descriptions]


def _checked_descriptions(path: Path, kernels: Any) -> list[dict[str, Any]]:
    """Return the manifest's list of kernels, if each has what `_described` writes."""
    shape = {"key": str, "name": str, "target": str, "digest": str, "fields": dict, "report": dict}
    if not isinstance(kernels, list):
        raise CacheError(f"{path} is not a bundle of kernels: its manifest has no list of them")
    for number, entry in enumerate(kernels):
        if not isinstance(entry, dict) or {label: type(entry.get(label)) for label in shape} != shape:
            raise CacheError(f"{path}: entry {number} of the manifest does not have {', '.join(sorted(shape))}")
        if not _KEY.fullmatch(entry["key"]) or not all(isinstance(text, str) for text in entry["fields"].values()):
            raise CacheError(f"{path}: entry {entry['key']!r} of the manifest has a key or fields of another form")
    return kernels


def _artifact(path: Path, archive: zipfile.ZipFile, entry: dict[str, Any]) -> Artifact:
    key = entry["key"]
    contents = (archive.read(f"{key}.cubin"), archive.read(f"{key}.host"))
    artifact = Artifact(key, entry["name"], entry["target"], entry["fields"], *contents, entry["report"])
    if make_key(artifact.fields) != key:
        raise CacheError(f"{path}: kernel {key} ({artifact.name}) has fields of the key {make_key(artifact.fields)}")
    if artifact.digest != entry["digest"]:
        raise CacheError(
            f"{path}: kernel {key} ({artifact.name}) was changed: its digest is {artifact.digest} and the manifest "
            f"says {entry['digest']}"
        )
    return artifact


def _described(artifact: Artifact) -> dict[str, Any]:
    return {
        "key": artifact.key,
        "name": artifact.name,
        "target": artifact.target,
        "fields": dict(artifact.fields),
        "report": dict(artifact.report),
        "digest": artifact.digest,
    }


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _STAMP)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = 0o644 << 16
    member.create_system = 3  # Unix, on whatever system it is written
    return member
