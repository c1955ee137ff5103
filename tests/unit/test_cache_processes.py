"""The kernel cache among processes: one builder, many writers, deaths, forks, other users.

Run as a program, this file is one of those processes: ``python test_cache_processes.py ROLE DIRECTORY ARGUMENTS...``.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pycutlass.cache import Artifact, KernelCache, make_key

PATIENCE = 60.0  # seconds; all of these processes end in a few
NOBODY = 65534


def kernel(number: int, size: int = 20_000) -> Artifact:
    """Return the kernel `number`, the same in every process."""
    noise = random.Random(number)
    fields = {"kernel": str(number)}
    return Artifact(make_key(fields), f"k{number}", "sm_80", fields, noise.randbytes(size), b"host", {"number": number})


# What the processes do


def role_build(directory: Path, number: str, log: str, start: str) -> None:
    """Wait for the start, then use the kernel as the compiler does: from the cache, or else built and put there."""
    wait_for_file(Path(start))
    cache = KernelCache(directory)
    artifact = cache.get(kernel(int(number)).key)
    if artifact is None:
        with cache.building(kernel(int(number)).key):
            artifact = cache.get(kernel(int(number)).key)
            if artifact is None:
                with Path(log).open("a") as file:
                    file.write(f"{os.getpid()} began\n")
                time.sleep(0.5)
                artifact = kernel(int(number))
                cache.put(artifact)
    assert artifact == kernel(int(number))


def role_write(directory: Path, first: str, count: str, start: str) -> None:
    """Put kernels and read them and their neighbours' back."""
    wait_for_file(Path(start))
    cache = KernelCache(directory)
    for number in range(int(first), int(first) + int(count)):
        cache.put(kernel(number))
        assert cache.get(kernel(number).key) == kernel(number)
        assert cache.get(kernel(number + 5).key) in (None, kernel(number + 5))
        assert cache.memo("number", str(number), "1", lambda number=number: str(number)) == str(number)


def role_write_for_ever(directory: Path) -> None:
    """Put kernels until someone ends it."""
    cache = KernelCache(directory)
    print("writing", flush=True)
    while True:
        for number in range(50):
            cache.put(kernel(number, size=200_000))


def role_hold(directory: Path, number: str) -> None:
    """Take the lock of a kernel and never come back."""
    with KernelCache(directory).building(kernel(int(number)).key):
        print("holding", flush=True)
        time.sleep(PATIENCE)


def role_fork(directory: Path) -> None:
    """Use one cache before a fork and on both sides after it, while another thread uses it too."""
    cache = KernelCache(directory)
    cache.put(kernel(0))
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            assert cache.get(kernel(0).key) == kernel(0)

    thread = threading.Thread(target=keep_busy)
    thread.start()
    children = []
    for number in range(1, 6):
        child = os.fork()
        if child == 0:
            for put in range(number * 10, number * 10 + 10):
                cache.put(kernel(put))
            os._exit(0 if cache.get(kernel(0).key) == kernel(0) else 1)
        children.append(child)
        cache.put(kernel(number))
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    stop.set()
    thread.join()
    assert ends == [0] * 5, ends
    for number in [*range(6), *range(10, 60)]:
        assert cache.get(kernel(number).key) == kernel(number), number


def role_fork_inside(directory: Path) -> None:
    """Fork while another thread builds, and die; the child goes on to build the same."""
    cache, inside = KernelCache(directory), threading.Event()

    def build() -> None:
        with cache.building(kernel(0).key):
            inside.set()
            time.sleep(PATIENCE)

    threading.Thread(target=build, daemon=True).start()
    assert inside.wait(timeout=PATIENCE)
    if os.fork() != 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with cache.building(kernel(0).key):
        cache.put(kernel(0))
    print("the child has built", flush=True)


