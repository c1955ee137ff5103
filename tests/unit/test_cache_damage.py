"""The kernel cache on damaged files, full disks and in strangers' directories."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import shutil
import sqlite3
import threading
import time
import zlib
from pathlib import Path

import pytest
from cached import edit, kernel, warnings_in

from pycutlass import config
from pycutlass.cache import KernelCache
from pycutlass.cache.store import StoreError, journal_for

# Damage

ROW_DAMAGE: dict[str, object] = {
    "cubin": zlib.compress(b"other code"),
    "host": zlib.compress(b"other code"),
    "name": "other",
    "target": "sm_80",
    "fields": "[]",
    "report": "{",
    "digest": "0" * 64,
}


@pytest.mark.parametrize("column", ROW_DAMAGE)
@pytest.mark.parametrize("kind", ["other", "number", "bytes", "text"])
def test_a_damaged_row_is_deleted_and_not_returned(
    cache: KernelCache, directory: Path, caplog: pytest.LogCaptureFixture, column: str, kind: str
) -> None:
    cache.put(kernel(0))
    cache.put(kernel(1))
    value = {"other": ROW_DAMAGE[column], "number": 3}.get(kind, b"\xff\x00\xfe")
    term = "CAST(? AS TEXT)" if kind == "text" else "?"
    edit(directory, f"UPDATE artifact_v1 SET {column} = {term} WHERE key = ?", value, kernel(0).key)

    assert len(cache.entries()) == 2
    assert cache.verify() == [f"kernel {kernel(0).key}: its content differs from its digest"]
    assert cache.get(kernel(0).key) is None
    assert [kernel(0).key[:12] in message and "damaged" in message for message in warnings_in(caplog)] == [True]
    assert cache.verify() == []
    assert cache.get(kernel(1).key) == kernel(1)
    assert cache.info().set_aside == ()


def test_verify_finds_a_row_under_the_key_of_other_fields(cache: KernelCache, directory: Path) -> None:
    cache.put(kernel())
    moved = dataclasses.replace(kernel(), key="0" * 64)
    edit(directory, "UPDATE artifact_v1 SET key = ?, digest = ?", moved.key, moved.digest)
    assert cache.verify() == [f"kernel {moved.key}: its fields have the key {kernel().key}"]


def filled(directory: Path) -> bytes:
    """Return the bytes of a database with four kernels, written back from its log."""
    cache = KernelCache(directory)
    for number in range(4):
        cache.put(kernel(number))
    cache.close()
    return (directory / "kernels.db").read_bytes()


def check_still_works(directory: Path) -> None:
    """Assert that nothing wrong comes out of a damaged database, and that it soon keeps kernels again."""
    cache = KernelCache(directory)
    wanted = {kernel(number).key: kernel(number) for number in range(6)}
    for key, artifact in wanted.items():
        assert cache.get(key) in (None, artifact)
        assert cache.find(**artifact.fields) in (None, artifact)
    cache.entries(), cache.info()
    for _ in range(4):  # what goes into a file whose damage was not met yet may be lost once more
        for key, artifact in wanted.items():
            if cache.get(key) is None:
                cache.put(artifact)
    assert {key: cache.get(key) for key in wanted} == wanted
    cache.close()


@pytest.mark.parametrize("seed", range(40))
def test_no_flipped_byte_makes_a_wrong_kernel(directory: Path, seed: int) -> None:
    whole = bytearray(filled(directory))
    noise = random.Random(seed)
    for _ in range(1 + seed % 40):
        whole[noise.randrange(4096 if seed % 3 == 0 else len(whole))] = noise.randrange(256)
    (directory / "kernels.db").write_bytes(whole)
    check_still_works(directory)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.1, 0.3, 0.5, 0.8, 0.99])
def test_a_truncated_database_is_begun_anew(directory: Path, share: float) -> None:
    whole = filled(directory)
    (directory / "kernels.db").write_bytes(whole[: int(len(whole) * share)])
    check_still_works(directory)


@pytest.mark.parametrize("content", [b"not a database at all, but long enough" * 1000, b"short", b"\x00" * 8192])
def test_a_file_of_another_kind_is_set_aside(directory: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    directory.mkdir(mode=0o700)
    (directory / "kernels.db").write_bytes(content)
    check_still_works(directory)
    assert (directory / "kernels.db.corrupt-1").read_bytes() == content
    assert [message for message in warnings_in(caplog) if "kernels.db.corrupt-1" in message] == warnings_in(caplog)
    assert len(warnings_in(caplog)) == 1

    (directory / "kernels.db").write_bytes(content)
    check_still_works(directory)
    assert {path.name for path in KernelCache(directory).info().set_aside} == {
        "kernels.db.corrupt-1",
        "kernels.db.corrupt-2",
    }


def test_users_of_a_damaged_database_meet_again_in_a_new_one(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caches = [KernelCache(directory) for _ in range(3)]
    for number in (0, 1):
        caches[number].put(kernel(number))
    edit(directory, "PRAGMA wal_checkpoint(TRUNCATE)")
    (directory / "kernels.db").write_bytes(b"\xff" * 30_000)
    for number in (2, 1, 0):  # the third meets the damage, while the others have the file and its log open
        caches[number].put(kernel(number))
    for cache in caches:
        assert [cache.get(kernel(number).key) for number in range(3)] == [kernel(number) for number in range(3)]
        assert cache.verify() == []
    assert len(warnings_in(caplog)) == 1
    assert [path.name for path in caches[0].info().set_aside] == ["kernels.db.corrupt-1"]
    for cache in caches:
        cache.close()


def test_only_the_file_that_was_damaged_is_set_aside(directory: Path) -> None:
    caches = [KernelCache(directory) for _ in range(2)]
    for number, cache in enumerate(caches):
        cache.put(kernel(number))
    for cache in caches:  # both met the damage, and the second comes when the first has begun anew
        cache._disk._begin_anew(StoreError(sqlite3.DatabaseError("damage")))
        cache.put(kernel(2))
    assert [path.name for path in caches[1].info().set_aside] == ["kernels.db.corrupt-1"]


def test_a_table_of_another_schema_stays_beside_ours(cache: KernelCache, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    edit(directory, "CREATE TABLE artifact_v0 (op_key TEXT UNIQUE, cubin BLOB)")
    edit(directory, "INSERT INTO artifact_v0 VALUES ('a', 'b')")
    cache.put(kernel())
    assert cache.get(kernel().key) == kernel()
    connection = sqlite3.connect(directory / "kernels.db")
    assert connection.execute("SELECT * FROM artifact_v0").fetchall() == [("a", "b")]
    connection.close()
    assert cache.info().set_aside == ()


def test_a_strange_table_under_our_name_is_set_aside(cache: KernelCache, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    edit(directory, "CREATE TABLE artifact_v1 (something INTEGER)")
    cache.put(kernel())
    assert KernelCache(directory).get(kernel().key) == kernel()
    assert len(cache.info().set_aside) == 1


def test_damage_behind_the_first_pages_is_found_in_use(
    cache: KernelCache, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = filled(directory)
    (directory / "kernels.db").write_bytes(whole[: 3 * 4096] + b"\xff" * (len(whole) - 3 * 4096))
    assert cache.info().state == "read-write"
    check_still_works(directory)
    assert "begins" in warnings_in(caplog)[-1]


def test_a_directory_that_was_deleted_is_made_again(cache: KernelCache, directory: Path) -> None:
    cache.put(kernel(0))
    shutil.rmtree(directory)
    cache.put(kernel(1))
    with cache.building(kernel(2).key):
        cache.put(kernel(2))
    fresh = KernelCache(directory)
    assert [fresh.get(kernel(number).key) for number in range(3)] == [None, kernel(1), kernel(2)]


# Disks and directories that do not serve


def check_memory_only(cache: KernelCache, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Assert that `cache` serves this process from memory, and has said why, once."""
    for number in range(3):
        with cache.building(kernel(number).key):
            cache.put(kernel(number))
    assert [cache.get(kernel(number).key) for number in range(4)] == [kernel(0), kernel(1), kernel(2), None]
    assert cache.find(kernel=f"{1:064d}") == kernel(1)
    assert {cache.memo("version", "nvcc", "1", lambda text=text: text) for text in ("13.0", "13.1")} == {"13.0"}
    assert len(cache.entries()) == 3
    assert [entry.name for entry in cache.remove("cutlass_gemm_1")] == ["cutlass_gemm_1"]
    assert cache.get(kernel(1).key) is None
    assert cache.info().state == "memory only"
    assert len(cache.verify()) == 1
    assert len(warnings_in(caplog)) == 1
    assert reason in warnings_in(caplog)[0]


