"""Trials as a file of JSON lines, to carry them to other machines.

Each line is a trial and says itself which version it is of, so such files can be joined, sorted and searched as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pycutlass.cache.files import regular_file, written_whole
from pycutlass.calls import shown
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError
from pycutlass.trials.texts import compact, parsed
from pycutlass.trials.values import Trial, trial_from

__all__ = ["as_json", "read_lines", "write_lines"]

_SCHEMA = 1
_LONGEST = 1 << 18  # bytes of a line
_NESTED = ("problem", "candidate", "machine")  # what is text in a row, and an object in a line


def as_json(trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON has it."""
    fields = trial.fields()
    return fields | {name: json.loads(fields[name]) for name in _NESTED} | {"digest": trial.digest, "schema": _SCHEMA}


def write_lines(path: Path, trials: Iterable[Trial]) -> None:
    """Write trials to the file `path`, all of them or nothing; the same trials give the same bytes.

    Raises
    ------
    CacheError
        If the file cannot be written.
    """
    with written_whole(path, "the file of trials") as file:
        for trial in sorted(trials, key=lambda trial: (trial.key, trial.date, trial.digest)):
            file.write(compact(as_json(trial)).encode() + b"\n")


def read_lines(path: Path) -> Iterator[Trial]:
    """Yield the trials of the file `path`.

    Raises
    ------
    CacheError
        If it cannot be read, or a line is no trial; the message has the number of the line.
    """
    number = 0
    try:
        with regular_file(path, "trials") as file:
            while line := file.readline(_LONGEST + 1):
                number += 1
                if line.strip():
                    yield _trial(line)
    except (ArgumentError, ArgumentTypeError, ValueError) as error:  # a UnicodeDecodeError is a ValueError
        raise CacheError(
            f"line {number} of {path} is no trial, and nothing of the file was taken in: {error}"
        ) from error
    except OSError as error:
        raise CacheError(f"{path} cannot be read as trials: {error.strerror or error}") from error


def _trial(line: bytes) -> Trial:
    if len(line) > _LONGEST:
        raise ArgumentError(f"it has more than {_LONGEST:,} bytes")
    fields = parsed(line.decode())
    schema, digest = fields.pop("schema", None), fields.pop("digest", None)
    if type(schema) is not int or schema != _SCHEMA:
        raise ArgumentError(f"its schema is {shown(schema)}, and this PyCUTLASS reads {_SCHEMA}")
    for name in _NESTED:
        if not isinstance(fields.get(name), dict):
            raise ArgumentTypeError(f"{name} must be a JSON object, got {shown(fields.get(name))}")
        fields[name] = compact(fields[name])
    trial = trial_from(fields)
    if trial.digest != digest:
        raise ArgumentError(f"it was changed: its digest is {trial.digest} and the line says {shown(digest)}")
    return trial
