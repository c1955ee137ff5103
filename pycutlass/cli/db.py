"""``pycutlass db``: look after the database of measured trials."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from pycutlass.cache import KernelCache
from pycutlass.calls import counted
from pycutlass.cli.output import AsJson, ago, print_json, print_table
from pycutlass.cli.stale import here
from pycutlass.errors import CacheError
from pycutlass.plan.records import name_of
from pycutlass.trials import Database, Trial
from pycutlass.trials.lines import as_json
from pycutlass.trials.ranking import ranked

__all__ = ["commands", "export", "import_", "ls", "merge", "prune", "show", "stale", "verify"]

commands = typer.Typer(
    help="Look after the database of measured trials: which kernel took how long.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0, "y": 365.0}
_VERSIONS = {"cutlass": "CUTLASS", "compiler": "compiler", "pycutlass": "PyCUTLASS"}

Named = Annotated[
    Path | None,
    typer.Option("--database", help="Its file. Default: what PYCUTLASS_DATABASE names, else that of the cache."),
]
Gpu = Annotated[str | None, typer.Option(help="Only trials on GPUs of this name.")]
OneKey = Annotated[str, typer.Argument(metavar="KEY", help="As ls shows it; its first 4 digits may do.")]
Keep = Annotated[
    int | None,
    typer.Option(min=1, help="Of each problem on each machine keep the trials of so many candidates, the fastest."),
]
OlderThan = Annotated[
    str | None, typer.Option(help="Delete what was measured longer ago, for example 12h, 90d, 8w or 1y.")
]
IsStale = Annotated[bool, typer.Option("--stale", help="Delete what `pycutlass db stale` lists.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Delete nothing: show what would be deleted.")]


@commands.command()
def ls(gpu: Gpu = None, database: Named = None, as_json: AsJson = False) -> None:
    """List the problems that were measured, each with its best candidate, the most recently measured first."""
    trials = Database(database, make=False).trials(gpu=gpu)
    facts = _summaries(trials)
    if as_json:
        print_json(facts)
        return
    rows = [
        (
            fact["key"][:12],
            fact["gpu"],
            fact["name"],
            fact["condition"],
            str(fact["trials"]),
            _microseconds(fact["time"]),
            fact["candidate"] or "none that works",
            ago(fact["measured"]),
            fact["stale"],
        )
        for fact in facts
    ]
    if not rows:
        typer.echo("no problem was measured{}; `pycutlass tune` measures".format("" if gpu is None else f" on {gpu}"))
        return
    titles = ("key", "GPU", "problem", "condition", "trials", "best", "candidate", "measured", "stale")
    print_table(titles, rows)


@commands.command()
def show(key: OneKey, database: Named = None, as_json: AsJson = False) -> None:
    """Show all trials of one problem on one machine, the best first."""
    store = Database(database, make=False)
    if not re.fullmatch(r"[0-9a-f]{4,64}", key):
        raise typer.BadParameter(f"a key is 4 to 64 hexadecimal digits, which `pycutlass db ls` shows; got {key!r}")
    trials = store.trials(key=key)
    if not trials:
        raise CacheError(f"no key in {store.path} begins with {key}; `pycutlass db ls` lists them")
    by_key = _grouped(trials)
    if as_json:
        print_json([_as_json(trial) for each in by_key.values() for trial in _ordered(each)])
        return
    for number, each in enumerate(by_key.values()):
        if number:
            typer.echo("")
        machine = json.loads(each[0].machine.text)
        name = name_of(json.loads(each[0].problem))
        facts = {"key": each[0].key, **({"name": name} if name else {}), "problem": each[0].problem, **machine}
        print_table(("", ""), [(name.replace("_", " "), str(value)) for name, value in facts.items()])
        typer.echo("")
        titles = ("condition", "status", "median", "10 % to 90 %", "rounds", "candidate", "host", "date", "reason")
        print_table(titles, [_row(trial) for trial in _ordered(each)])


@commands.command()
def export(file: Path, database: Named = None, gpu: Gpu = None) -> None:
    """Write the trials to a file of JSON lines, for other machines."""
    store = Database(database, make=False)
    count = store.export(file, store.trials(gpu=gpu))
    typer.echo(f"{counted(count, 'trial')} written to {file}")


@commands.command("import")
def import_(file: Path, database: Named = None) -> None:
    """Take in the trials of an exported file: all of them, or none where a line is wrong."""
    _report_taken(Database(database).import_(file))


@commands.command()
def merge(other: Path, database: Named = None) -> None:
    """Take in the trials of another database, which stays as it is."""
    _report_taken(Database(database).merge(other))


@commands.command()
def prune(
    keep: Keep = None,
    older_than: OlderThan = None,
    is_stale: IsStale = False,
    dry_run: DryRun = False,
    database: Named = None,
) -> None:
    """Delete trials; a candidate that gave wrong results stays known until all trials of it go."""
    if keep is None and older_than is None and not is_stale:
        raise typer.BadParameter("give --keep, --older-than or --stale")
    store = Database(database, make=False)
    gone: list[Trial] = []
    if is_stale:
        found = store.stale(**here(KernelCache(make=False).memo))
        gone += found if dry_run else store.remove(found)
    if keep is not None or older_than is not None:
        age = None if older_than is None else _age(older_than)
        gone += store.prune(keep=keep, older_than=age, dry_run=dry_run)
    count = len({trial.digest for trial in gone})
    typer.echo(f"{counted(count, 'trial')} {'would be deleted' if dry_run else 'deleted'}")


@commands.command()
def stale(database: Named = None, as_json: AsJson = False) -> None:
    """List what was measured with other versions than those that are here, and is not looked up any more."""
    found = Database(database, make=False).stale(**(now := here(KernelCache(make=False).memo)))
    if as_json:
        print_json([{**_as_json(trial), "stale": _why(trial, now)} for trial in found])
        return
    if not found:
        typer.echo("no trial is stale: all are of the versions that are here")
        return
    rows = [
        (
            trial.key[:12],
            trial.machine.gpu,
            _called(trial),
            trial.candidate,
            _microseconds(trial.time),
            _why(trial, now),
        )
        for trial in found
    ]
    print_table(("key", "GPU", "problem", "candidate", "median", "stale"), rows)


@commands.command()
def verify(database: Named = None) -> None:
    """Check every trial against its digest.

    Exits with 1 if one differs.
    """
    store = Database(database, make=False)
    problems = store.verify()
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{counted(len(store.trials()), 'trial')}, as measured")


def _summaries(trials: Iterable[Trial]) -> list[dict[str, Any]]:
    """Return one line of `ls` for each key and condition."""
    now = here(KernelCache(make=False).memo)
    lines = []
    for key, each in _grouped(trials).items():
        for condition in sorted({trial.condition for trial in each}):
            best = next(iter(ranked(each, condition)), None)
            measured = [trial for trial in each if trial.condition == condition]
            lines.append(
                {
                    "key": key,
                    "gpu": each[0].machine.gpu,
                    "problem": each[0].problem,
                    "name": _called(each[0]),
                    "condition": condition,
                    "trials": len(measured),
                    "time": best.time if best else None,
                    "candidate": best.candidate if best else None,
                    "measured": max(trial.date for trial in measured).timestamp(),
                    "stale": _why(each[0], now),
                }
            )
    return sorted(lines, key=lambda line: line["measured"], reverse=True)


def _grouped(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    by_key: dict[str, list[Trial]] = {}
    for trial in trials:
        by_key.setdefault(trial.key, []).append(trial)
    return by_key


def _ordered(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of one key: the best in each condition first, then what is not looked up, the latest first."""
    best = [trial for condition in sorted({trial.condition for trial in trials}) for trial in ranked(trials, condition)]
    chosen = {trial.digest for trial in best}
    rest = [trial for trial in trials if trial.digest not in chosen]
    return [*best, *sorted(rest, key=lambda trial: trial.date, reverse=True)]


