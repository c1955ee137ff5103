"""Whoever only reports makes nothing, and says what whoever needs the cache would find."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run

from pycutlass.cache import KernelCache, locking

PLACES: dict[str, Callable[[Path], Path]] = {
    "nothing": lambda root: root / "cache",
    "nothing above": lambda root: root / "one" / "two" / "cache",
    "an empty directory": lambda root: made(root / "cache"),
    "a directory that others can write": lambda root: made(root / "cache", 0o777),
    "a parent that others can write": lambda root: made(root / "open", 0o777) / "cache",
    "a parent such as /tmp": lambda root: made(root / "tmp", 0o1777) / "cache",
    "below a file": lambda root: a_file(root / "file") / "cache",
    "a file": lambda root: a_file(root / "file"),
    "a link to nothing": lambda root: a_link(root / "link", root / "nowhere"),
    "a home that is missing": lambda root: root / "home" / ".cache",
    "a name that is too long": lambda root: root / ("x" * 300),
    "a relative path": lambda root: Path("cache"),
}


def made(path: Path, mode: int = 0o700) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    return path


def a_file(path: Path) -> Path:
    path.touch()
    return path


def a_link(path: Path, to: Path) -> Path:
    path.symlink_to(to)
    return path


def everything(root: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_ino) for path in root.rglob("*"))


@pytest.mark.parametrize("place", PLACES)
def test_what_is_said_of_a_cache_is_what_its_user_finds(tmp_path, monkeypatch, place):
    monkeypatch.chdir(made(tmp_path / "work"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    directory = PLACES[place](tmp_path)
    before = everything(tmp_path)
    looking = KernelCache(directory, make=False)
    said = looking.info()
    assert looking.entries() == [] and looking.memo("kind", "of", "state", lambda: "text") == "text"
    assert everything(tmp_path) == before
    cache = KernelCache(directory)
    cache.memo("kind", "of", "state", lambda: "text")
    found = cache.info()
    usable = {"read-write": "not made yet", "memory only": "memory only"}
    assert said.state == usable[found.state]
    assert (said.reason != "") == (found.reason != "")
    if "belongs" in found.reason or "can write" in found.reason or "home" in found.reason:
        assert said.reason == found.reason
    assert looking.info().state == found.state, "it is there now"
    cache.close()
    looking.close()


def test_a_directory_that_takes_no_files_is_known_before(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # of root, everything takes files
    for directory in (tmp_path, tmp_path / "cache"):
        info = KernelCache(directory, make=False).info()
        assert info.state == "memory only" and f"Permission denied: '{tmp_path}'" in info.reason
    with pytest.raises(PermissionError):
        locking.examine_place(tmp_path / "cache", "kernels.db")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("doctor", None),
        *((f"cache {name}", 0) for name in ("info", "ls", "verify", "rm --all", "prune --max-size 0", "info --json")),
        *((command, 1) for command in ("cache export x", "cache rm abcd", "inspect abcd")),
    ],
)
def test_commands_that_only_report_make_no_cache(run: Run, tmp_path, monkeypatch, command, code):
    monkeypatch.chdir(tmp_path)
    result = run(*command.split())
    assert code is None or result.code == code
    assert list(tmp_path.iterdir()) == []
    assert command != "doctor" or "not made yet" in result.out
