"""The kernel cache in one process: keys, finding, pruning, memos."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from cached import FIELDS, TEXT, edit, kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from pycutlass.cache import Artifact, KernelCache, make_key
from pycutlass.cache.store import Store
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError

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


def test_looking_a_kernel_up_writes_nothing(cache: KernelCache, directory: Path) -> None:
    cache.put(kernel())
    cache.close()
    database = (directory / "kernels.db").read_bytes()
    again = KernelCache(directory)
    assert again.get(kernel().key) == kernel()
    assert (directory / "kernels.db-wal").read_bytes() == b"", "a sync of the disk would take longer than all the rest"
    again.close()
    assert (directory / "kernels.db").read_bytes() == database


def test_a_new_database_gives_back_the_space_of_what_is_deleted(cache: KernelCache, directory: Path) -> None:
    cache.put(kernel())
    with contextlib.closing(sqlite3.connect(directory / "kernels.db")) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchall() == [(1,)]


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


def test_every_use_is_written_down(cache: KernelCache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    other = KernelCache(directory)  # of another process

    def used_at(moment: float) -> float:
        now[0] = moment
        assert cache.get(kernel().key) is not None
        return other.entries()[0].last_used

    cache.put(kernel())
    assert [used_at(moment) for moment in (1000.0, 1001.5, 1002.0, 8000.0)] == [1000.0, 1001.5, 1002.0, 8000.0]
    now[0] = 9000.0
    assert cache.find(kernel=kernel().fields["kernel"]) == kernel()
    assert other.entries()[0].last_used == 9000.0
    other.close()


def test_what_is_looked_at_is_not_used(cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    cache.put(kernel())
    monkeypatch.setattr(time, "time", lambda: 2000.0)
    cache.export(tmp_path / "bundle")
    cache.import_(tmp_path / "bundle")
    cache.verify(), cache.info()
    assert cache.entries()[0].last_used == 1000.0


def test_prune_goes_by_the_last_use_however_short_ago(cache: KernelCache, directory: Path) -> None:
    for number in range(3):
        cache.put(kernel(number))
    assert cache.get(kernel(0).key) is not None
    size = cache.entries()[0].size
    assert [entry.name for entry in KernelCache(directory).prune(size + 99)] == ["cutlass_gemm_1", "cutlass_gemm_2"]
    assert [entry.name for entry in cache.entries()] == ["cutlass_gemm_0"]
    assert [path.name for path in (directory / "uses").iterdir()] == [kernel(0).key]
    (directory / "uses" / ("0" * 64)).touch()  # of a kernel that is gone otherwise
    cache.remove("cutlass_gemm_0")
    assert list((directory / "uses").iterdir()) == []


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


def test_what_another_process_puts_back_was_deleted(
    cache: KernelCache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for what cannot be deleted, because the file cannot be written."""
    cache.put(kernel(1))
    delete = Store.delete

    def delete_then_put(store: Store, keys: Collection[str]) -> bool:
        deleted = delete(store, keys)
        KernelCache(directory).put(kernel(1))
        return deleted

    monkeypatch.setattr(Store, "delete", delete_then_put)
    assert [entry.key for entry in cache.prune(0)] == [kernel(1).key]
    assert [entry.key for entry in cache.entries()] == [kernel(1).key]


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


@pytest.mark.parametrize("wrong", ["1GiB", None, 1e9], ids=repr)
def test_what_is_no_number_of_bytes_is_refused(cache: KernelCache, wrong: Any) -> None:
    cache.put(kernel())
    with pytest.raises(ArgumentTypeError, match=rf"max_bytes .*integer such as 2\*\*30; got {re.escape(repr(wrong))}"):
        cache.prune(wrong)
    assert len(cache.entries()) == 1


def test_what_is_no_list_of_selectors_is_refused(cache: KernelCache, tmp_path: Path) -> None:
    cache.put(kernel())
    for keys in ("gemm", 5):
        with pytest.raises(ArgumentTypeError, match="keys are a list of names"):
            cache.export(tmp_path / "bundle", keys)
    with pytest.raises(ArgumentTypeError, match=r"selected by name .* got 5"):
        cache.remove(5)


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
