"""The command ``pycutlass``: look after the kernel cache, and see what this machine has and lacks."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from pycutlass import __version__, config, toolkit
from pycutlass.cache import Entry, KernelCache
from pycutlass.calls import counted
from pycutlass.cli.inspection import facts_of, printed
from pycutlass.cli.stale import has_our_headers, stale
from pycutlass.cli.table import table
from pycutlass.compiler.choice import check_target
from pycutlass.compiler.schedule import make_processes
from pycutlass.compiler.tools import find_device_compiler
from pycutlass.errors import PyCutlassError

__all__ = ["app", "main"]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

_GET_CACHE = "kernels stay in memory; set PYCUTLASS_CACHE_DIR to a directory of your own"

app = typer.Typer(
    help="Compiled CUTLASS kernels: their cache, and what they need.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)
cache = typer.Typer(help="Look after the cache of compiled kernels.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(cache, name="cache")

_OFTEN = "; may be repeated, or several between commas."

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Kernels = Annotated[
    list[str] | None, typer.Argument(metavar="KERNEL", help="Names, or beginnings of keys: at least 4 digits.")
]
Prefix = Annotated[list[str] | None, typer.Option(help=f"Only kernels whose names begin with this{_OFTEN}")]
Target = Annotated[list[str] | None, typer.Option(help=f"Only kernels for this target, for example sm_90a{_OFTEN}")]


def main() -> None:
    """Run the command line; exit with 1, and a sentence on stderr, where something is wrong."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold what the terminal cannot show
    try:
        try:
            app(prog_name="pycutlass")
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where it can be said that the disk is full
    except PyCutlassError as error:
        _fail(str(error))
    except BrokenPipeError:  # who reads it has seen enough
        _fail("")
    except OSError as error:
        _fail(f"not everything could be written: {error.strerror or error}")


