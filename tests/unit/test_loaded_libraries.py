"""Files of libraries that are loaded: cut off, replaced, written over, carried to other processes."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import host_library
import pytest

import pycutlass
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError, PyCutlassError, UnknownNameError


def made(path: Path, plan: str = "sum") -> Path:
    """Write a library whose first plan has a name."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_library, "LIBRARY", host_library.LIBRARY.replace('"sum"', f'"{plan}"'))
        return Path(host_library.host_library(path))


def first(path: Path) -> str:
    return next(iter(pycutlass.load_library(path)))


LOADING = """
import sys, pycutlass
for path in sys.argv[1:]:
    try:
        print(list(pycutlass.load_library(path)))
    except pycutlass.errors.CacheError as error:
        print(error)
"""


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    """The loader of the system takes it, and the process ends by a signal."""
    content = made(tmp_path / "whole.so").read_bytes()
    lengths = [0, 1, 20, 63, 64, 100, 1000, 4096, 5000, len(content) // 2, len(content) * 3 // 4, len(content) - 1]
    for length in lengths:
        (tmp_path / f"{length}.so").write_bytes(content[:length])
    paths = [str(tmp_path / f"{length}.so") for length in lengths]
    done = subprocess.run([sys.executable, "-c", LOADING, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(lengths)
    assert all("cannot be loaded as a library of kernels: " in each for each in said)
    assert sum("its end is missing" in each for each in said) == len(lengths) - 4


def test_a_file_that_takes_the_place_of_another_is_loaded(tmp_path: Path) -> None:
    path, plans = tmp_path / "new \u00fc" / "kernels.so", ["one", "two", "three"]
    path.parent.mkdir()
    loaded = []
    for plan in plans:
        made(tmp_path / "next.so", plan).replace(path)
        loaded += [pycutlass.load_library(path), pycutlass.load_library(path)]
    assert [next(iter(each)) for each in loaded] == ["one", "one", "two", "two", "three", "three"]
    assert all(each.path == path for each in loaded)


def test_a_file_that_is_written_over_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_text("no library")
    with pytest.raises(CacheError, match=r"file too short|invalid ELF"):
        pycutlass.load_library(path)
    path.write_bytes(made(tmp_path / "other.so").read_bytes())  # which was not loaded
    assert first(path) == "sum"
    with path.open("ab") as file:  # a file that is made anew in its place would take the code from this process
        file.write(b" ")
    with pytest.raises(CacheError, match="was written over while this process had it loaded"):
        pycutlass.load_library(path)


def test_it_is_pickled_by_its_path(tmp_path: Path) -> None:
    library = pycutlass.load_library(made(tmp_path / "kernels.so"))
    for other in (pickle.loads(pickle.dumps(library)), copy.deepcopy(library), copy.copy(library)):
        assert other.path == library.path and list(other) == list(library)
    plan = pickle.loads(pickle.dumps(library["sums"]))
    assert repr(plan) == repr(library["sums"])
    written = pickle.dumps(library)
    library.path.unlink()
    with pytest.raises(CacheError, match="there is no such file"):
        pickle.loads(written)


def test_names_that_no_plan_has(tmp_path: Path) -> None:
    library = pycutlass.load_library(made(tmp_path / "kernels.so"))
    for name in (3, None, [3], {}, b"sum"):
        with pytest.raises(UnknownNameError, match="has no plan"):
            library[name]
        assert library.get(name) is None


@pytest.mark.parametrize(
    ("scalars", "kind", "message"),
    [
        (None, ArgumentTypeError, "scalars must be a mapping of names to numbers, got None"),
        (3, ArgumentTypeError, "scalars must be a mapping"),
        ([("scale", 1.0)], ArgumentTypeError, "scalars must be a mapping"),
        ({"scale": "x"}, ArgumentTypeError, "the scalar scale must be a number, got 'x'"),
        ({"scale": None}, ArgumentTypeError, "the scalar scale must be a number, got None"),
        ({"scale": 1j}, ArgumentTypeError, "the scalar scale must be a number"),
        ({"scale": 10**400}, ArgumentError, "beyond"),
        ({3: 1.0}, ArgumentTypeError, "sum takes the scalars scale, got 3"),
        ({"x": 1.0}, ArgumentTypeError, "sum takes the scalars scale, got x"),
    ],
)
def test_scalars_that_are_none(scalars: Any, kind: type[PyCutlassError], message: str, tmp_path: Path) -> None:
    plan = pycutlass.load_library(made(tmp_path / "kernels.so"))["sum"]
    with pytest.raises(kind, match=message):
        plan._values(scalars)