def role_fill_disk(directory: Path) -> None:
    """Put kernels where files cannot grow any more."""
    cache = KernelCache(directory)
    cache.put(kernel(0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    for number in range(1, 30):
        cache.put(kernel(number))
    for number in range(30):
        assert cache.get(kernel(number).key) == kernel(number), number
    print(len([entry for entry in cache.entries() if entry.name.startswith("k")]))


def role_read_only(directory: Path) -> None:
    """Read kernels where nothing can be written, and keep new ones in memory."""
    leave_root()
    cache = KernelCache(directory)
    assert [cache.get(kernel(number).key) for number in range(3)] == [kernel(number) for number in range(3)]
    assert cache.find(kernel="1") == kernel(1)
    for number in (3, 4):
        with cache.building(kernel(number).key):
            cache.put(kernel(number))
            assert cache.memo("a", str(number), "c", lambda: "computed") == "computed"
        assert cache.get(kernel(number).key) == kernel(number)
    assert cache.info().state == "read-only", cache.info()
    print(len(cache.entries()), len(cache.verify()))
    try:
        cache.remove("k0")
    except RuntimeError as error:
        print(error)


def role_memory_only(directory: Path) -> None:
    """Keep kernels where no directory can be made or none can be opened."""
    leave_root()
    cache = KernelCache(directory if directory.name != "default" else None)
    cache.put(kernel(0))
    assert cache.get(kernel(0).key) == kernel(0)
    print(cache.info().state)


def leave_root() -> None:
    """Become a user to whom permissions apply."""
    for name in ("platformdirs.unix", "sqlite3", "urllib.parse"):  # this user may not be able to read Python itself
        importlib.import_module(name)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def wait_for_file(path: Path) -> None:
    """Wait until `path` exists."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.001)


# The tests

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes of this file; those that still run when the test ends are ended."""
    started: list[subprocess.Popen[str]] = []

    def start(role: str, directory: Path, *arguments: object, **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, role, str(directory), *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **options.pop("env", {})}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, start_new_session=True, **pipes, **options))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the children that it forked
        process.communicate()


def finish(*processes: subprocess.Popen[str]) -> list[tuple[str, str]]:
    """Wait for `processes`, which must succeed, and return what they printed and logged."""
    outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return outputs


@pytest.mark.parametrize("count", [2, 6])
def test_of_many_processes_one_builds(directory: Path, tmp_path: Path, start: Start, count: int) -> None:
    log, go = tmp_path / "builds", tmp_path / "go"
    processes = [start("build", directory, 0, log, go) for _ in range(count)]
    go.touch()
    finish(*processes)
    assert len(log.read_text().splitlines()) == 1
    assert KernelCache(directory).verify() == []


def test_builders_of_different_kernels_do_not_wait(directory: Path, tmp_path: Path, start: Start) -> None:
    log, go = tmp_path / "builds", tmp_path / "go"
    processes = [start("build", directory, number, log, go) for number in (0, 1, 1, 2)]
    go.touch()
    finish(*processes)
    assert len(log.read_text().splitlines()) == 3


def test_many_processes_write_at_once(directory: Path, tmp_path: Path, start: Start) -> None:
    go = tmp_path / "go"
    processes = [start("write", directory, 10 * index, 30, go) for index in range(6)]
    go.touch()
    outputs = finish(*processes)
    cache = KernelCache(directory)
    assert [cache.get(kernel(number).key) for number in range(80)] == [kernel(number) for number in range(80)]
    assert cache.verify() == []
    assert cache.info().set_aside == ()
    assert [errors for _, errors in outputs] == [""] * 6


def test_of_many_processes_one_sets_a_damaged_database_aside(directory: Path, tmp_path: Path, start: Start) -> None:
    directory.mkdir(mode=0o700)
    (directory / "kernels.db").write_bytes(b"damaged" * 5000)
    go = tmp_path / "go"
    processes = [start("write", directory, 10 * index, 10, go) for index in range(5)]
    go.touch()
    outputs = finish(*processes)
    cache = KernelCache(directory)
    assert len(cache.entries()) == 50
    assert [path.name for path in cache.info().set_aside] == ["kernels.db.corrupt-1"]
    assert sum("begins" in errors for _, errors in outputs) == 1


def test_a_killed_builder_lets_the_next_one_in(directory: Path, tmp_path: Path, start: Start) -> None:
    holder = start("hold", directory, 0)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    log, go = tmp_path / "builds", tmp_path / "go"
    go.touch()
    waiting = start("build", directory, 0, log, go)
    time.sleep(1.0)
    assert waiting.poll() is None
    assert not log.exists()
    holder.kill()
    finish(waiting)
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize("moment", [0.03, 0.11, 0.23, 0.4])
def test_a_killed_writer_leaves_whole_kernels(directory: Path, start: Start, moment: float) -> None:
    writer = start("write_for_ever", directory)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    time.sleep(moment)
    writer.kill()
    writer.wait()
    cache = KernelCache(directory)
    assert cache.verify() == []
    assert cache.info().set_aside == ()
    cache.put(kernel(99))
    assert cache.get(kernel(99).key) == kernel(99)


