"""What is said of kernels that the cache lacks, where nothing can or may compile them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pycutlass.cache import KernelCache, make_key
from pycutlass.calls import counted
from pycutlass.compiler.choice import Choice, Wanted, portable_fields
from pycutlass.errors import NotCompiledError, ToolkitError

__all__ = ["at_hand", "forbidden", "forbidden_without_compilers"]

_IMPORT = "kernels that were exported elsewhere: pycutlass cache import FILE"


def at_hand(cache: KernelCache, missing: Sequence[Wanted], headers: str) -> str:
    """Return a sentence for each kernel that the cache has for other targets, or from other compilers."""
    entries, sentences = cache.entries(), []
    for want in missing:
        fields = portable_fields(want.source, want.target, headers)
        del fields["target"]
        targets = sorted({entry.target for entry in entries if fields.items() <= entry.fields.items()})
        if targets:
            other = " (made by other compilers)" if want.target in targets else ""
            sentences.append(f" It has {want.source.name} for {', '.join(targets)}{other}.")
    return "".join(sentences)


def forbidden(cache: KernelCache, package: str, missing: Sequence[Wanted], choice: Choice) -> NotCompiledError:
    """Return the exception for kernels that may not be compiled, with what the first would have been made from.

    What is said of the installed package is `package`.
    """
    first = missing[0]
    fields = choice.key_fields(first.source, first.target)
    known = f"would have the key {make_key(fields)}, made from"
    remedy = f"Unset the variable to compile them, or import {_IMPORT}."
    return _forbidden(cache, package, missing, fields["headers"], known, fields, remedy)


def forbidden_without_compilers(
    cache: KernelCache, package: str, missing: Sequence[Wanted], headers: str, absence: ToolkitError
) -> NotCompiledError:
    """Return the exception for kernels that may not be compiled, and here could not be: no key is known, a part is."""
    fields = portable_fields(missing[0].source, missing[0].target, headers)
    known = "would be found by what its key has of it beside compilers:"
    remedy = f"Import {_IMPORT}. To compile them here, unset the variable and get what is missing: {absence}"
    return _forbidden(cache, package, missing, headers, known, fields, remedy)


def _forbidden(
    cache: KernelCache,
    package: str,
    missing: Sequence[Wanted],
    headers: str,
    first: str,
    fields: Mapping[str, str],
    remedy: str,
) -> NotCompiledError:
    listed = "\n".join(f"  {label}: {text}" for label, text in sorted(fields.items()))
    names = ", ".join(f"{want.source.name} for {want.target}" for want in missing)
    return NotCompiledError(
        f"PYCUTLASS_NO_COMPILE is set and the cache {cache.path} lacks {counted(len(missing), 'kernel')}: {names}."
        f"{at_hand(cache, missing, headers)}{package} The first {first}\n{listed}\n{remedy}"
    )
