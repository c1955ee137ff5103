"""What ``pycutlass doctor`` says: what kernels need, and whether it is here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace

from pycutlass import config, toolkit
from pycutlass.cache import KernelCache
from pycutlass.calls import counted
from pycutlass.cli.stale import has_our_headers
from pycutlass.cli.table import size
from pycutlass.compiler.choice import check_target
from pycutlass.compiler.installed import InstalledKernels, PackageState
from pycutlass.compiler.schedule import make_processes
from pycutlass.compiler.tools import find_device_compiler
from pycutlass.errors import PyCutlassError

__all__ = ["diagnoses", "is_wrong", "looked_for", "packages", "usable_kernels"]

_GET_CACHE = "kernels stay in memory; set PYCUTLASS_CACHE_DIR to a directory of your own"


def looked_for() -> list[toolkit.Finding]:
    """Return everything that was looked for, found or not."""
    return [
        *map(_needed, toolkit.findings()),
        *_chosen(),
        toolkit.safely(_cache_finding, "kernel cache", _GET_CACHE, required=False),
        *map(_package_finding, packages()),
    ]


def packages() -> list[PackageState]:
    """Return how it stands with the package of kernels: nothing where it is not installed."""
    return list(InstalledKernels().states(toolkit.own_headers_digest(), None))


def is_wrong(finding: toolkit.Finding) -> bool:
    """Return whether a variable names what is not there: then kernels of the cache are not used either."""
    return finding.remedy.startswith("correct ")


def usable_kernels() -> int:
    """Return how many kernels of the cache this PyCUTLASS finds without a compiler."""
    try:
        return sum(map(has_our_headers, KernelCache(make=False).entries()))
    except PyCutlassError:  # which the row of the cache says
        return 0


def diagnoses(found: Iterable[toolkit.Finding]) -> list[tuple[str, str, str, str]]:
    """Return the rows of a table of what was looked for; what stopped several is said once."""
    rows, said = [], dict[str, toolkit.Finding]()
    for finding in found:
        verdict = "ok" if finding.ok else "MISSING" if finding.required else "absent"
        value, remedy = finding.value, finding.remedy
        if not finding.ok and not finding.tried and said.setdefault(value, finding) is not finding:
            before = said[value]
            value, remedy = f"as {before.name}", "" if remedy == before.remedy else remedy
        elif not finding.ok and finding.tried:
            value += "\ntried: " + ", ".join(finding.tried)
        rows.append((verdict, finding.name, value, remedy))
    return rows


def _chosen() -> list[toolkit.Finding]:
    """Return what is to be said of the variables that choose what kernels are built for, and with."""
    checks: dict[str, Callable[[str], str]] = {
        "PYCUTLASS_TARGET": lambda named: check_target(named, "PYCUTLASS_TARGET")[0],
        "PYCUTLASS_BACKEND": lambda named: find_device_compiler(None, KernelCache(make=False).memo)[0],
        "PYCUTLASS_STRICT": lambda named: "yes" if config.flag("PYCUTLASS_STRICT") else "no",
        "PYCUTLASS_NO_COMPILE": lambda named: "yes" if config.flag("PYCUTLASS_NO_COMPILE") else "no",
        "PYCUTLASS_JOBS": lambda named: f"{make_processes().jobs} at once",
    }

    def look(name: str, value: str) -> toolkit.Finding:
        return toolkit.Finding(name, True, checks[name](value), (), "", required=True)

    named = {name: value for name in checks if (value := config.text(name))}
    return [
        toolkit.safely(functools.partial(look, *each), each[0], f"correct {each[0]} or unset it", required=True)
        for each in named.items()
    ]


def _cache_finding() -> toolkit.Finding:
    facts = KernelCache(make=False).info()
    ok = facts.state in ("read-write", "not made yet")
    remedy = "" if ok else f"{facts.reason.rstrip('.')}. Kernels are compiled again in every process."
    return toolkit.Finding(
        name="kernel cache",
        ok=ok,
        value=f"{facts.directory}, {facts.state}, {counted(facts.kernels, 'kernel')}, {size(facts.kernel_bytes)}",
        tried=(),
        remedy=remedy.strip(),
        required=False,
    )


def _package_finding(state: PackageState) -> toolkit.Finding:
    what, ok = "kernel package", not state.reason
    remedy = "" if ok else "kernels that it has are compiled, or taken from the cache"
    return toolkit.Finding(what, ok, str(state), (), remedy, required=False)


def _needed(finding: toolkit.Finding) -> toolkit.Finding:
    """Return what was looked for as nothing that is needed, where nothing is compiled."""
    if finding.ok or not finding.required or is_wrong(finding) or not _compiles_nothing():
        return finding
    remedy = "not needed: PYCUTLASS_NO_COMPILE is set, kernels are built elsewhere"
    return replace(finding, required=False, remedy=remedy)


def _compiles_nothing() -> bool:
    try:
        return config.flag("PYCUTLASS_NO_COMPILE")
    except PyCutlassError:  # which the row of the variable says
        return False