def test_a_cache_may_be_used_after_a_fork(directory: Path, start: Start) -> None:
    finish(start("fork", directory))
    cache = KernelCache(directory)
    assert len(cache.entries()) == 56
    assert cache.verify() == []


def test_a_child_does_not_keep_its_parents_lock(directory: Path, start: Start) -> None:
    parent = start("fork_inside", directory)
    printed, errors = parent.communicate(timeout=PATIENCE)  # the child writes to the same pipes
    assert parent.returncode == -signal.SIGKILL
    assert printed == "the child has built\n", errors
    assert KernelCache(directory).get(kernel(0).key) == kernel(0)


def test_a_disk_that_takes_no_more(directory: Path, start: Start) -> None:
    ((printed, errors),) = finish(start("fill_disk", directory))
    assert int(printed) == 30
    assert errors.count("kernels stay in memory") == 1
    cache = KernelCache(directory)
    assert 1 <= len(cache.entries()) < 30
    assert cache.verify() == []
    assert cache.info().set_aside == ()


# Other users: root may write everywhere, so its processes leave it first.


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a new directory that other users can reach, unlike pytest's."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    for inner in [path, *path.rglob("*")]:
        inner.chmod(0o755)
    shutil.rmtree(path)


@pytest.mark.parametrize("open_elsewhere", [False, True])
def test_a_read_only_cache_is_read(shared: Path, start: Start, open_elsewhere: bool) -> None:
    directory = shared / "cache"
    directory.mkdir()
    cache = KernelCache(directory)
    for number in range(3):
        cache.put(kernel(number))
    if not open_elsewhere:
        cache.close()
    for path in directory.iterdir():
        path.chmod(0o555 if path.is_dir() else 0o444)
    directory.chmod(0o555)
    before = {path.name: path.stat().st_mtime_ns for path in directory.rglob("*")}

    ((printed, errors),) = finish(start("read_only", directory))
    assert printed.splitlines()[0] == "5 0"
    assert "cannot be written" in printed.splitlines()[1]
    assert errors.count("cannot be written, so new kernels stay in memory") == 1
    assert len(errors.splitlines()) == 1
    assert {path.name: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_a_home_that_cannot_be_written(shared: Path, start: Start) -> None:
    home = shared / "home"
    home.mkdir(mode=0o555)
    env = {"HOME": str(home), "XDG_CACHE_HOME": "", "PYCUTLASS_CACHE_DIR": ""}
    ((printed, errors),) = finish(start("memory_only", Path("default"), env=env))
    assert printed == "memory only\n"
    assert errors.count("kernels stay in memory") == 1
    assert len(errors.splitlines()) == 1
    assert list(home.iterdir()) == []


def test_a_home_that_is_not_there_is_not_made(shared: Path, start: Start) -> None:
    env = {"HOME": str(shared / "nobody"), "XDG_CACHE_HOME": "", "PYCUTLASS_CACHE_DIR": ""}
    ((printed, errors),) = finish(start("memory_only", Path("default"), env=env))
    assert printed == "memory only\n"
    assert errors.count("nobody does not exist: set PYCUTLASS_CACHE_DIR or HOME") == 1
    assert len(errors.splitlines()) == 1
    assert not (shared / "nobody").exists()


def test_a_database_that_cannot_be_read(shared: Path, start: Start) -> None:
    directory = shared / "cache"
    KernelCache(directory).put(kernel(0))
    (directory / "kernels.db").chmod(0)
    directory.chmod(0o555)
    ((printed, errors),) = finish(start("memory_only", directory))
    assert printed == "memory only\n"
    assert errors.count("kernels stay in memory") == 1


def test_a_damaged_database_that_cannot_be_set_aside(shared: Path, start: Start) -> None:
    directory = shared / "cache"
    directory.mkdir()
    (directory / "kernels.db").write_bytes(b"damaged" * 1000)
    directory.chmod(0o555)
    ((printed, errors),) = finish(start("memory_only", directory))
    assert printed == "memory only\n"
    assert errors.count("kernels stay in memory") == 1
    assert (directory / "kernels.db").read_bytes() == b"damaged" * 1000


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    globals()[f"role_{sys.argv[1]}"](Path(sys.argv[2]), *sys.argv[3:])
