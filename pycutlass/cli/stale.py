"""What is not found any more, because it was made with other headers, compilers or versions than there are here."""

from __future__ import annotations

from collections.abc import Callable

from pycutlass.cache import Artifact, Entry
from pycutlass.compiler.tools import device_compiler_release, find_device_compiler
from pycutlass.errors import PyCutlassError
from pycutlass.toolkit import Memo, find_cutlass, own_headers_digest
from pycutlass.version import __version__

__all__ = ["has_our_headers", "here", "stale"]

#: Fields of a key, and whose headers they are about.
_OF = {"headers": "PyCUTLASS", "cutlass": "CUTLASS", "cuda_headers": "CUDA"}


def has_our_headers(entry: Entry) -> bool:
    """Return whether a kernel was made from the headers of this PyCUTLASS: then it runs without any compiler here."""
    return entry.fields.get("headers") == own_headers_digest()


def stale(memo: Memo) -> Callable[[Entry | Artifact], str]:
    """Return what says of a kernel whose headers have changed since it was built, for example ``other CUTLASS``.

    It says nothing of headers that are not installed: a kernel is found without them.
    """
    here = {"headers": own_headers_digest()}
    looks: dict[str, Callable[[], str]] = {
        "cutlass": lambda: f"{(found := find_cutlass()).version} {found.digest(memo)}",
        "cuda_headers": lambda: (
            f"{(found := find_device_compiler(None, memo)[1]).headers_version} {found.digest(memo)}"
        ),
    }
    for field, look in looks.items():
        try:
            here[field] = look()
        except PyCutlassError:  # `pycutlass doctor` says why
            continue

    def of(entry: Entry | Artifact) -> str:
        other = [_OF[field] for field, now in here.items() if entry.fields.get(field, now) != now]
        return f"other {', '.join(other)}" if other else ""

    return of


def here(memo: Memo) -> dict[str, str]:
    """Return the versions that trials of this machine have now, as far as they are installed."""
    versions = {"pycutlass": __version__}
    looks: dict[str, Callable[[], str]] = {
        "cutlass": lambda: find_cutlass().version,
        "compiler": lambda: device_compiler_release(memo),
    }
    for name, look in looks.items():
        try:
            versions[name] = look()
        except PyCutlassError:  # `pycutlass doctor` says why
            continue
    return versions
