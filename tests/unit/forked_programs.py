"""Runs programs in processes that have modules already: importing them takes longer than most of what they test.

As a program, this file imports modules, reads programs, one a line as JSON, and says how each has ended. Each runs in a
process that is forked here: nothing that is imported before starts a thread or looks for a GPU.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["run"]

#: What is read when a process starts, so that programs which differ in it are not forked from the same one.
_READ_AT_START = ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONWARNINGS")


def run(
    program: str, environment: dict[str, str] | None = None, seconds: float = 60, modules: tuple[str, ...] = ("torch",)
) -> subprocess.CompletedProcess[str]:
    """Run `program` as ``python -X faulthandler -c`` does, and return how it ended and what it said."""
    environment = dict(os.environ) if environment is None else environment
    importer = _importer(modules, tuple(environment.get(name) for name in _READ_AT_START))
    return importer.run(program, environment, seconds)


@functools.cache
def _importer(modules: tuple[str, ...], variables: tuple[str | None, ...]) -> _Importer:
    """Return the process of this one that has `modules`, for the values of some environment variables."""
    given = {name: value for name, value in zip(_READ_AT_START, variables, strict=True) if value is not None}
    return _Importer(modules, os.environ | given)


class _Importer:
    """A process that has imported modules, and starts programs."""

    def __init__(self, modules: tuple[str, ...], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # NumPy's library would start threads, which a forked process does not have.
            env=environment | {"OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        atexit.register(self._end)

    def run(self, program: str, environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
        """Run `program`."""
        with tempfile.TemporaryDirectory() as folder:
            said = [Path(folder) / name for name in ("stdout", "stderr")]
            wanted = {"program": program, "environment": environment, "stdout": str(said[0]), "stderr": str(said[1])}
            for path in said:
                path.touch()
            assert self._process.stdin and self._process.stdout
            self._process.stdin.write(json.dumps(wanted) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], seconds)[0]:
                self._end()
                _importer.cache_clear()
                raise subprocess.TimeoutExpired(program, seconds, *(path.read_text() for path in said))
            status = self._process.stdout.readline()
            assert status, "the process that starts programs has ended"
            return subprocess.CompletedProcess(program, int(status), *(path.read_text() for path in said))

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # which closes the pipes and waits
            pass


def _next_program() -> str:
    """Return the program that this process is to run: one of its own, made for it."""
    for module in ("numpy", *sys.argv[1:]):
        importlib.import_module(module)
        if module == "torch":
            gc.freeze()  # so that no program looks for garbage there, not even at its end
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if not child:
            for descriptor, path in enumerate((os.devnull, wanted["stdout"], wanted["stderr"])):
                file = os.open(path, os.O_WRONLY if descriptor else os.O_RDONLY)
                os.dup2(file, descriptor)
                os.close(file)
            faulthandler.enable()
            os.environ.clear()
            os.environ.update(wanted["environment"])
            return str(wanted["program"])
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


if __name__ == "__main__":
    exec(compile(_next_program(), "<string>", "exec"), {"__name__": "__main__"})
