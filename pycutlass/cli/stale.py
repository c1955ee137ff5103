"""What is not found any more, because it was made with other headers, compilers or versions than there are here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress

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
    with suppress(PyCutlassError):  # `pycutlass doctor` says why
        found = find_cutlass()
        here["cutlass"] = f"{found.version} {found.digest(memo)}"

    @functools.cache
    def cuda_headers(backend: str) -> dict[str, str]:
        """Return the headers of CUDA beside a device compiler, as keys have them; nothing where it is not installed."""
        try:
            toolkit = find_device_compiler(backend or None, memo)[1]
            return {"cuda_headers": f"{toolkit.headers_version} {toolkit.digest(memo)}"}
        except PyCutlassError:
            return {}

    def of(entry: Entry | Artifact) -> str:
        backend = entry.fields.get("device_compiler", "").partition(" ")[0]  # each has headers of its own
        now = here | cuda_headers(backend if backend in ("nvcc", "nvrtc") else "")
        other = [_OF[field] for field, there in now.items() if entry.fields.get(field, there) != there]
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
