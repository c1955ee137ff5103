"""The package of kernels: bundles that are installed beside PyCUTLASS, and read where they are.

A file says for which PyCUTLASS they are and which bundle has the kernels of which target. Of a bundle the manifest is
read once, and then the bytes of single kernels, from a descriptor that threads and forked processes may share: reads
say where they begin. An upgrade below a running process puts other files in place of these, and leaves these open.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import weakref
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycutlass import _core
from pycutlass.cache.bundle import LARGEST_KERNEL, UNREADABLE, checked_artifact, descriptions, read_bundle
from pycutlass.cache.files import regular_file, written_whole
from pycutlass.cache.store import Artifact
from pycutlass.errors import CacheError

__all__ = ["DISTRIBUTION", "KernelPackage", "PackagedBundle", "write_index"]

#: As it is installed; Python imports it as ``pycutlass_kernels``, which nothing here does.
DISTRIBUTION = "pycutlass-kernels"
_INDEX, _FORMAT = "kernels.json", "pycutlass-kernels-1"
_LARGEST_INDEX = 1 << 20
_LOCAL_HEADER = struct.Struct(
    "<4s22xHH"
)  # before each member of a zip file: a mark, and how long its name and more are


@dataclass(frozen=True)
class PackagedBundle:
    """What the package says of one of its bundles.

    Attributes
    ----------
    file : str
        Its name, beside the index.
    targets : tuple of str
        What its kernels were built for.
    kernels : int
        How many it has.
    """

    file: str
    targets: tuple[str, ...]
    kernels: int


class KernelPackage:
    """The kernels of an installed package, for any number of threads.

    Parameters
    ----------
    directory : Path
        Where the package is.
    version : str
        Of this PyCUTLASS.
    headers : str
        Digest of its headers.

    Raises
    ------
    CacheError
        The package is damaged, or for another PyCUTLASS.
    """

    def __init__(self, directory: Path, version: str, headers: str) -> None:
        self.directory = directory
        self.bundles = _read_index(directory / _INDEX, version, headers)
        self._opened: dict[str, _OpenBundle] = {}
        self._lock = threading.Lock()

    def find(self, fields: Mapping[str, str]) -> Artifact | None:
        """Return the kernel with all of these `fields`, of which name and target are two; None where there is none.

        Raises
        ------
        CacheError
            The bundle, or the kernel in it, is damaged.
        """
        for bundle in self.bundles:
            if fields["target"] in bundle.targets:
                artifact = self._open(bundle).find(fields)
                if artifact is not None:
                    return artifact
        return None

    def problems(self) -> list[str]:
        """Read every kernel and return a sentence for each bundle that is not as it was written; [] if all is well."""
        found = []
        for bundle in self.bundles:
            path = self.directory / bundle.file
            try:
                count = sum(1 for _ in read_bundle(path))
            except CacheError as error:
                found.append(str(error))
            else:
                if count != bundle.kernels:
                    found.append(f"{path} has {count:,} kernels, and {_INDEX} beside it says {bundle.kernels:,}")
        return found

    def _open(self, bundle: PackagedBundle) -> _OpenBundle:
        with self._lock:
            if bundle.file not in self._opened:
                self._opened[bundle.file] = _OpenBundle(self.directory / bundle.file)
            return self._opened[bundle.file]


class _OpenBundle:
    """A bundle of which kernels are read one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with regular_file(path, "a bundle of kernels") as file:
                self._descriptor = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptor)
                with zipfile.ZipFile(file) as archive:
                    described = descriptions(path, os.fstat(file.fileno()).st_size, archive)
                    self._members = {member.filename: member for member in archive.infolist()}
        except CacheError:
            raise
        except UNREADABLE as error:
            reason = (isinstance(error, OSError) and error.strerror) or error or type(error).__name__
            raise CacheError(f"{path} cannot be read as a bundle of kernels: {reason}") from error
        self._by_name: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for entry in described:
            self._by_name.setdefault((entry["name"], entry["target"]), []).append(entry)

    def find(self, fields: Mapping[str, str]) -> Artifact | None:
        for entry in self._by_name.get((fields["name"], fields["target"]), ()):
            if fields.items() <= entry["fields"].items():
                cubin, host = (self._content(f"{entry['key']}.{part}") for part in ("cubin", "host"))
                return checked_artifact(self._path, entry, cubin, host)
        return None

    def _content(self, name: str) -> bytes:
        """Return the content of a member; whether it is the right one, the kernel's digest says."""
        member = self._members[name]
        try:
            if max(member.compress_size, member.file_size) > LARGEST_KERNEL:
                raise CacheError(f"{self._path}: {name} is larger than the {LARGEST_KERNEL:,} bytes that it may have")
            header = os.pread(self._descriptor, _LOCAL_HEADER.size, member.header_offset)
            mark, *lengths = _LOCAL_HEADER.unpack(header)
            begin = member.header_offset + _LOCAL_HEADER.size + sum(lengths)
            content = os.pread(self._descriptor, member.compress_size, begin)
            if mark != b"PK\3\4" or len(content) != member.compress_size:
                raise CacheError(f"{self._path} was changed or cut off: {name} is not where it was")
            if member.compress_type == zipfile.ZIP_STORED:
                return content
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, member.file_size)
        except (OSError, struct.error, zlib.error) as error:
            raise CacheError(f"{self._path} was changed or cut off: {name} cannot be read: {error}") from error


