"""A bundle: compiled kernels in one file, to carry them to machines that need not have a compiler.

It is a zip file of ``manifest.json`` and, for each kernel, ``<key>.cubin`` and ``<key>.host``. The same kernels give
the same bytes. Digests find damage; they do not make a stranger's bundle safe, for a bundle is native code.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pycutlass import _core
from pycutlass.cache.files import regular_file, written_whole
from pycutlass.cache.store import Artifact, make_key
from pycutlass.errors import CacheError
from pycutlass.report import BuildReport

__all__ = ["LARGEST_KERNEL", "UNREADABLE", "checked_artifact", "descriptions", "read_bundle", "write_bundle"]

_FORMAT = "pycutlass-bundle-2"
_RECORDS = {"pycutlass-bundle-1": 3}  # versions of the call record in formats that did not say so
_MANIFEST = "manifest.json"
_KEY = re.compile(r"[0-9a-f]{64}")
# What a bundle may unpack to. Real kernels shrink to a fifth; a file that was made to fill memory, to a thousandth.
LARGEST_KERNEL = 64 << 20  # of each side
_MANIFEST_SHARE = 16 << 10  # for each file in the bundle
_LARGEST_MANIFEST = 32 << 20
_MOST_TIMES_ITS_SIZE = 64
_STAMP = (1980, 1, 1, 0, 0, 0)  # the time of day must not be in the bytes; this is the earliest that zip can write
# What zipfile, zlib and json raise on a file that is damaged, cut off, encrypted or of another kind.
UNREADABLE = (EOFError, KeyError, OSError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)


def write_bundle(path: Path, artifacts: Iterable[Artifact], *, is_compressed: bool = True) -> None:
    """Write `artifacts` to the file `path`, all of them or nothing.

    Without compression, single kernels are read from it in less time, and what the file is packed into compresses it.

    Raises
    ------
    CacheError
        If the file cannot be written.
    """
    chosen = sorted(artifacts, key=lambda artifact: artifact.key)
    manifest = {
        "format": _FORMAT,
        "record": _core.ABI_VERSION,
        "kernels": [_described(artifact) for artifact in chosen],
    }
    members = {_MANIFEST: json.dumps(manifest, sort_keys=True, indent=1).encode()}
    for artifact in chosen:
        members |= {f"{artifact.key}.cubin": artifact.cubin, f"{artifact.key}.host": artifact.host}
    with written_whole(path, "the bundle") as file, zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(_member(name, is_compressed), content)


def read_bundle(path: Path) -> Iterator[Artifact]:
    """Yield the kernels of the bundle `path`, once every one of them has been checked; one is in memory at a time.

    Raises
    ------
    CacheError
        If it is not a whole bundle, or if a kernel is not what its key and its digest say; the message names it.
    """
    try:
        with regular_file(path, "a bundle of kernels") as file, zipfile.ZipFile(file) as archive:
            described = descriptions(path, os.fstat(file.fileno()).st_size, archive)
            for entry in described:
                _artifact(path, archive, entry)
            for entry in described:  # again: the file may have changed in the meantime
                yield _artifact(path, archive, entry)
    except CacheError:
        raise
    except FileNotFoundError as error:
        raise CacheError(f"{path} cannot be read as a bundle of kernels: there is no such file") from error
    except UNREADABLE as error:
        raise CacheError(
            f"{path} cannot be read as a bundle of kernels: {error or type(error).__name__}. "
            "Write it again with `pycutlass cache export`, or copy it again."
        ) from error


def descriptions(path: Path, size: int, archive: zipfile.ZipFile) -> list[dict[str, Any]]:
    """Return what the manifest says of each kernel, if the bundle holds just these and none too large.

    Raises
    ------
    CacheError
        The bundle holds something else, or kernels for another version of the call record; or what `UNREADABLE` lists.
    """
    members = archive.infolist()
    total = sum(member.file_size for member in members)
    if total > _MOST_TIMES_ITS_SIZE * size + (1 << 20):
        raise CacheError(
            f"{path} would unpack to {total:,} bytes, more than {_MOST_TIMES_ITS_SIZE} times its {size:,}: no bundle "
            f"of kernels does"
        )
    manifest = json.loads(_read(path, archive, _MANIFEST, min(_MANIFEST_SHARE * len(members), _LARGEST_MANIFEST)))
    _check_version(path, manifest)
    described = _checked_descriptions(path, manifest.get("kernels"))
    expected = sorted([_MANIFEST, *(f"{entry['key']}.{part}" for entry in described for part in ("cubin", "host"))])
    if sorted(archive.namelist()) != expected:
        odd = sorted(set(archive.namelist()) ^ set(expected)) or ["one name twice"]
        raise CacheError(f"{path} does not hold the files of its manifest and nothing else: {', '.join(odd)}")
    return described


def _check_version(path: Path, manifest: Any) -> None:
    """Raise `CacheError` if the kernels were made for another PyCUTLASS: their host sides take another call record."""
    known = isinstance(manifest, dict)
    found = manifest.get("format") if known else manifest
    record = _RECORDS.get(found, manifest.get("record")) if known and isinstance(found, str) else None
    if isinstance(record, int) and record != _core.ABI_VERSION:
        raise CacheError(
            f"the kernels of {path} were made for call record {record}, and this PyCUTLASS has {_core.ABI_VERSION}: "
            f"compile them again and export them again"
        )
    if found != _FORMAT or record is None:
        raise CacheError(f"{path} is not a bundle that this version reads: it needs {_FORMAT!r} and found {found!r}")


def _read(path: Path, archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Return the content of a member of at most `most` bytes; what the archive says of its size may be wrong."""
    with archive.open(name) as member:
        content = member.read(most + 1)
    if len(content) > most:
        raise CacheError(f"{path}: {name} is larger than the {most:,} bytes that it may have")
    return content


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
        try:
            BuildReport.from_json(entry["report"])
        except ValueError as error:
            raise CacheError(
                f"{path}: kernel {entry['key']} ({entry['name']}) has no whole build report: {error}"
            ) from error
    return kernels


def _artifact(path: Path, archive: zipfile.ZipFile, entry: dict[str, Any]) -> Artifact:
    key = entry["key"]
    cubin, host = (_read(path, archive, f"{key}.{part}", LARGEST_KERNEL) for part in ("cubin", "host"))
    return checked_artifact(path, entry, cubin, host)


def checked_artifact(path: Path, entry: dict[str, Any], cubin: bytes, host: bytes) -> Artifact:
    """Return the kernel that an entry of the manifest describes, if that is what was read.

    Raises
    ------
    CacheError
        Its key or its digest is another one.
    """
    key = entry["key"]
    artifact = Artifact(key, entry["name"], entry["target"], entry["fields"], cubin, host, entry["report"])
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


def _member(name: str, is_compressed: bool) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _STAMP)
    member.compress_type = zipfile.ZIP_DEFLATED if is_compressed else zipfile.ZIP_STORED
    member.external_attr = 0o644 << 16
    member.create_system = 3  # Unix, on whatever system it is written
    return member
