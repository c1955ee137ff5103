"""The command ``pycutlass``: look after the kernel cache and the trials, and see what this machine has and lacks."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from pycutlass import __version__, compiler, config
from pycutlass.cache import Entry, KernelCache
from pycutlass.calls import counted
from pycutlass.cli import db
from pycutlass.cli.diagnosis import diagnoses, is_wrong, looked_for, packages, usable_kernels
from pycutlass.cli.exporting import export_plan
from pycutlass.cli.inspection import facts_of, printed
from pycutlass.cli.output import AsJson, ago, print_json, print_table
from pycutlass.cli.stale import stale
from pycutlass.cli.table import UNITS, size
from pycutlass.cli.tuning import profile, tune_file
from pycutlass.compiler.choice import check_target
from pycutlass.errors import PyCutlassError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Compiled CUTLASS kernels: their cache, and what they need.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)
cache = typer.Typer(help="Look after the cache of compiled kernels.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(cache, name="cache")
app.add_typer(db.commands, name="db")
app.command("tune")(tune_file)
app.command()(profile)
app.command("export")(export_plan)

_OFTEN = "; may be repeated, or several between commas."

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
    store = KernelCache(make=False)
    entries = store.select(**_filters(prefix, target))
    why = stale(store.memo)
    said = {entry.key: why(entry) for entry in entries}
    if as_json:
        print_json([{**asdict(entry), "stale": said[entry.key]} for entry in entries])
        return
    rows = [
        (e.key[:12], e.name, e.target, _compiler(e), size(e.size), ago(e.created), ago(e.last_used), said[e.key])
        for e in entries
    ]
    print_table(("key", "kernel", "target", "compiler", "size", "built", "used", "stale"), rows)


@cache.command()
def info(as_json: AsJson = False) -> None:
    """Show where the cache is and how much is in it, and which package of kernels is installed beside it."""
    facts = asdict(KernelCache(make=False).info())
    facts |= {"directory": str(facts["directory"]), "set_aside": [str(path) for path in facts["set_aside"]]}
    facts["packages"] = [state.facts() for state in packages()]
    if as_json:
        print_json(facts)
        return
    shown = facts | {label: size(facts[label]) for label in ("kernel_bytes", "file_bytes")}
    shown["set_aside"] = ", ".join(facts["set_aside"]) or "none"
    shown["packages"] = "\n".join(map(str, packages())) or "none"
    print_table(("", ""), [(label.replace("_", " "), str(value)) for label, value in shown.items() if value != ""])


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
    store = KernelCache(make=False)
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
    entries = KernelCache(make=False).prune(_bytes(max_size[0]), dry_run=dry_run)
    _report("would be deleted" if dry_run else "deleted", entries)


@cache.command()
def export(
    file: Path,
    kernels: Kernels = None,
    prefix: Prefix = None,
    target: Target = None,
) -> None:
    """Write kernels to one file for other machines; default: all, with a note of how many are stale."""
    store = KernelCache(make=False)
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
    """Check every kernel against its digest, those of an installed package as well.

    Exits with 1 if one differs.
    """
    store = KernelCache(make=False)
    installed = [state.package for state in packages() if state.package is not None]
    problems = [*store.verify(), *(problem for package in installed for problem in package.problems())]
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    packaged = sum(bundle.kernels for package in installed for bundle in package.bundles)
    besides = f", and {packaged:,} of the package" if installed else ""
    typer.echo(f"{counted(len(store.entries()), 'kernel')}{besides}, as built")


@app.command()
def inspect(
    kernel: Annotated[str, typer.Argument(help="Its name, or at least 4 digits of its key.")], as_json: AsJson = False
) -> None:
    """Show a kernel of the cache: source, stages, registers, spills, machine instructions."""
    cache = KernelCache(make=False)
    why = stale(cache.memo)
    facts = [{**facts_of(artifact, cache.memo), "stale": why(artifact)} for artifact in cache.load(kernel)]
    if as_json:
        print_json(facts)
        return
    for number, one in enumerate(facts):
        if number:
            typer.echo("")
        print_table(("", ""), printed(one))
        typer.echo(
            "\n" + (one["source"].rstrip() or "Its source was not kept; kernels that are built now have theirs.")
        )


@app.command()
def warm(
    manifests: Annotated[list[Path], typer.Argument(help="Files that pycutlass.compiler.write_manifest wrote.")],
    target: Annotated[
        list[str] | None, typer.Option(help=f"What to build for, for example sm_90a; default: this GPU{_OFTEN}")
    ] = None,
) -> None:
    """Compile the kernels of manifests that the cache lacks, so that programs which need them compile nothing."""
    targets = [one for given in target or () for one in given.split(",")]
    artifacts = compiler.warm(manifests, target=targets or None)
    kernels = len({artifact.key for artifact in artifacts})
    typer.echo(f"{counted(kernels, 'kernel')} in the cache {KernelCache(make=False).path}")


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show what kernels need and whether it is here.

    Exits with 1 if kernels cannot be built, unless PYCUTLASS_NO_COMPILE says that none are.
    """
    found = looked_for()
    missing = [finding for finding in found if finding.required and not finding.ok]
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        print_table(("", "what", "found", "remedy"), diagnoses(found))
        if missing and not any(map(is_wrong, missing)) and (kernels := usable_kernels()):
            usable = counted(kernels, "kernel")
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
        print_json([{**asdict(variable), "value": config.text(variable.name)} for variable in config.VARIABLES])
        return
    rows = [(v.name, config.text(v.name) or "", v.default, v.meaning) for v in config.VARIABLES]
    print_table(("variable", "now", "default", "meaning"), rows)


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


def _report(done: str, entries: list[Entry]) -> None:
    for entry in entries:
        typer.echo(f"{entry.key[:12]}  {entry.name}  {entry.target}")
    typer.echo(f"{counted(len(entries), 'kernel')} {done}, {size(sum(entry.size for entry in entries))}")


def _compiler(entry: Entry) -> str:
    """Return the device compiler of a kernel, for example ``nvcc 13.0.88``; its assembler is in ``--json``."""
    return str(entry.fields.get("device_compiler", "")).partition(",")[0]


def _filters(prefix: list[str] | None, target: list[str] | None) -> dict[str, list[str]]:
    """Return what ``--prefix`` and ``--target`` say, as far as they were given."""
    given = {"prefix": _listed("--prefix", prefix), "target": _listed("--target", target)}
    for each in given["target"]:
        check_target(each, "--target")
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
    if match is None or match[2].upper() not in UNITS:
        raise typer.BadParameter(f"a size is a number and one of B, kB, MB, GB, KiB, MiB, GiB; {text!r} is not")
    count = Decimal(match[1]) * UNITS[match[2].upper()]  # which has no largest number
    if not match[2] and 0 < count < 1024:
        raise typer.BadParameter(
            f"{text!r} has no unit, and is too little for a kernel in bytes: say {match[1]}MiB or {match[1]}GiB, or 0 "
            f"to delete all"
        )
    return min(int(count), 1 << 64)  # no disk has more