def _row(trial: Trial) -> tuple[str, ...]:
    spread = "" if trial.low is None or trial.high is None else f"{trial.low:.2f} to {trial.high:.2f}"
    rounds = "" if trial.rounds is None else f"{trial.rounds:,}"
    date = trial.date.strftime("%Y-%m-%d %H:%M UTC")
    measured = (trial.condition, trial.status, _microseconds(trial.time), spread, rounds)
    return (*measured, trial.candidate, trial.host, date, trial.reason)


def _as_json(trial: Trial) -> dict[str, Any]:
    return {**as_json(trial), "key": trial.key}


def _called(trial: Trial) -> str:
    """Return how tables call the problem of a trial: all of it where this version does not know it."""
    return name_of(json.loads(trial.problem)) or trial.problem


def _microseconds(time: float | None) -> str:
    return "" if time is None else f"{time:,.2f} us"


def _why(trial: Trial, now: dict[str, str]) -> str:
    """Return which versions of a trial are not those that are here."""
    other = [called for name, called in _VERSIONS.items() if name in now and getattr(trial.machine, name) != now[name]]
    return f"other {', '.join(other)}" if other else ""


def _age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,5})\s*([hdwy])", text.strip())
    if match is None:
        raise typer.BadParameter(f"an age is a number and one of h, d, w, y, for example 90d; {text!r} is not")
    return timedelta(days=int(match[1]) * _DAYS[match[2]])


def _report_taken(taken: tuple[int, int]) -> None:
    added, present = taken
    typer.echo(f"{counted(added, 'trial')} taken in, {present:,} here already")
