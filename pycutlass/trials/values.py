"""What a trial is: one candidate, measured on one problem by one machine."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

from pycutlass.cache import make_key
from pycutlass.calls import public, shown, suggestion
from pycutlass.errors import ArgumentError, ArgumentTypeError
from pycutlass.integers import as_int, real
from pycutlass.trials.texts import canonical, compact

__all__ = [
    "CALLED",
    "CONDITIONS",
    "OTHER_CONDITIONS",
    "STATUSES",
    "Machine",
    "Trial",
    "at_least",
    "checked_choice",
    "checked_condition",
    "checked_machine",
    "key_beginning",
    "key_of",
    "listed",
    "positive",
    "trial_from",
    "without_name",
]

#: States of the L2 cache in which candidates are measured, with operands of a normal distribution.
CONDITIONS = ("cold", "warm")
#: The same with operands of other distributions, whose times are no measure of those: zeros take less power.
OTHER_CONDITIONS = tuple(f"{state}, {of}" for of in ("uniform", "integers", "zeros") for state in CONDITIONS)
STATUSES = ("ok", "wrong", "failed", "timeout")
#: What a problem calls its epilogue: functions of other names compute the same, so that it is no part of a key.
CALLED = "epilogue_name"

_LONGEST_NAME = 300
_LONGEST_REASON = 2000
_MOST_ROUNDS = 10**9
_KEY_VERSION = "1"  # raise it when the meaning of a key changes: nothing finds the rows of before any more


@public
@dataclass(frozen=True)
class Machine:
    """What a time depends on beside problem and candidate: the GPU, and what kernels are made with.

    Parameters
    ----------
    gpu : str
        Name of the GPU, as the driver gives it.
    sm_count : int
        Number of its multiprocessors.
    compute_capability : int
        For example 90.
    cutlass : str
        Version of CUTLASS.
    compiler : str
        The device compiler and its version, for example ``"nvcc 13.0.88"``.
    pycutlass : str
        Version of PyCUTLASS.
    power_limit : float, optional
        The GPU's, in watts. Default: not known.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A name that is empty or not text, or a number that is not positive.

    Examples
    --------
    >>> from pycutlass.trials import Machine
    >>> Machine("NVIDIA H200", 132, 90, "4.2.0", "nvcc 13.0.88", "0.1.0", 700).power_limit
    700.0
    """

    gpu: str
    sm_count: int
    compute_capability: int
    cutlass: str
    compiler: str
    pycutlass: str
    power_limit: float | None = None

    def __post_init__(self) -> None:
        for name in ("gpu", "cutlass", "compiler", "pycutlass"):
            object.__setattr__(self, name, _name(name, getattr(self, name)))
        for name in ("sm_count", "compute_capability"):
            object.__setattr__(self, name, _count(name, getattr(self, name), 10_000))
        if self.power_limit is not None:
            object.__setattr__(self, "power_limit", positive("power_limit", "watts", self.power_limit))

    @cached_property
    def text(self) -> str:
        """Canonical JSON."""
        return compact(dataclasses.asdict(self))


@public
@dataclass(frozen=True)
class Trial:
    """One candidate, measured on one problem by one machine.

    Parameters
    ----------
    problem : str or mapping
        An object of JSON that says all of the problem that a time depends on: types, layouts, alignments, sizes or
        ranges of sizes, kind of epilogue. It is kept as canonical JSON.
    candidate : str or mapping
        The same of the kernel and the options of its launch.
    machine : Machine
        Where it was measured, and with what it was made.
    time : float, optional
        Median in microseconds.
    low, high : float, optional
        The 10th and the 90th percentile, in microseconds.
    rounds : int, optional
        Number of measurements.
    condition : str
        ``"cold"``: the operands were not in the L2 cache; ``"warm"``: they were, as far as they fit.
    status : str
        ``"ok"``, or why there is no time: ``"wrong"`` results, ``"failed"``, ``"timeout"``.
    reason : str
        What was wrong, where there is no time.
    host : str, optional
        Name of the host. Default: this one.
    date : datetime, optional
        With a time zone; kept in UTC. Default: now.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A time that is not positive and finite, or missing where the status is ``"ok"``, or that does not lie between
        `low` and `high`; any other value that is not of its kind.

    Examples
    --------
    >>> from pycutlass.trials import Machine, Trial
    >>> h200 = Machine("NVIDIA H200", 132, 90, "4.2.0", "nvcc 13.0.88", "0.1.0")
    >>> trial = Trial({"n": 8, "m": 16}, {"tile": [128, 128, 64]}, h200, time=9.5, low=9.4, high=9.9, rounds=20)
    >>> trial.problem
    '{"m":16,"n":8}'
    """

    problem: Any
    candidate: Any
    machine: Machine
    time: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int | None = None
    condition: str = "cold"
    status: str = "ok"
    reason: str = ""
    host: str = dataclasses.field(default_factory=lambda: platform.node() or "unknown")
    date: datetime = dataclasses.field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        checked = {
            "problem": canonical("problem", self.problem),
            "candidate": canonical("candidate", self.candidate),
            "machine": checked_machine(self.machine),
            "condition": checked_condition(self.condition),
            "status": checked_choice("status", self.status, STATUSES),
            "reason": _reason(self.status, self.reason),
            "host": _name("host", self.host),
            "date": _utc(self.date),
            **(_times(self) if self.status == "ok" else _no_times(self)),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def key(self) -> str:
        """What trials have in common that may be compared: a digest of problem and machine."""
        return key_of(self.problem, self.machine)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all of it, in hexadecimal digits."""
        return make_key({"trial": _KEY_VERSION, **{name: _written(value) for name, value in self.fields().items()}})

    def fields(self) -> dict[str, Any]:
        """Return all of it by name, as a row of a table can hold it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"machine": self.machine.text, "date": self.date.isoformat(timespec="microseconds")}


@lru_cache(maxsize=1024)
def key_of(problem: str, machine: Machine) -> str:
    """Return the key of trials of a problem, as canonical JSON, on a machine."""
    return make_key({"trials": _KEY_VERSION, "problem": without_name(problem), "machine": machine.text})


def without_name(problem: str) -> str:
    """Return a problem, as canonical JSON, without what it calls its epilogue."""
    if f'"{CALLED}":' not in problem:
        return problem
    try:
        facts = json.loads(problem)
    except ValueError:  # of a damaged row, which is told of where it is read
        return problem
    return compact({name: value for name, value in facts.items() if name != CALLED}) if type(facts) is dict else problem


def trial_from(fields: Mapping[str, Any]) -> Trial:
    """Return the trial that someone else has written: `Trial.fields`, where anything may be wrong.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Fields are missing or unknown, or hold what a trial does not.
    """
    _check_names("a trial", fields, Trial)
    machine = fields["machine"]
    machine = _machine(machine) if isinstance(machine, str) else machine
    return Trial(**{**fields, "machine": machine, "date": _date(fields["date"])})


def checked_machine(machine: Any) -> Machine:
    """Return `machine`.

    Raises
    ------
    ArgumentTypeError
        It is no Machine.
    """
    if not isinstance(machine, Machine):
        raise ArgumentTypeError(f"machine must be a pycutlass.trials.Machine, got {shown(machine)}")
    return machine


def checked_condition(value: Any) -> str:
    """Return `value`, if trials have such a condition.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        They have not, or it is no text.
    """
    return checked_choice("condition", value, (*CONDITIONS, *OTHER_CONDITIONS))


def checked_choice(name: str, value: Any, known: tuple[str, ...]) -> str:
    """Return `value`, if it is one of the `known` texts.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is none of them, or no text.
    """
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name} must be one of {', '.join(map(repr, known))}; got {shown(value)}")
    if value not in known:
        near = suggestion(value, known)
        raise ArgumentError(f"{name} must be one of {', '.join(map(repr, known))}; got {shown(value)}.{near}")
    return str.__str__(value)


def positive(name: str, unit: str, value: Any) -> float:
    """Return a number of some `unit`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is not positive and finite, or no number.
    """
    number = None if isinstance(value, bool) else real(value, name)
    if number is None:
        raise ArgumentTypeError(f"{name} must be a number of {unit}, got {shown(value)}")
    if not (math.isfinite(number) and number > 0):
        raise ArgumentError(f"{name} must be a positive number of {unit}, got {number}")
    return number


def at_least(least: int, name: str, value: Any) -> int:
    """Return a number of things.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is less, or no integer.
    """
    number = as_int(value, name)
    if number is None:
        raise ArgumentTypeError(f"{name} must be an integer, got {shown(value)}")
    if number < least:
        raise ArgumentError(f"{name} must be at least {least}, got {number}")
    return number


def key_beginning(key: Any) -> str:
    """Return the beginning of a trial's key.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is none.
    """
    if not isinstance(key, str):
        raise ArgumentTypeError(f"key must be the beginning of a trial's key, got {shown(key)}")
    if not key or set(key) - set("0123456789abcdef"):
        raise ArgumentError(f"key must be the beginning of a trial's key, hexadecimal digits; got {shown(key)}")
    return key


def listed(trials: Any) -> list[Trial]:
    """Return one trial or several as a list.

    Raises
    ------
    ArgumentTypeError
        That is something else than trials.
    """
    if isinstance(trials, Trial):
        return [trials]
    try:
        found = list(trials)
    except TypeError:
        raise ArgumentTypeError(f"trials must be a Trial or several, got {shown(trials)}") from None
    for each in found:
        if not isinstance(each, Trial):
            raise ArgumentTypeError(f"trials must be a Trial or several, got {shown(each)} among them")
    return found


@lru_cache(maxsize=64)
def _machine(text: str) -> Machine:
    """Return the machine that canonical JSON describes."""
    fields = json.loads(canonical("machine", text))
    _check_names("a machine", fields, Machine)
    return Machine(**fields)


def _check_names(what: str, fields: Mapping[str, Any], kind: type[Any]) -> None:
    """Raise ArgumentError unless `fields` have the names that the dataclass `kind` has."""
    names = {field.name for field in dataclasses.fields(kind)}
    missing, unknown = sorted(names - fields.keys()), sorted(fields.keys() - names)
    if missing:
        raise ArgumentError(f"{what} has {', '.join(sorted(names))}; this one lacks {', '.join(missing)}")
    if unknown:
        raise ArgumentError(f"{what} has {', '.join(sorted(names))} and nothing else; got {shown(unknown)}")


def _times(trial: Trial) -> dict[str, Any]:
    times = {name: positive(name, "microseconds", getattr(trial, name)) for name in ("time", "low", "high")}
    if not times["low"] <= times["time"] <= times["high"]:
        raise ArgumentError(
            f"time must lie between low and high, the 10th and 90th percentile; got low {times['low']}, time "
            f"{times['time']} and high {times['high']}"
        )
    return {**times, "rounds": _count("rounds", trial.rounds, _MOST_ROUNDS)}


def _no_times(trial: Trial) -> dict[str, Any]:
    given = [name for name in ("time", "low", "high", "rounds") if getattr(trial, name) is not None]
    if given:
        raise ArgumentError(f"a trial of status {trial.status!r} has no times: leave out {', '.join(given)}")
    return {}


def _reason(status: str, reason: Any) -> str:
    """Return the reason as it can be kept: its beginning, where it is the whole log of a compiler."""
    if not isinstance(reason, str):
        raise ArgumentTypeError(f"reason must be text, got {shown(reason)}")
    if (status == "ok") == bool(reason):
        rule = "has no reason: leave it out" if reason else "needs a reason, which says what was wrong"
        raise ArgumentError(f"a trial of status {status!r} {rule}")
    # What a terminal would obey, and halves of surrogate pairs, which no file can hold, become what Python writes.
    plain = (each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in reason)
    return "".join(plain)[:_LONGEST_REASON]


def _utc(date: Any) -> datetime:
    if not isinstance(date, datetime):
        raise ArgumentTypeError(f"date must be a datetime with a time zone, got {shown(date)}")
    if date.utcoffset() is None:
        raise ArgumentError(f"date must have a time zone, such as datetime.now(datetime.UTC); got {date}")
    try:
        return date.astimezone(UTC)
    except OverflowError:
        raise ArgumentError(f"date {date} is none in UTC") from None


def _date(text: Any) -> datetime:
    """Return the date that is written as ISO 8601."""
    if not isinstance(text, str):
        raise ArgumentTypeError(f"date must be text such as 2026-11-25T08:00:00+00:00, got {shown(text)}")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentError(f"date must be a date such as 2026-11-25T08:00:00+00:00, got {shown(text)}") from None


def _name(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name} must be text, got {shown(value)}")
    if not value.strip() or not value.isprintable() or len(value) > _LONGEST_NAME:
        raise ArgumentError(f"{name} must be one line of 1 to {_LONGEST_NAME} characters, got {shown(value)}")
    return str.__str__(value)


def _count(name: str, value: Any, most: int) -> int:
    number = as_int(value)
    if number is None:
        raise ArgumentTypeError(f"{name} must be an integer, got {shown(value)}")
    if not 1 <= number <= most:
        raise ArgumentError(f"{name} must be 1 to {most:,}, got {number}")
    return number


def _written(value: Any) -> str:
    """Return a field for a digest; the shortest text of a float is of that float alone."""
    return "" if value is None else value if isinstance(value, str) else repr(value)
