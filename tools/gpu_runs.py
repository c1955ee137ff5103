"""Processes that run at the same time, each bounded in time: what they print is shown and kept."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import common

__all__ = ["Command", "Ended", "run_together"]

_PATIENCE = 15.0  # seconds between the request to end and the end
_NOTHING_SELECTED = re.compile(r"^collected (\d+) items? / \1 deselected / (\d+ skipped / )?0 selected$", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """What one process runs, and the file that keeps what it prints; its lines are shown behind `mark`."""

    words: Sequence[str]
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    mark: str = ""

    def __str__(self) -> str:
        return shlex.join([*(f"{name}={value}" for name, value in self.variables.items()), *self.words])


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed."""

    command: Command
    returncode: int
    timed_out: bool
    printed: str

    @property
    def well(self) -> bool:
        """Whether it came to its end by itself and without complaint."""
        return self.returncode == 0 and not self.timed_out

    @property
    def idle(self) -> bool:
        """Whether pytest found no test for it: few tests that are shared out leave some processes without any.

        It is told by the output, since compute-sanitizer does not pass pytest's exit status on.
        """
        return not self.timed_out and _NOTHING_SELECTED.search(self.printed) is not None


def run_together(commands: Sequence[Command], seconds: float) -> list[Ended]:
    """Run all commands at once, showing and keeping what they print; interrupt what is left after so many seconds.

    Raises
    ------
    OSError
        If one of them cannot be started; then the others are ended.
    """
    with contextlib.ExitStack() as stack:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            with _interruptible():
                for command in commands:
                    processes.append(stack.enter_context(_start(command)))
            late = _show_until_ended(processes, commands, seconds)
        except BaseException:  # KeyboardInterrupt above all: what was started must not outlive this program
            for process in processes:
                _signal(process, signal.SIGKILL)
            raise
    return [
        Ended(command, process.returncode, process in late, command.log.read_text(encoding="utf-8", errors="replace"))
        for command, process in zip(commands, processes, strict=True)
    ]


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Have programs that are started within take interrupts, which a shell's background jobs hand on as ignored."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _start(command: Command) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.words,
        cwd=common.ROOT,
        env=common.child_environment(PYTHONUNBUFFERED="1", **command.variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # so that what it starts is interrupted with it
    )


def _show_until_ended(
    processes: Sequence[subprocess.Popen[bytes]], commands: Sequence[Command], seconds: float
) -> list[subprocess.Popen[bytes]]:
    """Show what the processes print until all have ended, and return those that took too long."""
    pairs = zip(processes, commands, strict=True)
    readers = [threading.Thread(target=_show_and_keep, args=pair, daemon=True) for pair in pairs]
    for reader in readers:
        reader.start()
    late = _end_late(processes, seconds)
    for reader in readers:
        reader.join()
    return late


def _show_and_keep(process: subprocess.Popen[bytes], command: Command) -> None:
    assert process.stdout
    with command.log.open("wb") as file:
        for line in process.stdout:
            file.write(line)
            file.flush()  # whoever ends this program still finds it
            sys.stdout.write(f"{command.mark}{line.decode(errors='replace').rstrip()}\n")
            sys.stdout.flush()


def _end_late(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[subprocess.Popen[bytes]]:
    """Interrupt processes that take too long, so that they can save what they have, then end and return them."""
    late = _still_running(processes, seconds)
    for number in (signal.SIGINT, signal.SIGKILL):
        for process in late:
            _signal(process, number)
        _still_running(late, _PATIENCE)
    return late


def _still_running(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[subprocess.Popen[bytes]]:
    """Wait for the processes, all together for so many seconds, and return those that have not ended."""
    deadline, left = time.monotonic() + seconds, []
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            left.append(process)
    return left


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.killpg(process.pid, number)
