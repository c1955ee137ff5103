"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer

from pycutlass.cli.table import table

__all__ = ["AsCsv", "AsJson", "ago", "print_csv", "print_json", "print_table"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, folded where the output is a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    for line in table(titles, [*rows], width):
        typer.echo(line)


def print_json(value: object) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


def print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of the same names as CSV, with a line of titles."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    typer.echo(text.getvalue(), nl=False)


def ago(moment: float) -> str:
    """Return how long ago `moment` (seconds UTC) was."""
    seconds = max(0, int(time.time() - moment))
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} seconds ago"
