"""Many compilers at once: how many, how they are stopped, and what is said of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from trivial_kernels import Operation, environment, write_script

from pycutlass import compiler, toolkit
from pycutlass.compiler import schedule, session, tools
from pycutlass.errors import ArgumentError, CompileError
from pycutlass.toolchain import Processes, StoppedError

pytestmark = pytest.mark.usefixtures("private_session")


def run_many(processes: Processes, folder: Path, count: int, memory: int) -> int:
    """Run `count` programs that last 0.15 s and return how many ran at the same time at most."""
    script = (
        "import pathlib, sys, time; mine = pathlib.Path(sys.argv[1]); mine.touch(); "
        "print(len(list(mine.parent.glob('running*')))); time.sleep(0.15); mine.unlink()"
    )
    seen: list[int] = []

    def one(number: int) -> None:
        command = [sys.executable, "-c", script, str(folder / f"running{number}")]
        status, output = processes.run(command, folder, memory=memory, group="")
        assert status == 0
        seen.append(int(output))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == count
    return max(seen)


@pytest.mark.parametrize(
    ("jobs", "memory", "needed", "most"), [(1, 100, 1, 1), (2, 100, 1, 2), (8, 10, 5, 2), (8, 1, 5, 1)]
)
def test_no_more_compilers_than_cores_and_memory_carry(tmp_path, jobs, memory, needed, most):
    assert run_many(Processes(jobs, memory), tmp_path, 5, needed) <= most


def test_jobs_variable(monkeypatch):
    monkeypatch.setenv("PYCUTLASS_JOBS", "3")
    assert schedule.make_processes().jobs == 3
    monkeypatch.delenv("PYCUTLASS_JOBS")
    assert schedule.make_processes().jobs == len(os.sched_getaffinity(0))
    for wrong in ("0", "many", "-1", "1.5"):
        monkeypatch.setenv("PYCUTLASS_JOBS", wrong)
        with pytest.raises(ArgumentError, match="PYCUTLASS_JOBS"):
            schedule.make_processes()


def test_memory_is_that_of_the_container_where_it_is_less(monkeypatch, tmp_path):
    machine = schedule._machine_memory()
    assert 1 << 20 < machine < 1 << 50
    monkeypatch.setattr(schedule, "_CONTROL_GROUP", tmp_path)
    assert schedule._available_memory() >= 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert schedule._container_memory() == schedule._UNLIMITED
    (tmp_path / "memory.max").write_text("5000\n")
    assert schedule._available_memory() == 4000


def test_stopping_kills_what_a_compiler_started_and_starts_no_more(tmp_path):
    processes = Processes(4, 100)
    outcome: list[BaseException] = []

    def one(group: str) -> None:
        try:
            script = f"sleep 60 & echo $! > {tmp_path / 'child'}; wait"
            processes.run(["sh", "-c", script], tmp_path, memory=1, group=group)
        except StoppedError as error:
            outcome.append(error)

    thread = threading.Thread(target=one, args=("kernel",))
    thread.start()
    deadline = time.monotonic() + 10
    while not ((tmp_path / "child").exists() and (tmp_path / "child").read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    processes.stop("kernel")
    thread.join(10)
    assert len(outcome) == 1
    assert not is_running(child)
    with pytest.raises(StoppedError):
        processes.run(["true"], tmp_path, memory=1, group="kernel")
    assert processes.run(["true"], tmp_path, memory=1, group="another") == (0, "")
    processes.stop()
    with pytest.raises(StoppedError):
        processes.run(["true"], tmp_path, memory=1, group="another")


def is_running(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


def test_an_interrupt_ends_the_compilers(tmp_path):
    (tmp_path / "compiler").write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\nexec sleep 60\n")
    (tmp_path / "compiler").chmod(0o755)
    command = write_script(
        tmp_path / "interrupted.py",
        f"""
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
def job(processes):
    return processes.run([{str(tmp_path / "compiler")!r}], Path({str(tmp_path)!r}), memory=1, group="")
try:
    schedule.run_all([("kernel_a", job), ("kernel_b", job)], Processes(1, 1))
except KeyboardInterrupt:
    print("interrupted")
""",
    )
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 30
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()):
            assert time.monotonic() < deadline and running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=30)
    assert output == "interrupted\n"
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_one_side_that_fails_ends_the_other(monkeypatch):
    """The host side is refused at once, the device side would take a minute."""
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    monkeypatch.setattr(found.device, "command", lambda source, output, target: ["sleep", "60"])
    monkeypatch.setattr(session, "_find_tools", lambda cache: found)
    started = time.monotonic()
    with pytest.raises(CompileError, match="host compiler failed"):
        compiler.add_module([Operation("kernel_a", extra="undefined_type value;")])
    assert time.monotonic() - started < 20


def test_a_compiler_that_is_killed_is_named(monkeypatch):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    monkeypatch.setattr(found.device, "command", lambda source, output, target: ["sh", "-c", "kill -9 $$"])
    monkeypatch.setattr(session, "_find_tools", lambda cache: found)
    with pytest.raises(CompileError, match=r"nvrtc was killed by SIGKILL \(out of memory\? PYCUTLASS_JOBS=1"):
        compiler.add_module([Operation("kernel_a")])


def test_a_compiler_without_output_is_named(monkeypatch):
    found = tools.find_tools("nvrtc", toolkit.without_memo)
    monkeypatch.setattr(found.device, "command", lambda source, output, target: ["true"])
    monkeypatch.setattr(session, "_find_tools", lambda cache: found)
    with pytest.raises(CompileError, match="nvrtc made no output on kernel kernel_a"):
        compiler.add_module([Operation("kernel_a")])


def test_a_progress_bar_on_a_terminal_when_it_takes_a_while(monkeypatch, capfd):
    monkeypatch.setattr(schedule, "_PATIENCE", 0.05)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    processes = Processes(2, 1 << 40)
    jobs = [(f"kernel_{name}", lambda _: time.sleep(0.2)) for name in "ab"]
    assert schedule.run_all(jobs, processes) == [None, None]
    assert "compiling" in capfd.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    schedule.run_all(jobs, processes)
    assert capfd.readouterr().err == ""
