"""Compilers as processes: how many run at once, how they are stopped, and what becomes of them with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from pycutlass import config
from pycutlass.errors import ToolkitError

__all__ = ["Processes", "StoppedError"]

_CANNOT_START = 126  # as supervisor_main.py ends where the command does not even begin
_SUPERVISOR = Path(__file__).resolve().parents[1] / "supervisor_main.py"


class StoppedError(Exception):
    """The compiler was stopped from outside: another failed, or the user interrupted. Never leaves `add_module`."""


class Processes:
    """The compilers that run now: at most so many, in at most so much memory, and all can be stopped.

    Parameters
    ----------
    jobs : int
        Most processes at once.
    memory : int
        Bytes that they may take together; one may always run.
    """

    def __init__(self, jobs: int, memory: int) -> None:
        self.jobs = jobs
        self._memory = memory
        self._changed = threading.Condition()
        self._running: dict[subprocess.Popen[bytes], tuple[str, int]] = {}
        self._stopped: set[str] = set()
        self._all_stopped = False

    def run(self, command: list[str], folder: Path, *, memory: int, group: str) -> tuple[int, str]:
        """Wait for a place, run `command` in `folder`, and return its exit status and what it printed.

        `folder` is the command's own: if this process is killed, both end with it.

        Raises
        ------
        ToolkitError
            If it cannot be started.
        StoppedError
            If it was stopped, before or while it ran.
        """
        process = self._start(command, folder, memory, group)
        try:
            output, _ = process.communicate()
        except BaseException:  # KeyboardInterrupt, where this is the main thread
            _kill(process)
            process.wait()
            raise
        finally:
            with self._changed:
                del self._running[process]
                self._changed.notify_all()
        if self._is_stopped(group):
            raise StoppedError(group)
        text = output.decode(errors="replace")
        if process.returncode == _CANNOT_START and text.startswith(f"{command[0]} cannot be started: "):
            raise ToolkitError(f"{text.strip()}. Install it anew, or name another one.")
        return process.returncode, text

    def stop(self, group: str | None = None) -> None:
        """Kill the processes of `group`, or all of them; no other one of it will start."""
        with self._changed:
            if group is None:
                self._all_stopped = True
            else:
                self._stopped.add(group)
            for process, (member, _) in self._running.items():
                if self._is_stopped(member):
                    _kill(process)
            self._changed.notify_all()

    def _is_stopped(self, group: str) -> bool:
        return self._all_stopped or group in self._stopped

    def _start(self, command: list[str], folder: Path, memory: int, group: str) -> subprocess.Popen[bytes]:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped(group) or self._has_place(memory))
            if self._is_stopped(group):
                raise StoppedError(group)
            supervisor = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid()), str(folder)]
            try:
                # A session of its own: nvcc starts programs, and all of them must go when it is stopped.
                process = subprocess.Popen(
                    [*supervisor, *command],
                    cwd=folder,
                    env={**config.compiler_environment(), "TMPDIR": str(folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ToolkitError(f"{sys.executable} cannot be started: {error}") from error
            self._running[process] = (group, memory)
            return process

    def _has_place(self, memory: int) -> bool:
        taken = sum(needed for _, needed in self._running.values())
        return not self._running or (len(self._running) < self.jobs and taken + memory <= self._memory)


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has just ended
        return
