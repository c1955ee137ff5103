"""Problems as text: the lines of a CSV file, and the options of a command line, which have the same names."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycutlass.calls import shown, suggestion
from pycutlass.errors import ArgumentError, PyCutlassError
from pycutlass.tuning.named import conv2d_problem_of, group_problem_of, problem_of
from pycutlass.tuning.tunable import Tunable

__all__ = ["named_problem", "read_problems"]

_MOST = 100_000  # products of one group


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be an integer, such as 512; got {shown(text)}") from None


def _pair(text: str) -> Any:
    """Return one number for height and width, or a pair; a padding may be a word as well."""
    if text in ("same", "valid"):
        return text
    numbers = re.fullmatch(r"(\d{1,10})(?:\s*x\s*(\d{1,10}))?", text)
    if numbers is None:
        raise ValueError(f"must be an integer, or two for height and width, such as 1 or 1x2; got {shown(text)}")
    return int(numbers[1]) if numbers[2] is None else (int(numbers[1]), int(numbers[2]))


def _sizes(text: str) -> list[Any]:
    """Return the sizes of a group: M or MxNxK of each product, behind COUNT* where there are several of one size.

    They stand behind spaces, semicolons, commas or on lines of their own; CUTLASS's brackets are taken as well.
    """
    found: list[Any] = []
    for word in re.split(r"[\s,;]+", text.strip().strip("[]").strip()):
        match = re.fullmatch(r"(?:(\d{1,10})\*)?(\d{1,10})(?:x(\d{1,10})x(\d{1,10}))?", word)
        if match is None:
            raise ValueError(f"must be M or MxNxK of each product, such as 64 8*32 128; got {shown(word)}")
        count, m, n, k = match.groups()
        if len(found) + int(count or 1) > _MOST:
            raise ValueError(f"must have at most {_MOST:,} products")
        found += [int(m) if n is None else (int(m), int(n), int(k))] * int(count or 1)
    return found


@dataclass(frozen=True)
class _Family:
    """What problems of a family are called by.

    Attributes
    ----------
    name : str
        Of its problems.
    needed, further : mapping
        Names that there must be, and that there may be, each with what reads its text.
    make : callable
        Returns a problem of what was read.
    """

    name: str
    needed: Mapping[str, Callable[[str], Any]]
    further: Mapping[str, Callable[[str], Any]]
    make: Callable[..., Tunable]


_TYPES = dict.fromkeys(("dtype", "out_dtype", "epilogue", "source"), str)
_GEMMS = _Family(
    "GEMMs", dict.fromkeys(("m", "n", "k"), _integer), {"batch": _integer, "layout": str, **_TYPES}, problem_of
)
_CONVOLUTIONS = _Family(
    "convolutions",
    dict.fromkeys(("n", "h", "w", "c", "k", "r", "s"), _integer),
    {**dict.fromkeys(("stride", "padding", "dilation"), _pair), "groups": _integer, "kind": str, **_TYPES},
    conv2d_problem_of,
)
_GROUPS = _Family(
    "groups", {"problem_sizes": _sizes}, {"n": _integer, "k": _integer, "layout": str, **_TYPES}, group_problem_of
)
_FAMILIES = (_GEMMS, _CONVOLUTIONS, _GROUPS)
#: As CUTLASS's profiler calls them.
_ALIASES = {"pad": "padding", "conv_kind": "kind", "problem-sizes": "problem_sizes"}


def named_problem(given: Mapping[str, str], spelled: Callable[[str], str] = str) -> Tunable:
    """Return the problem that texts by their names describe: a GEMM, a convolution or a group.

    Parameters
    ----------
    given : mapping of str
        Parameters of `problem_of`, `conv2d_problem_of` or `group_problem_of`.
    spelled : callable
        Returns how messages are to call a name, as ``"--m"``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A name that is missing, or that this kind of problem lacks; or as those functions raise.
    """
    family = _family_of(given)
    missing = [spelled(name) for name in family.needed if name not in given]
    if missing:
        others = "; ".join(
            f"{each.name} have {', '.join(map(spelled, each.needed))}" for each in _FAMILIES if each is not family
        )
        raise ArgumentError(f"{family.name} need {', '.join(missing)} too ({others})")
    unknown = [name for name in given if name not in family.needed and name not in family.further]
    if unknown:
        known = [*family.needed, *family.further]
        raise ArgumentError(
            f"{family.name} have no {spelled(unknown[0])}: leave it out; they have {', '.join(map(spelled, known))}"
        )
    return family.make(**_values(family, given, spelled))


def _family_of(names: Iterable[str]) -> _Family:
    """Return the family that names are of: each has some that no other has."""
    found = {*names}
    if "problem_sizes" in found:
        return _GROUPS
    return _CONVOLUTIONS if found & {"h", "w", "c", "r", "s"} else _GEMMS


def read_problems(path: str | os.PathLike[str]) -> list[Tunable]:
    """Return the problems of a CSV file, whose first line names the columns, as parameters are called.

    These are parameters of `problem_of`, `conv2d_problem_of` or `group_problem_of`; a file has problems of one kind, by
    its columns: GEMMs with m, n and k, convolutions with n, h, w, c, k, r and s, or groups with problem_sizes.

    Raises
    ------
    ArgumentError
        The file cannot be read, or a line is no problem; the message has its number, and the column where it has one.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise ArgumentError(f"{file} cannot be read as a list of problems: {why}") from error
    problems = list(_problems(file, text))
    if not problems:
        raise ArgumentError(
            f"{file} has no problem: below the names of the columns, such as m,n,k, it needs a line for each problem"
        )
    return problems


