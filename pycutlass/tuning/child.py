"""Processes that the tuner starts: what hangs or crashes in one costs only that one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from pycutlass.errors import DeviceError

__all__ = ["Child", "ChildEndedError", "ChildHangsError"]

_SHOWN = 400  # characters of what a child has printed last
_LONGEST = 1e6  # seconds of one wait: more than ten days, while systems refuse some that are longer
_PATIENCE = 5.0  # seconds for a process to disappear that was killed; one that waits for a GPU may take longer


class ChildEndedError(Exception):
    """The child ended without an answer. Never leaves the tuner."""


class ChildHangsError(Exception):
    """The child gave no answer in time. Never leaves the tuner."""


class Child:
    """A process that runs one function, which answers messages.

    It imports nothing of the program that starts it, unlike those of `multiprocessing`: scripts need no guard. It ends
    with its parent, by the kernel.

    Parameters
    ----------
    function : str
        ``"module:name"`` of a function that takes the connection.
    tmp_dir : Path, optional
        Where what it prints is kept.
    environment : mapping, optional
        Variables beside those of this process.
    """

    def __init__(self, function: str, *, tmp_dir: Path | None, environment: Mapping[str, str] | None = None) -> None:
        self._connection, theirs = Pipe()
        descriptor, name = tempfile.mkstemp(prefix="pycutlass-tuning-", suffix=".log", dir=tmp_dir)
        self._log = Path(name)
        # The child finds the same packages, also where this process has changed its path.
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})}
        command = [
            sys.executable,
            "-m",
            "pycutlass.tuning.child_main",
            str(os.getpid()),
            str(theirs.fileno()),
            function,
        ]
        try:
            self._process = subprocess.Popen(
                command,
                env=variables,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt at the terminal is this process's to handle
            )
        except OSError as error:
            self._log.unlink(missing_ok=True)
            raise DeviceError(f"{sys.executable} cannot be started, which measures kernels: {error}") from error
        finally:
            os.close(descriptor)
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def connection(self) -> Connection:
        """What messages go through."""
        return self._connection

    def send(self, message: Any) -> None:
        """Send a message.

        Raises
        ------
        ChildEndedError
            There is nobody to read it.
        """
        try:
            self._connection.send(message)
        except OSError:
            raise ChildEndedError(self._ending()) from None

    def receive(self, seconds: float) -> Any:
        """Return its next message.

        Raises
        ------
        ChildEndedError, ChildHangsError
            It has ended, or says nothing for so long.
        """
        try:
            if not self._connection.poll(min(max(0.0, seconds), _LONGEST)):
                raise ChildHangsError(f"no answer within {seconds:.3g} s")
            return self._connection.recv()
        except (EOFError, OSError):
            raise ChildEndedError(self._ending()) from None

    def end(self) -> None:
        """End it, with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        self._connection.close()
        self._log.unlink(missing_ok=True)

    def _ending(self) -> str:
        """Return how it has ended."""
        deadline = time.monotonic() + _PATIENCE
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        code = self._process.returncode
        how = "it closed its connection" if code is None else f"it ended with status {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = f"it was ended by {signal.Signals(-code).name}"
        said = self._log.read_text(errors="replace").strip()[-_SHOWN:] if self._log.exists() else ""
        return f"{how}{f': {said}' if said else ''}"
