"""The kernel cache in one process: keys, rows, damage, full disks, strangers' directories, bundles."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycutlass import config
from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.cache.bundle import read_bundle
from pycutlass.cache.door import wait_for
from pycutlass.cache.store import journal_for
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError

FIELDS = {"kernel": "0" * 64, "headers": "1" * 64, "target": "sm_90a", "flags": '-O3 -DX="a b"'}
TEXT = st.text(st.characters(), max_size=8)  # lone surrogates included: paths may hold them


def kernel(number: int = 0, size: int = 3000, **fields: str) -> Artifact:
    """Return a kernel that differs from those of other numbers in everything."""
    noise = random.Random(number)
    labelled = FIELDS | {"kernel": f"{number:064d}"} | fields
    return Artifact(
        key=make_key(labelled),
        name=f"cutlass_gemm_{number}",
        target=labelled["target"],
        fields=labelled,
        cubin=noise.randbytes(size),
        host=noise.randbytes(size // 2),
        report={"registers": 100 + number, "seconds": {"device": 9.5}, "notes": ["a", None]},
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(directory: Path) -> Iterator[KernelCache]:
    opened = KernelCache(directory)
    yield opened
    opened.close()


def edit(directory: Path, statement: str, *values: object) -> None:
    """Change the database behind the cache's back."""
    connection = sqlite3.connect(directory / "kernels.db", isolation_level=None)
    connection.execute(statement, values)
    connection.close()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Keys


@given(st.dictionaries(TEXT, TEXT, max_size=4), st.dictionaries(TEXT, TEXT, max_size=4))
def test_different_fields_have_different_keys(one: dict[str, str], other: dict[str, str]) -> None:
    assert (make_key(one) == make_key(other)) == (one == other)


@given(st.text(min_size=1, max_size=12), st.lists(st.integers(0, 12), min_size=3, max_size=3), st.data())
def test_no_boundary_between_labels_and_texts_can_move(text: str, cuts: list[int], data: st.DataObject) -> None:
    def fields(cuts: list[int]) -> dict[str, str]:
        a, b, c = sorted(cuts)
        return {text[:a]: text[a:b], text[b:c]: text[c:]}

    others = data.draw(st.lists(st.integers(0, 12), min_size=3, max_size=3))
    assert (make_key(fields(cuts)) == make_key(fields(others))) == (fields(cuts) == fields(others))


