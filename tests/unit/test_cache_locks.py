"""The locks of the kernel cache: builders of one kernel take turns, and say whom they wait for."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cached import kernel, warnings_in

from pycutlass.cache import KernelCache
from pycutlass.cache.locking import holding, stopped_holder, wait_for
from pycutlass.errors import ArgumentError


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
    assert entered.wait(timeout=30)
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


def test_a_lock_on_a_file_without_a_name_is_none(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, tries, flock = directory / "lock", [], fcntl.flock
    directory.mkdir()

    def slow_flock(descriptor: int, operation: int) -> None:
        tries.append(descriptor)
        if len(tries) < 4:  # its holder releases it, and a third one takes it, between our open and our lock
            lock.unlink()
        if len(tries) < 3:
            lock.touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", slow_flock)
    with holding(lock, lambda: None):
        assert len(tries) == 4
        assert lock.exists()


def test_a_key_cannot_lead_out_of_the_directory(cache: KernelCache) -> None:
    with pytest.raises(ArgumentError, match="hexadecimal"), cache.building("../../x"):
        pass


def test_waiting_is_said_again_and_again() -> None:
    answers, said = iter([None] * 8 + ["done"]), []
    assert wait_for(lambda: next(answers), lambda: said.append(1), patience=0.002) == "done"
    assert len(said) >= 2


def test_a_builder_that_is_stopped_is_named(
    cache: KernelCache, directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped by Ctrl-Z, say, and would keep everyone waiting without a word."""
    program = (
        "import sys, time; from pycutlass.cache import KernelCache\n"
        f"with KernelCache({str(directory)!r}).building({kernel().key!r}):\n"
        "    print('holding', flush=True); time.sleep(60)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"holding\n"
        waiting = threading.Thread(target=lambda: cache.building(kernel().key).__enter__(), daemon=True)
        waiting.start()
        time.sleep(2.2)
        assert warnings_in(caplog) == []
        holder.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while not warnings_in(caplog) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(2.2)
        holder.kill()
        waiting.join(timeout=20)
        assert not waiting.is_alive()
    (message,) = warnings_in(caplog)
    assert f"process {holder.pid} holds" in message and f"kill -CONT {holder.pid}" in message


def test_a_lock_of_a_process_that_is_gone_names_nobody(tmp_path: Path) -> None:
    for content in ("", "x y", "999999999 1", f"{os.getpid()} 1", f"{os.getpid()}"):
        (tmp_path / "lock").write_text(content)
        assert stopped_holder(tmp_path / "lock") is None
    assert stopped_holder(tmp_path / "missing") is None


def test_a_lock_file_stays_empty(tmp_path: Path) -> None:
    """To delete a file that was just written takes some file systems as long as the rest of a look-up."""
    with holding(tmp_path / "lock", lambda: None):
        assert (tmp_path / "lock").stat().st_size == 0
        assert stopped_holder(tmp_path / "lock") is None, "this process holds it, and goes on"
