"""Whose directory the cache trusts: owners and modes, of it, of what is in it and of where it is."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from cached import kernel, warnings_in

from pycutlass import config
from pycutlass.cache import KernelCache
from pycutlass.cache.locking import private_directory
from pycutlass.errors import CacheError

STRANGER = 12345


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "home" / "cache"


def refused(directory: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Assert that a cache in `directory` keeps to memory and takes nothing from there; return what it said."""
    cache = KernelCache(directory)
    assert cache.get(kernel(0).key) is None
    cache.put(kernel(1))
    assert cache.get(kernel(1).key) == kernel(1)
    assert cache.info().state == "memory only"
    (message,) = warnings_in(caplog)
    caplog.clear()
    return message


def filled(directory: Path) -> None:
    """Make a cache with one kernel."""
    with contextlib.closing(KernelCache(directory)) as cache:
        cache.put(kernel(0))
        cache.get(kernel(0).key)


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `path` belong to a stranger; where only root can do that, to one who has become one."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


ENTRIES = ["kernels.db", "kernels.db-wal", "kernels.db-shm", "kernels.db-journal", "locks", "uses"]


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_can_write(directory: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    filled(directory)
    directory.chmod(mode)
    message = refused(directory, caplog)
    assert f"{directory} has mode {mode:04o}" in message
    another = "set PYCUTLASS_CACHE_DIR to an empty directory of your own"
    if mode == 0o1777:
        assert f"Others may have put code there: {another}" in message
    else:
        what = f"delete what PyCUTLASS keeps in {directory} (kernels.db, locks, uses) and run `chmod go-w {directory}`"
        assert f"Others may have put code there: {what}, or {another}" in message


@pytest.mark.parametrize("names", [(), ("locks", "uses"), ("thesis.tex", "kernels.db-wal")])
def test_files_of_the_users_own_are_not_to_be_deleted(
    directory: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory.mkdir(parents=True, mode=0o700)
    for name in names:
        (directory / name).mkdir(mode=0o700)
    elsewhere = "set PYCUTLASS_CACHE_DIR to an empty directory of your own"
    for mode, wanted in ((0o775, f"run `chmod go-w {directory}`, or {elsewhere}."), (0o1777, f"there: {elsewhere}.")):
        directory.chmod(mode)
        message = refused(directory, caplog)
        assert wanted in message and "delete" not in message
    directory.chmod(0o700)
    for name in names[:1]:
        (directory / name).chmod(0o777)
        assert name == "thesis.tex" or "delete" not in refused(directory, caplog)
        (directory / name).chmod(0o700)
    directory.parent.chmod(0o777)
    message = refused(directory, caplog)
    assert f"chmod go-w {directory.parent}" in message and "delete" not in message
    give_away(directory.parent, monkeypatch)
    assert "delete" not in refused(directory, caplog)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_others_can_write(directory: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    filled(directory)
    (directory / name).touch()
    (directory / name).chmod(0o770 if (directory / name).is_dir() else 0o660)
    message = refused(directory, caplog)
    assert f"{directory / name} has mode" in message and f"delete {directory / name}" in message


@pytest.mark.parametrize("name", ["", *ENTRIES])
def test_what_belongs_to_a_stranger(
    directory: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(directory)
    (directory / name).touch()
    give_away(directory / name, monkeypatch)
    message = refused(directory, caplog)
    assert "belongs to user" in message
    assert (f"delete {directory / name}, or set" if name else "others: set PYCUTLASS_CACHE_DIR to an empty") in message


def test_a_log_that_was_planted_is_not_replayed(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite would take a kernel from it as if it had been in the database."""
    filled(directory)
    log = directory / "kernels.db-wal"
    with contextlib.closing(sqlite3.connect(directory / "kernels.db")) as connection:
        connection.execute("UPDATE artifact_v1 SET name = 'planted'")
        connection.commit()
        planted = log.read_bytes()
    assert planted
    log.write_bytes(planted)
    log.chmod(0o666)
    assert f"delete {log}" in refused(directory, caplog)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("kind", ["link", "pipe", "socket"])
def test_an_entry_of_another_kind(
    directory: Path, tmp_path: Path, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory.mkdir(parents=True, mode=0o700)
    directory.chmod(0o700)
    if kind == "link":
        (directory / name).symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(directory / name, 0o600)
    else:
        with contextlib.chdir(directory), socket.socket(socket.AF_UNIX) as bound:  # the name must be short
            bound.bind(name)
    assert f"{directory / name} is neither: delete it" in refused(directory, caplog)
    assert not (tmp_path / "elsewhere").exists()


def test_a_parent_that_others_can_write(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(directory)
    directory.parent.chmod(0o777)
    message = refused(directory, caplog)
    assert f"{directory.parent} has mode 0777" in message
    assert f"delete what PyCUTLASS keeps in {directory} (kernels.db, locks, uses)" in message
    assert f"chmod go-w {directory.parent}" in message


def test_a_parent_that_belongs_to_a_stranger(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(directory)
    give_away(directory.parent, monkeypatch)
    assert "belongs to user" in refused(directory, caplog)


def test_a_parent_such_as_tmp_and_one_of_a_private_group_serve(directory: Path) -> None:
    """In the first nobody can replace what is another's; the second is how some systems make every directory."""
    filled(directory)
    directory.parent.chmod(0o1777)
    assert private_directory(directory) == directory
    directory.parent.chmod(0o775)
    status = directory.parent.stat()
    if status.st_gid == status.st_uid:
        assert private_directory(directory) == directory
    if os.geteuid() == 0:
        os.chown(directory.parent, 0, STRANGER)
        with pytest.raises(CacheError, match="has mode 0775"):
            private_directory(directory)


def test_a_directory_that_others_can_read_is_good_enough(directory: Path) -> None:
    directory.mkdir(mode=0o755, parents=True)
    KernelCache(directory).put(kernel())
    assert KernelCache(directory).get(kernel().key) == kernel()


def test_a_link_to_a_directory_serves_by_its_real_path(directory: Path, tmp_path: Path) -> None:
    filled(directory)
    (tmp_path / "link").symlink_to(directory)
    assert private_directory(tmp_path / "link") == directory
    cache = KernelCache(tmp_path / "link")
    assert cache.get(kernel(0).key) == kernel(0)
    assert cache.path == tmp_path / "link" / "kernels.db"
    (tmp_path / "link").unlink()  # whoever can exchange it, changes nothing for a cache that is open
    assert cache.get(kernel(0).key) == kernel(0)
    cache.close()


def test_missing_parents_are_made_for_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        KernelCache(tmp_path / "a" / "b" / "cache").put(kernel())
    finally:
        os.umask(before)
    for folder in ("a", "a/b", "a/b/cache", "a/b/cache/locks"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700, folder


# Homes and names that do not serve.


@pytest.mark.parametrize("value", ["cache", "./cache", "../cache", "."])
def test_a_relative_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", value)
    assert "must be an absolute path" in refused(config.cache_directory(), caplog)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_below_the_home_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", "~/kernels")
    assert config.cache_directory() == tmp_path / "kernels"


def test_a_working_directory_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("CUTLASS_PATH", "relative")
    assert config.path("CUTLASS_PATH") == Path("relative")
    with contextlib.closing(KernelCache(tmp_path / "cache")) as cache:
        cache.put(kernel())
        assert cache.info().state == "read-write"


@pytest.mark.parametrize("length", [300, 5000])
def test_a_name_that_is_too_long(tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture) -> None:
    assert "too long" in refused(tmp_path / ("x" * length), caplog)


def test_a_path_that_is_too_long_for_the_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep = tmp_path.joinpath(*["x" * 100] * 8)
    refused(deep, caplog)


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[None]:
    """Be a user who may not search the test's directory; for others than root, nobody may."""
    if os.geteuid() == 0:
        (tmp_path / "home").mkdir(mode=0o700)
        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        (tmp_path / "home").mkdir(mode=0)
        yield
        (tmp_path / "home").chmod(0o700)


def test_a_home_that_cannot_be_searched(
    directory: Path, nobody: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(directory.parent))
    for name in ("XDG_CACHE_HOME", "PYCUTLASS_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert "Permission denied" in refused(config.cache_directory(), caplog)


def test_a_cache_that_can_no_longer_be_searched(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = KernelCache(directory)
    cache.put(kernel(0))
    if os.geteuid() == 0:
        directory.parent.chmod(0o700)
        os.seteuid(65534)
    else:
        directory.parent.chmod(0)
    try:
        assert cache.get(kernel(0).key) is None
        cache.put(kernel(1))
        with cache.building(kernel(2).key):
            cache.put(kernel(2))
        assert cache.info().state == "memory only"
    finally:
        if os.geteuid() != 0:
            with contextlib.suppress(PermissionError):
                os.seteuid(0)
        directory.parent.chmod(0o700)