@given(st.dictionaries(TEXT, TEXT, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_a_key_does_not_depend_on_the_order_of_fields(fields: dict[str, str], order: random.Random) -> None:
    items = list(fields.items())
    order.shuffle(items)
    assert make_key(dict(items)) == make_key(fields)


@pytest.mark.parametrize("seed", ["0", "1"])
def test_a_key_is_the_same_in_every_process(seed: str) -> None:
    program = f"from pycutlass.cache import make_key; print(make_key({FIELDS!r}))"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert printed.stdout.decode().strip() == make_key(FIELDS)


def test_a_key_is_sha256_over_lengths_and_texts() -> None:
    texts = ["pycutlass", "1", "a", "xy", "b", ""]
    expected = hashlib.sha256(b"".join(len(text).to_bytes(8, "little") + text.encode() for text in texts))
    assert make_key({"b": "", "a": "xy"}) == expected.hexdigest()


@pytest.mark.parametrize("fields", [{"flags": None}, {"flags": 3}, {3: "flags"}, {"flags": b"x"}])
def test_a_key_is_made_of_strings(fields: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="strings by label"):
        make_key(fields)


FLIPS: dict[str, Any] = {
    "key": "f" * 64,
    "name": "another",
    "target": "sm_80",
    "fields": FIELDS | {"flags": ""},
    "cubin": b"",
    "host": b"\x7fELF",
    "report": {"registers": 255},
}


@pytest.mark.parametrize("attribute", [field.name for field in dataclasses.fields(Artifact)])
def test_the_digest_covers_everything(attribute: str) -> None:
    changed = dataclasses.replace(kernel(), **{attribute: FLIPS[attribute]})
    assert changed.digest != kernel().digest


def test_a_report_is_json(cache: KernelCache) -> None:
    with pytest.raises(ArgumentTypeError, match="JSON"):
        cache.put(dataclasses.replace(kernel(), report={"path": Path("x")}))


# Keeping and finding


def test_nothing_is_opened_before_it_is_used(directory: Path) -> None:
    KernelCache(directory)
    assert not directory.exists()


def test_a_kernel_comes_back_as_it_was(cache: KernelCache, directory: Path) -> None:
    assert cache.get(kernel().key) is None
    cache.put(kernel())
    assert cache.get(kernel().key) == kernel()
    assert KernelCache(directory).get(kernel().key) == kernel()


def test_an_empty_kernel_comes_back_too(cache: KernelCache) -> None:
    empty = dataclasses.replace(kernel(), cubin=b"", host=b"", report={})
    cache.put(empty)
    assert cache.get(empty.key) == empty


def test_the_files_are_for_their_user_only(cache: KernelCache, directory: Path) -> None:
    cache.put(kernel())
    modes = {path.name: path.stat().st_mode & 0o777 for path in (directory, *directory.iterdir())}
    assert modes == {
        "cache": 0o700,
        "kernels.db": 0o600,
        "kernels.db-wal": 0o600,
        "kernels.db-shm": 0o600,
        "locks": 0o700,
    }


def test_the_directory_comes_from_the_environment_and_not_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", str(tmp_path / "chosen"))
    KernelCache().put(kernel())
    assert (tmp_path / "chosen" / "kernels.db").is_file()
    assert list((tmp_path / "work").iterdir()) == []


def test_a_later_kernel_takes_the_place_of_an_earlier_one(cache: KernelCache) -> None:
    cache.put(kernel())
    cache.put(dataclasses.replace(kernel(), report={"registers": 1}))
    found = cache.get(kernel().key)
    assert found is not None
    assert found.report == {"registers": 1}
    assert len(cache.entries()) == 1


def test_a_key_that_is_not_of_the_fields_is_refused(cache: KernelCache) -> None:
    with pytest.raises(ArgumentError, match="make_key"):
        cache.put(dataclasses.replace(kernel(), key="0" * 64))


def test_find_returns_the_newest_with_all_fields(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment, flags in ((300.0, "-O2"), (100.0, "-O1"), (200.0, "-O3")):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        cache.put(kernel(flags=flags))
    cache.put(kernel(1))
    assert cache.find(kernel=f"{0:064d}") == kernel(flags="-O2")
    assert cache.find(kernel=f"{0:064d}", flags="-O1") == kernel(flags="-O1")
    assert cache.find(kernel=f"{0:064d}", flags="-O4") is None
    assert cache.find(nothing="at all") is None


@given(fields=st.dictionaries(TEXT, TEXT, min_size=1, max_size=3), wanted=st.dictionaries(TEXT, TEXT, max_size=2))
@settings(max_examples=60, deadline=None)
def test_find_compares_labels_and_texts_exactly(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, str], wanted: dict[str, str]
) -> None:
    cache = KernelCache(tmp_path_factory.mktemp("find"))
    cache.put(kernel(**fields))
    for asked in (wanted, fields, fields | wanted):
        assert (cache.find(**asked) is not None) == (asked.items() <= kernel(**fields).fields.items())
    cache.close()


def test_find_is_not_deceived_by_quotes(cache: KernelCache) -> None:
    cache.put(kernel(**{'x"flags': "y", "text": '"flags":"z"'}))
    assert cache.find(flags="y") is None
    assert cache.find(flags="z") is None


def test_find_passes_over_a_damaged_kernel(cache: KernelCache, directory: Path) -> None:
    cache.put(kernel(flags="-O1"))
    cache.put(kernel(flags="-O2"))
    edit(directory, "UPDATE artifact_v1 SET cubin = ? WHERE key = ?", zlib.compress(b"x"), kernel(flags="-O2").key)
    assert cache.find(kernel=f"{0:064d}") == kernel(flags="-O1")


def test_threads_share_a_cache(cache: KernelCache) -> None:
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for number in range(start, start + 25):
                cache.put(kernel(number))
                assert cache.get(kernel(number).key) == kernel(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(10 * index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(cache.entries()) == 75


# Use, removal, pruning


def test_use_is_written_down_once_an_hour(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])

    def used_at(moment: float) -> float:
        now[0] = moment
        assert cache.get(kernel().key) is not None
        return cache.entries()[0].last_used

    cache.put(kernel())
    assert [used_at(moment) for moment in (1000.0, 4000.0, 4700.0, 8000.0)] == [1000.0, 1000.0, 4700.0, 4700.0]


def test_writing_down_the_use_waits_for_nobody(
    cache: KernelCache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(kernel())
    monkeypatch.setattr(time, "time", lambda: 1e10)
    other = sqlite3.connect(directory / "kernels.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    assert cache.get(kernel().key) == kernel()
    assert time.monotonic() - started < 1
    other.close()


def test_prune_deletes_the_least_recently_used_first(
    cache: KernelCache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [0.0]
    monkeypatch.setattr(time, "time", lambda: moment[0])
    for number in range(10):
        moment[0] += 10_000
        cache.put(kernel(number, size=50_000))
    moment[0] += 10_000
    cache.get(kernel(0).key)
    size = cache.entries()[0].size
    before = cache.info().file_bytes

    assert [entry.name for entry in cache.prune(10 * size + 99)] == []
    assert [entry.name for entry in cache.prune(4 * size + 99)] == [f"cutlass_gemm_{number}" for number in range(1, 7)]
    assert [entry.name for entry in cache.entries()] == [f"cutlass_gemm_{number}" for number in (0, 9, 8, 7)]
    assert cache.info().file_bytes < before / 2
    assert cache.verify() == []
    assert len(cache.prune(0)) == 4
    assert cache.entries() == []


def test_prune_refuses_a_negative_size(cache: KernelCache) -> None:
    with pytest.raises(ArgumentError, match="0 or more"):
        cache.prune(-1)


def test_remove_takes_names_and_beginnings_of_keys(cache: KernelCache) -> None:
    for number in range(4):
        cache.put(kernel(number))
    removed = cache.remove("cutlass_gemm_1", kernel(2).key[:8])
    assert {entry.name for entry in removed} == {"cutlass_gemm_1", "cutlass_gemm_2"}
    assert {entry.name for entry in cache.entries()} == {"cutlass_gemm_0", "cutlass_gemm_3"}


@pytest.mark.parametrize("selector", ["cutlass_gemm", "", kernel().key[:3], "zzzz"])
def test_remove_deletes_nothing_if_a_selector_fits_nothing(cache: KernelCache, selector: str) -> None:
    cache.put(kernel())
    with pytest.raises(CacheError, match="pycutlass cache ls"):
        cache.remove(kernel().name, selector)
    assert len(cache.entries()) == 1


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
@pytest.mark.parametrize("kind", ["other", "number", "bytes"])
def test_a_damaged_row_is_deleted_and_not_returned(
    cache: KernelCache, directory: Path, caplog: pytest.LogCaptureFixture, column: str, kind: str
) -> None:
    cache.put(kernel(0))
    cache.put(kernel(1))
    value = {"other": ROW_DAMAGE[column], "number": 3, "bytes": b"\xff\x00\xfe"}[kind]
    edit(directory, f"UPDATE artifact_v1 SET {column} = ? WHERE key = ?", value, kernel(0).key)

    assert len(cache.entries()) == 2
    assert cache.verify() == [f"kernel {kernel(0).key}: its content differs from its digest"]
    assert cache.get(kernel(0).key) is None
    assert [kernel(0).key[:12] in message and "damaged" in message for message in warnings_in(caplog)] == [True]
    assert cache.verify() == []
    assert cache.get(kernel(1).key) == kernel(1)


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
    """Assert that nothing wrong comes out of a damaged database, and that new kernels are kept."""
    cache = KernelCache(directory)
    for number in range(4):
        assert cache.get(kernel(number).key) in (None, kernel(number))
        assert cache.find(kernel=f"{number:064d}") in (None, kernel(number))
    cache.entries(), cache.info()
    for number in range(2, 6):
        cache.put(kernel(number))
    assert [cache.get(kernel(number).key) for number in range(2, 6)] == [kernel(number) for number in range(2, 6)]
    cache.close()


@pytest.mark.parametrize("seed", range(60))
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
    check_memory_only(KernelCache(tmp_path / "file"), caplog, "File exists")


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


def test_a_tilde_without_a_home(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PYCUTLASS_CACHE_DIR", "~nobody-of-this-name/cache")
    check_memory_only(KernelCache(), caplog, "PYCUTLASS_CACHE_DIR")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_that_others_can_write(directory: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    filled(directory)
    directory.chmod(mode)
    check_memory_only(KernelCache(directory), caplog, f"chmod go-w {directory}")


def test_a_database_that_others_can_write(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(directory)
    (directory / "kernels.db").chmod(0o660)
    check_memory_only(KernelCache(directory), caplog, f"chmod go-w {directory / 'kernels.db'}")


@pytest.mark.parametrize("what", ["", "kernels.db"])
def test_what_belongs_to_another_user(
    directory: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(directory)
    if os.geteuid() == 0:
        os.chown(directory / what, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    check_memory_only(KernelCache(directory), caplog, "belongs to user")


def test_a_directory_that_others_can_read_is_good_enough(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    KernelCache(directory).put(kernel())
    assert KernelCache(directory).get(kernel().key) == kernel()


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


# Memos


def test_a_memo_is_computed_once_per_fingerprint(cache: KernelCache, directory: Path) -> None:
    answers = iter(["first", "second", "third"])

    def ask(cache: KernelCache, subject: str, fingerprint: str) -> str:
        return cache.memo("headers", subject, fingerprint, lambda: next(answers))

    assert ask(cache, "/opt/cutlass", "1") == "first"
    assert ask(KernelCache(directory), "/opt/cutlass", "1") == "first"
    assert ask(cache, "/opt/cutlass", "2") == "second"
    assert ask(cache, "/opt/other", "2") == "third"


@given(texts=st.tuples(TEXT, TEXT, TEXT, TEXT), others=st.tuples(TEXT, TEXT, TEXT))
@settings(max_examples=60, deadline=None)
def test_a_memo_holds_any_text(
    tmp_path_factory: pytest.TempPathFactory, texts: tuple[str, str, str, str], others: tuple[str, str, str]
) -> None:
    cache = KernelCache(tmp_path_factory.mktemp("memo"))
    *asked, value = texts
    assert cache.memo(*asked, lambda: value) == value
    assert cache.memo(*others, lambda: "computed") == (value if others == tuple(asked) else "computed")
    cache.close()


def test_a_damaged_memo_is_computed_again(cache: KernelCache, directory: Path) -> None:
    cache.memo("headers", "a", "1", lambda: "right")
    edit(directory, "UPDATE memo_v1 SET value = 'wrong'")
    assert cache.memo("headers", "a", "1", lambda: "right again") == "right again"


def test_a_memo_is_computed_without_a_lock(cache: KernelCache) -> None:
    def compute() -> str:
        thread = threading.Thread(target=cache.put, args=(kernel(),))
        thread.start()
        thread.join(timeout=10)
        return str(thread.is_alive())

    assert cache.memo("a", "b", "c", compute) == "False"


# Building


def test_builders_of_one_key_take_turns_and_waiting_is_said(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pycutlass")
    entered, order = threading.Event(), []

    def first() -> None:
        with KernelCache(directory).building(kernel(0).key):
            entered.set()
            time.sleep(2.3)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    cache = KernelCache(directory)
    with cache.building(kernel(1).key):
        order.append("another key")
    with cache.building(kernel(0).key):
        order.append("second")
    thread.join()
    assert order == ["another key", "first", "second"]
    assert [kernel(0).key[:12] in message for message in caplog.messages] == [True]
    assert list((directory / "locks").iterdir()) == []


def test_an_error_inside_lets_the_next_builder_in(cache: KernelCache) -> None:
    with pytest.raises(OSError, match="compiler"), cache.building(kernel().key):
        raise OSError("the compiler is gone")
    with cache.building(kernel().key):
        pass


def test_a_key_cannot_lead_out_of_the_directory(cache: KernelCache) -> None:
    with pytest.raises(ArgumentError, match="hexadecimal"), cache.building("../../x"):
        pass


def test_waiting_is_said_once() -> None:
    answers, said = iter([None, None, None, None, None, "done"]), []
    assert wait_for(lambda: next(answers), lambda: said.append(1), patience=0.002) == "done"
    assert said == [1]


# Bundles


@pytest.fixture
def bundle(tmp_path: Path, cache: KernelCache) -> Path:
    for number in range(3):
        cache.put(kernel(number))
    cache.export(tmp_path / "kernels.zip")
    return tmp_path / "kernels.zip"


def rewritten(bundle: Path, change: Callable[[dict[str, bytes]], Mapping[str, bytes] | None]) -> Path:
    """Return `bundle` with its members changed."""
    with zipfile.ZipFile(bundle) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = change(members)
    with zipfile.ZipFile(bundle, "w") as archive:
        for name, content in (members if changed is None else changed).items():
            archive.writestr(name, content)
    return bundle


def with_manifest(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, bytes]], None]:
    """Return a change to the members that is one to the parsed manifest."""

    def apply(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return apply


def test_a_bundle_carries_kernels_to_another_machine(bundle: Path, tmp_path: Path) -> None:
    there = KernelCache(tmp_path / "there")
    result = there.import_(bundle)
    assert sorted(result.added) == sorted(kernel(number).key for number in range(3))
    assert (result.present, result.in_memory) == ([], [])
    assert there.find(kernel=f"{2:064d}", target="sm_90a") == kernel(2)
    assert there.verify() == []


def test_what_is_here_already_stays(bundle: Path, cache: KernelCache) -> None:
    before = cache.entries()
    assert len(cache.import_(bundle).present) == 3
    assert cache.entries() == before


def test_a_damaged_kernel_is_replaced_by_the_imported_one(bundle: Path, cache: KernelCache, directory: Path) -> None:
    edit(directory, "UPDATE artifact_v1 SET cubin = x'00' WHERE name = 'cutlass_gemm_1'")
    assert cache.import_(bundle).added == [kernel(1).key]
    assert cache.verify() == []


def test_the_same_kernels_give_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    there = KernelCache(tmp_path / "there")
    for number in (2, 0, 1):
        there.put(kernel(number))
    there.export(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_some_kernels_can_be_exported(cache: KernelCache, bundle: Path) -> None:
    exported = cache.export(bundle, ["cutlass_gemm_0", kernel(1).key])
    assert {entry.name for entry in exported} == {"cutlass_gemm_0", "cutlass_gemm_1"}
    assert {artifact.name for artifact in read_bundle(bundle)} == {"cutlass_gemm_0", "cutlass_gemm_1"}
    with pytest.raises(CacheError, match="cutlass_gemm_9"):
        cache.export(bundle, ["cutlass_gemm_9"])


def test_a_damaged_kernel_is_not_exported(cache: KernelCache, directory: Path, bundle: Path, tmp_path: Path) -> None:
    edit(directory, "UPDATE artifact_v1 SET host = x'00' WHERE name = 'cutlass_gemm_1'")
    with pytest.raises(CacheError, match="cutlass_gemm_1"):
        cache.export(tmp_path / "other.zip")
    assert not (tmp_path / "other.zip").exists()


def test_an_empty_cache_has_nothing_to_export(cache: KernelCache, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no kernel to export"):
        cache.export(tmp_path / "kernels.zip")


def test_a_bundle_that_cannot_be_written(cache: KernelCache, tmp_path: Path) -> None:
    cache.put(kernel())
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "missing" / "kernels.zip", tmp_path / "taken"):
        with pytest.raises(CacheError, match="cannot be written"):
            cache.export(path)
    assert not list(tmp_path.glob("*.partial"))


def test_a_cache_in_memory_takes_a_bundle_too(bundle: Path, tmp_path: Path) -> None:
    memory_only = KernelCache(bundle / "below-a-file")
    assert len(memory_only.import_(bundle).in_memory) == 3
    assert memory_only.find(kernel=f"{2:064d}") == kernel(2)
    memory_only.export(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def change_entry(**values: Any) -> Callable[[dict[str, bytes]], None]:
    return with_manifest(lambda manifest: manifest["kernels"][1].update(values))


FORGERIES: dict[str, Callable[[dict[str, bytes]], Mapping[str, bytes] | None]] = {
    "cubin": lambda members: {k: b"forged" if k == sorted(members)[2] else v for k, v in members.items()},
    "name": change_entry(name="forged"),
    "target": change_entry(target="sm_80"),
    "report": change_entry(report={}),
    "digest": change_entry(digest="0" * 64),
    "fields": change_entry(fields=FIELDS | {"flags": "-O0"}),
    "fields of another form": change_entry(fields={"flags": 3}),
    "no fields": change_entry(fields=None),
    "key with a path": change_entry(key="../../../../tmp/evil"),
    "short key": change_entry(key="abcd"),
    "twice": with_manifest(lambda manifest: manifest["kernels"].append(manifest["kernels"][0])),
    "one less": with_manifest(lambda manifest: manifest["kernels"].pop()),
    "no list": with_manifest(lambda manifest: manifest.update(kernels={})),
    "not an entry": with_manifest(lambda manifest: manifest["kernels"].append("x")),
    "later format": with_manifest(lambda manifest: manifest.update(format="pycutlass-bundle-2")),
    "manifest is a list": lambda members: members | {"manifest.json": b"[]"},
    "manifest is not JSON": lambda members: members | {"manifest.json": b"{"},
    "manifest is too deep": lambda members: members | {"manifest.json": b"[" * 100_000},
    "no manifest": lambda members: {name: content for name, content in members.items() if "manifest" not in name},
    "zip slip": lambda members: members | {"../../evil.so": b"\x7fELF"},
    "absolute path": lambda members: members | {"/etc/evil": b"x"},
    "missing cubin": lambda members: {k: v for k, v in members.items() if k != sorted(members)[0]},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_bundle_is_refused_whole(bundle: Path, tmp_path: Path, forgery: str) -> None:
    there = KernelCache(tmp_path / "there")
    with pytest.raises(CacheError, match=str(bundle)):
        there.import_(rewritten(bundle, FORGERIES[forgery]))
    assert there.entries() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "kernels.zip", "there"]


@pytest.mark.parametrize("forgery", ["name", "fields", "cubin"])
def test_a_refusal_names_the_kernel(bundle: Path, cache: KernelCache, forgery: str) -> None:
    with pytest.raises(CacheError, match=r"kernel [0-9a-f]{64} \((cutlass_gemm_\d|forged)\)"):
        cache.import_(rewritten(bundle, FORGERIES[forgery]))


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip file" * 100, None])
def test_what_is_no_bundle_is_refused(cache: KernelCache, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kernels.zip"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CacheError, match="cannot be read as a bundle"):
        cache.import_(path)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.95, 0.999])
def test_a_truncated_bundle_is_refused(bundle: Path, cache: KernelCache, share: float) -> None:
    whole = bundle.read_bytes()
    bundle.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CacheError, match="cannot be read as a bundle"):
        cache.import_(bundle)


@pytest.mark.parametrize("seed", range(150))
def test_no_flipped_byte_in_a_bundle_makes_a_wrong_kernel(tmp_path: Path, seed: int) -> None:
    cache = KernelCache(tmp_path / "cache")
    cache.put(kernel(size=200))
    bundle = tmp_path / "kernels.zip"
    cache.export(bundle)
    cache.close()
    content, noise = bytearray(bundle.read_bytes()), random.Random(seed)
    for _ in range(1 + seed % 3):
        content[noise.randrange(len(content))] ^= 1 << noise.randrange(8)
    bundle.write_bytes(content)
    try:
        kernels = read_bundle(bundle)
    except CacheError:
        return
    assert kernels == [kernel(size=200)]