def write_index(directory: Path, version: str, headers: str, bundles: Sequence[PackagedBundle]) -> None:
    """Write the file that says for which PyCUTLASS the package in `directory` is, and which bundles it has.

    Raises
    ------
    CacheError
        It cannot be written.
    """
    listed = [{"file": each.file, "targets": each.targets, "kernels": each.kernels} for each in bundles]
    facts = {"format": _FORMAT, "pycutlass": version, "headers": headers, "record": _core.ABI_VERSION}
    with written_whole(directory / _INDEX, "the index of the package") as file:
        file.write(json.dumps({**facts, "bundles": listed}, indent=1).encode() + b"\n")


def _read_index(path: Path, version: str, headers: str) -> tuple[PackagedBundle, ...]:
    """Return the bundles of a package that is for this PyCUTLASS."""
    index = _content_of(path)
    if not isinstance(index, dict) or index.get("format") != _FORMAT:
        raise CacheError(f"{path} is not the index of a package of kernels: it lacks the line that says {_FORMAT!r}")
    found = index.get("pycutlass")
    if found != version:
        raise CacheError(
            f"its kernels are for PyCUTLASS {found}, and this is {version}: pip install {DISTRIBUTION}=={version}"
        )
    if index.get("headers") != headers or index.get("record") != _core.ABI_VERSION:
        raise CacheError(
            f"its kernels were built from other headers than those of this PyCUTLASS {version}: build the package from "
            f"the same sources, or uninstall it"
        )
    bundles = index.get("bundles")
    if not isinstance(bundles, list):
        raise CacheError(f"{path} is damaged: it lacks the list of its bundles")
    return tuple(_bundle(path, each) for each in bundles)


def _content_of(path: Path) -> Any:
    try:
        with regular_file(path, "the index of a package of kernels") as file:
            text = file.read(_LARGEST_INDEX + 1)
        if len(text) > _LARGEST_INDEX:
            raise CacheError(f"{path} is damaged: it is larger than the {_LARGEST_INDEX:,} bytes that it may have")
        return json.loads(text)
    except (OSError, RecursionError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise CacheError(f"{path} is damaged: {reason}") from error


def _bundle(path: Path, entry: Any) -> PackagedBundle:
    shape = {"file": str, "targets": list, "kernels": int}
    is_whole = isinstance(entry, dict) and {label: type(entry.get(label)) for label in shape} == shape
    if not is_whole or not all(isinstance(target, str) for target in entry["targets"]):
        raise CacheError(f"{path} is damaged: each of its bundles must have {', '.join(shape)}")
    if entry["file"] != os.path.basename(entry["file"]):  # noqa: PTH119
        raise CacheError(f"{path} is damaged: the bundle {entry['file']!r} is not beside it")
    return PackagedBundle(entry["file"], tuple(entry["targets"]), entry["kernels"])