def test_a_directory_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    check_memory_only(KernelCache(tmp_path / "file" / "cache"), caplog, "Not a directory")


def test_a_file_in_place_of_the_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    check_memory_only(KernelCache(tmp_path / "file"), caplog, "Not a directory")


def test_a_directory_in_place_of_the_database(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    (directory / "kernels.db").mkdir(parents=True)
    directory.chmod(0o700)
    check_memory_only(KernelCache(directory), caplog, "Is a directory")


def test_a_home_that_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "cache_directory", lambda: Path("~/.cache/pycutlass"))
    check_memory_only(KernelCache(), caplog, "PYCUTLASS_CACHE_DIR")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    check_memory_only(KernelCache(Path("cache")), caplog, "must be an absolute path, not cache")
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_without_a_home(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", "~nobody-of-this-name/cache")
    check_memory_only(KernelCache(), caplog, "PYCUTLASS_CACHE_DIR")


def test_a_full_disk_keeps_kernels_in_memory(
    cache: KernelCache, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(kernel(0))
    cache._disk.run(lambda store: store._run("PRAGMA max_page_count = 1"))  # SQLite takes the present size instead
    for number in (1, 2):
        cache.put(kernel(number, size=200_000))
    assert [cache.get(kernel(number, size=200_000).key) for number in (1, 2)] == [
        kernel(1, 200_000),
        kernel(2, 200_000),
    ]
    assert cache.get(kernel(0).key) == kernel(0)
    assert {entry.name for entry in cache.entries()} == {"cutlass_gemm_0", "cutlass_gemm_1", "cutlass_gemm_2"}
    assert [message for message in warnings_in(caplog) if "full" in message] == warnings_in(caplog)
    assert len(warnings_in(caplog)) == 1
    assert [entry.name for entry in KernelCache(directory).entries()] == ["cutlass_gemm_0"]


def test_a_disk_that_has_room_again_is_used_again(cache: KernelCache, directory: Path) -> None:
    cache.put(kernel(0))
    cache._disk.run(lambda store: store._run("PRAGMA max_page_count = 1"))
    cache.put(kernel(1, size=200_000))
    cache._disk.run(lambda store: store._run("PRAGMA max_page_count = 100000"))
    cache.put(kernel(2, size=200_000))
    assert {entry.name for entry in KernelCache(directory).entries()} == {"cutlass_gemm_0", "cutlass_gemm_2"}


def test_locks_that_cannot_be_made_still_keep_threads_apart(
    cache: KernelCache, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(kernel())
    shutil.rmtree(directory / "locks")
    (directory / "locks").write_text("")
    inside: list[int] = []

    def build(number: int) -> None:
        with cache.building(kernel().key):
            inside.append(number)
            time.sleep(0.05)
            inside.append(number)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [inside[0], inside[2], inside[4]] == [inside[1], inside[3], inside[5]]
    assert len(warnings_in(caplog)) == 1
    assert "cannot hold locks" in warnings_in(caplog)[0]


@pytest.mark.parametrize(
    ("kind", "journal"), [("ext4", "WAL"), ("nfs4", "DELETE"), ("lustre", "DELETE"), ("tmpfs", "WAL")]
)
def test_network_file_systems_have_no_shared_memory(tmp_path: Path, kind: str, journal: str) -> None:
    device = tmp_path.stat().st_dev
    place = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 0:999 / /proc rw - nfs x rw\n36 35 {place} / /home rw,noatime shared:1 - {kind} a:/b rw\n")
    assert journal_for(tmp_path, mounts) == journal
    assert journal_for(tmp_path, tmp_path / "missing") == "WAL"


def test_a_database_on_a_network_file_system_leaves_wal(
    cache: KernelCache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(kernel(0))
    assert cache.info().journal == "wal"
    cache.close()
    monkeypatch.setattr("pycutlass.cache.store.journal_for", lambda path: "DELETE")
    assert cache.info().journal == "delete"
    cache.put(kernel(1))
    assert [cache.get(kernel(number).key) for number in (0, 1)] == [kernel(0), kernel(1)]
    assert not (directory / "kernels.db-wal").exists()


# Rows that another program has changed.


@pytest.mark.parametrize("column", ["created", "last_used", "size", "name", "target", "fields", "report"])
@pytest.mark.parametrize("value", [None, b"\xff\x00", 9e999, -9e999, "text", -5], ids=repr)
def test_a_listing_survives_what_a_row_should_not_hold(directory: Path, column: str, value: object) -> None:
    directory.mkdir(mode=0o700)
    cache = KernelCache(directory)
    for number in range(2):
        cache.put(kernel(number))
    cache.close()
    connection = sqlite3.connect(directory / "kernels.db", isolation_level=None)
    (table,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'artifact_v1'").fetchone()
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_master SET sql = ? WHERE name = 'artifact_v1'", [table.replace(f"{column} TEXT NOT NULL", column)
        .replace(f"{column} REAL NOT NULL", column).replace(f"{column} INTEGER NOT NULL", column)],
    )  # fmt: skip
    connection.close()
    edit(directory, f"UPDATE artifact_v1 SET {column} = ? WHERE key = ?", value, kernel(0).key)
    entries = {entry.key: entry for entry in cache.entries()}
    assert set(entries) == {kernel(0).key, kernel(1).key}
    assert all(math.isfinite(entry.created) and math.isfinite(entry.last_used) for entry in entries.values())
    assert isinstance(cache.info().kernel_bytes, int)
    assert len(cache.prune(0)) == 2
    cache.close()
