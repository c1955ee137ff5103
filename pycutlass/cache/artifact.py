"""One compiled kernel as a value: its key says what it was made from, its digest what it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pycutlass.errors import ArgumentTypeError

__all__ = ["Artifact", "canonical", "hashed", "make_key"]

# Raise it when the meaning of a key changes: nothing finds the rows of before any more.
_KEY_VERSION = "1"


@dataclass(frozen=True, repr=False)
class Artifact:
    """One compiled kernel, as bytes.

    Parameters
    ----------
    key : str
        `make_key` of `fields`: 64 hexadecimal digits.
    name : str
        Symbol of the kernel.
    target : str
        What the device code was built for, for example ``sm_90a``.
    fields : Mapping[str, str]
        Everything that decides what the compilers make, by label.
    cubin : bytes
        Device code.
    host : bytes
        ELF shared object of the host side.
    report : Mapping[str, Any]
        What the build said (registers, spills, seconds, ...), as JSON can carry it.
    """

    key: str
    name: str
    target: str
    fields: Mapping[str, str] = field(hash=False)
    cubin: bytes
    host: bytes
    report: Mapping[str, Any] = field(hash=False)

    def __repr__(self) -> str:
        registers = f"{self.report['registers']} registers, " if "registers" in self.report else ""
        sizes = f"{len(self.cubin):,} and {len(self.host):,} bytes"
        return f"<Artifact {self.key[:12]}: {self.name} for {self.target}, {registers}{sizes}>"

    @property
    def digest(self) -> str:
        """SHA-256 over all of the artifact, in hexadecimal digits.

        Raises
        ------
        ArgumentTypeError
            If `fields` or `report` hold something that JSON cannot carry.
        """
        texts = (self.key, self.name, self.target, canonical(self.fields), canonical(self.report))
        return hashed([*(text.encode() for text in texts), self.cubin, self.host])


def make_key(fields: Mapping[str, str]) -> str:
    """Return the cache key of labelled `fields`: 64 hexadecimal digits.

    The version of keys comes first, then every label and text in the order of the labels, each with its length before
    it. So two sets of fields have one key only if they are equal, and the key is the same in every process.

    Raises
    ------
    ArgumentTypeError
        If a label or a text is not a string.
    """
    for label, text in fields.items():
        if not isinstance(label, str) or not isinstance(text, str):
            raise ArgumentTypeError(f"a key is made from strings by label, but field {label!r} is {text!r}; use str()")
    parts = ["pycutlass", _KEY_VERSION, *(part for label in sorted(fields) for part in (label, fields[label]))]
    return hashed(parts)


def canonical(mapping: Mapping[str, Any]) -> str:
    """Return `mapping` as JSON, the same text for equal mappings."""
    try:
        return json.dumps(dict(mapping), sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"an artifact's fields and report are JSON, but {mapping!r} is not: {error}") from error


def hashed(parts: Iterable[str | bytes]) -> str:
    """Return the SHA-256 of `parts`, each with its length before it, so that no boundary between them can move."""
    digest = hashlib.sha256()
    for each in parts:
        # Paths that are not UTF-8 reach Python as lone surrogates; they pass as they are.
        part = each.encode(errors="surrogatepass") if isinstance(each, str) else each
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