def _fail(message: str) -> NoReturn:
    """Exit with 1, also where neither stream takes anything any more."""
    with contextlib.suppress(OSError, ValueError):
        if message:
            typer.echo(f"pycutlass: {message}", err=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # what is left in it is lost, and said to be
            with contextlib.suppress(AttributeError, OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or the interpreter would exit with 120
    sys.exit(1)


@cache.command()
def ls(prefix: Prefix = None, target: Target = None, as_json: AsJson = False) -> None:
    """List the kernels, the most recently used first.

    A kernel is stale if it was built from other headers than those that are here: it is not found any more. Sizes are
    those in the cache, where kernels are compressed.
    """
    store = KernelCache()
    entries = store.select(**_filters(prefix, target))
    why = stale(store.memo)
    said = {entry.key: why(entry) for entry in entries}
    if as_json:
        _print_json([{**asdict(entry), "stale": said[entry.key]} for entry in entries])
        return
    rows = [
        (e.key[:12], e.name, e.target, _compiler(e), _size(e.size), _ago(e.created), _ago(e.last_used), said[e.key])
        for e in entries
    ]
    _print_table(("key", "kernel", "target", "compiler", "size", "built", "used", "stale"), rows)


@cache.command()
def info(as_json: AsJson = False) -> None:
    """Show where the cache is and how much is in it."""
    facts = asdict(KernelCache().info())
    facts |= {"directory": str(facts["directory"]), "set_aside": [str(path) for path in facts["set_aside"]]}
    if as_json:
        _print_json(facts)
        return
    shown = facts | {label: _size(facts[label]) for label in ("kernel_bytes", "file_bytes")}
    shown["set_aside"] = ", ".join(facts["set_aside"]) or "none"
    _print_table(("", ""), [(label.replace("_", " "), str(value)) for label, value in shown.items() if value != ""])


@cache.command()
def rm(
    kernels: Kernels = None,
    prefix: Prefix = None,
    target: Target = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete every kernel.")] = False,
) -> None:
    """Delete kernels."""
    filters = _filters(prefix, target)
    if bool(kernels or filters) == everything:
        raise typer.BadParameter("give kernels, --prefix or --target, or --all")
    store = KernelCache()
    chosen = store.select(kernels or None, **filters)
    _report("deleted", store.remove(*(entry.key for entry in chosen)))


@cache.command()
def prune(
    max_size: Annotated[list[str], typer.Option(help="Keep at most this much, for example 2GiB, 500MB or 0.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing: show what would be deleted.")] = False,
) -> None:
    """Delete kernels, the least recently used first, until the rest fit."""
    if len(max_size) > 1:
        raise typer.BadParameter(f"--max-size is given {len(max_size)} times: give it once")
    entries = KernelCache().prune(_bytes(max_size[0]), dry_run=dry_run)
    _report("would be deleted" if dry_run else "deleted", entries)


@cache.command()
def export(
    file: Path,
    kernels: Kernels = None,
    prefix: Prefix = None,
    target: Target = None,
) -> None:
    """Write kernels to one file for other machines; default: all, with a note of how many are stale."""
    store = KernelCache()
    entries = store.export(file, kernels or None, **_filters(prefix, target))
    _report(f"written to {file}", entries)
    why = stale(store.memo)
    if said := [reason for entry in entries if (reason := why(entry))]:
        reasons = "; ".join(sorted({*said}))
        typer.echo(f"{len(said)} of them {'is' if len(said) == 1 else 'are'} stale, not found here any more: {reasons}")


@cache.command("import")
def import_(file: Path) -> None:
    """Take in the kernels of an exported file.

    It holds native code: take it only from those whose programs you would run.
    """
    result = KernelCache().import_(file)
    typer.echo(f"{counted(len(result.added), 'kernel')} taken in, {len(result.present)} here already")
    if result.in_memory:
        lost = counted(len(result.in_memory), "kernel")
        typer.echo(f"pycutlass: {lost} could not be written, and will be lost", err=True)
        raise typer.Exit(1)


@cache.command()
def verify() -> None:
    """Check every kernel against its digest.

    Exits with 1 if one differs.
    """
    store = KernelCache()
    problems = store.verify()
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{counted(len(store.entries()), 'kernel')}, as built")


@app.command()
def inspect(
    kernel: Annotated[str, typer.Argument(help="Its name, or at least 4 digits of its key.")], as_json: AsJson = False
) -> None:
    """Show a kernel of the cache: source, stages, registers, spills, machine instructions."""
    cache = KernelCache()
    why = stale(cache.memo)
    facts = [{**facts_of(artifact, cache.memo), "stale": why(artifact)} for artifact in cache.load(kernel)]
    if as_json:
        _print_json(facts)
        return
    for number, one in enumerate(facts):
        if number:
            typer.echo("")
        _print_table(("", ""), printed(one))
        typer.echo(
            "\n" + (one["source"].rstrip() or "Its source was not kept; kernels that are built now have theirs.")
        )


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show what kernels need and whether it is here.

    Exits with 1 if kernels cannot be built, unless PYCUTLASS_NO_COMPILE says that none are.
    """
    found = [
        *map(_needed, toolkit.findings()),
        *_chosen(),
        toolkit.safely(_cache_finding, "kernel cache", _GET_CACHE, required=False),
    ]
    missing = [finding for finding in found if finding.required and not finding.ok]
    if as_json:
        _print_json([asdict(finding) for finding in found])
    else:
        _print_table(("", "what", "found", "remedy"), _diagnoses(found))
        if missing and not any(map(_is_wrong, missing)) and (built := _built()):
            usable = counted(built, "kernel")
            typer.echo(
                f"\n{usable} in the cache can be used without a compiler. To build no others, set "
                f"PYCUTLASS_NO_COMPILE=1."
            )
    if missing:
        raise typer.Exit(1)


@app.command()
def env(as_json: AsJson = False) -> None:
    """Show the environment variables that PyCUTLASS reads."""
    if as_json:
        _print_json([{**asdict(variable), "value": config.text(variable.name)} for variable in config.VARIABLES])
        return
    rows = [(v.name, config.text(v.name) or "", v.default, v.meaning) for v in config.VARIABLES]
    _print_table(("variable", "now", "default", "meaning"), rows)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pycutlass {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _chosen() -> list[toolkit.Finding]:
    """Return what is to be said of the variables that choose what kernels are built for, and with."""
    checks: dict[str, Callable[[str], str]] = {
        "PYCUTLASS_TARGET": lambda named: check_target(named, "PYCUTLASS_TARGET")[0],
        "PYCUTLASS_BACKEND": lambda named: find_device_compiler(None, KernelCache().memo)[0],
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
    facts = KernelCache().info()
    remedy = (
        ""
        if facts.state == "read-write"
        else f"{facts.reason.rstrip('.')}. Kernels are compiled again in every process."
    )
    return toolkit.Finding(
        name="kernel cache",
        ok=facts.state == "read-write",
        value=f"{facts.directory}, {facts.state}, {counted(facts.kernels, 'kernel')}, {_size(facts.kernel_bytes)}",
        tried=(),
        remedy=remedy.strip(),
        required=False,
    )


def _needed(finding: toolkit.Finding) -> toolkit.Finding:
    """Return what was looked for as nothing that is needed, where nothing is compiled."""
    if finding.ok or not finding.required or _is_wrong(finding) or not _compiles_nothing():
        return finding
    remedy = "not needed: PYCUTLASS_NO_COMPILE is set, kernels are built elsewhere"
    return replace(finding, required=False, remedy=remedy)


def _compiles_nothing() -> bool:
    try:
        return config.flag("PYCUTLASS_NO_COMPILE")
    except PyCutlassError:  # which the row of the variable says
        return False


def _is_wrong(finding: toolkit.Finding) -> bool:
    """Return whether a variable names what is not there: then kernels of the cache are not used either."""
    return finding.remedy.startswith("correct ")


def _built() -> int:
    """Return how many kernels of the cache this PyCUTLASS finds without a compiler."""
    try:
        return sum(map(has_our_headers, KernelCache().entries()))
    except PyCutlassError:  # which the row of the cache says
        return 0


def _diagnoses(found: Iterable[toolkit.Finding]) -> list[tuple[str, str, str, str]]:
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


def _print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, folded where the output is a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    for line in table(titles, [*rows], width):
        typer.echo(line)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


def _report(done: str, entries: list[Entry]) -> None:
    for entry in entries:
        typer.echo(f"{entry.key[:12]}  {entry.name}  {entry.target}")
    typer.echo(f"{counted(len(entries), 'kernel')} {done}, {_size(sum(entry.size for entry in entries))}")


def _compiler(entry: Entry) -> str:
    """Return the device compiler of a kernel, for example ``nvcc 13.0.88``; its assembler is in ``--json``."""
    return str(entry.fields.get("device_compiler", "")).partition(",")[0]


def _filters(prefix: list[str] | None, target: list[str] | None) -> dict[str, list[str]]:
    """Return what ``--prefix`` and ``--target`` say, as far as they were given."""
    given = {"prefix": _listed("--prefix", prefix), "target": _listed("--target", target)}
    return {name: values for name, values in given.items() if values}


def _listed(option: str, values: list[str] | None) -> list[str]:
    """Return the values of an option that was given any number of times, some with several values between commas."""
    listed = [part.strip() for value in values or () for part in value.split(",")]
    if not all(listed):
        raise typer.BadParameter(f"{option} is empty")
    return listed


def _bytes(text: str) -> int:
    """Return the number of bytes that `text` says, for example 2GiB, 500 MB or 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise typer.BadParameter(f"a size is a number and one of B, kB, MB, GB, KiB, MiB, GiB; {text!r} is not")
    count = Decimal(match[1]) * _UNITS[match[2].upper()]  # which has no largest number
    if not match[2] and 0 < count < 1024:
        raise typer.BadParameter(
            f"{text!r} has no unit, and is too little for a kernel in bytes: say {match[1]}MiB or {match[1]}GiB, or 0 "
            f"to delete all"
        )
    return min(int(count), 1 << 64)  # no disk has more


def _size(count: int) -> str:
    """Return `count` bytes for people."""
    if count < 1024:
        return f"{count} B"
    unit = next((unit for unit in ("MiB", "KiB") if count >= _UNITS[unit.upper()]), "KiB")
    return f"{count / _UNITS[unit.upper()]:.1f} {unit}"


def _ago(moment: float) -> str:
    """Return how long ago `moment` (seconds UTC) was."""
    seconds = max(0, int(time.time() - moment))
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} seconds ago"