def _problems(file: Path, text: str) -> Iterator[Tunable]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    titles = [title.strip().lower() for title in reader.fieldnames or ()]
    titles = [_ALIASES.get(title, title) for title in titles]
    family = _family_of(titles)
    _check_titles(file, titles, family)
    reader.fieldnames = titles
    for line in reader:
        where = f"{file}, line {reader.line_num}"
        if None in line or None in line.values():
            raise ArgumentError(f"{where}: it has {_values_of(line)} values, and the file has {len(titles)} columns")
        given = {name: value.strip() for name, value in line.items() if value.strip()}
        if missing := [name for name in family.needed if name not in given]:
            raise ArgumentError(f"{where}, column {missing[0]}: it is empty, and {family.name} need it")
        values = _values(family, given, (f"{where}, column " + "{}: it").format)
        try:
            yield family.make(**values)
        except PyCutlassError as error:
            raise ArgumentError(f"{where}: {error}") from error


def _values_of(line: Mapping[Any, Any]) -> int:
    """Return how many values a line has: what is beyond the columns is under None, and what is missing is None."""
    return sum(len(value) if name is None else value is not None for name, value in line.items())


def _values(family: _Family, given: Mapping[str, str], named: Callable[[str], str]) -> dict[str, Any]:
    """Return what texts mean; `named` begins the message about one that means nothing."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        try:
            values[name] = (family.needed.get(name) or family.further[name])(text)
        except ValueError as error:
            raise ArgumentError(f"{named(name)} {error}") from None
    return values


def _check_titles(file: Path, titles: list[str], family: _Family) -> None:
    """Raise ArgumentError unless titles are those of one family, each once."""
    known = [*family.needed, *family.further]
    unknown = [title for title in titles if title not in known]
    twice = [title for title in titles if titles.count(title) > 1]
    if not unknown and not twice and not set(family.needed) - set(titles):
        return
    hint = suggestion(unknown[0], known) if unknown else f" {twice[0]} is there twice." if twice else ""
    others = "; ".join(f"of {each.name} {', '.join(each.needed)}" for each in _FAMILIES if each is not family)
    raise ArgumentError(
        f"{file} needs the columns {', '.join(family.needed)}, named in its first line, and may have "
        f"{', '.join(family.further)}; it has {', '.join(titles) or 'none'}.{hint} Other problems have other columns: "
        f"{others}"
    )
