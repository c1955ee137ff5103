"""A command that does not outlive its parent: ``python -I -S supervisor_main.py PARENT FOLDER COMMAND...``.

A compiler is several programs (nvcc starts cicc and ptxas, g++ starts cc1plus), and none of them ends with a process
that is killed. So this one stands between: it leads their process group, the kernel tells it when its parent has died,
and it then ends the group and removes FOLDER, which nobody else can any more. Otherwise it ends as COMMAND does. It is
run by its path and imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
import time
from types import FrameType

__all__ = ["main"]

_CANNOT_START = 126  # as a shell says it; `pycutlass.toolchain.processes` knows it, too
_PR_SET_PDEATHSIG = 1
_PATIENCE = 1.0  # seconds for compilers to end by themselves
_REMOVALS = 100


class _OrphanedError(Exception):
    """The parent has died."""


def main(parent: str, folder: str, *command: str) -> int:
    """Run `command` and return its exit status; a signal that ends it ends this process as well."""
    signal.signal(signal.SIGTERM, _parent_died)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may ignore it: nobody learned how a child has ended then
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != int(parent):  # it died before this was asked for
            raise _OrphanedError
        # Python ignores these two; programs expect them to be as usual.
        usual = (signal.SIGPIPE, signal.SIGXFSZ)
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=(), setsigdef=usual)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except _OrphanedError:
        return _end_all(folder)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}")
        return _CANNOT_START
    if status < 0:
        _end_by(-status)
    return status


def _parent_died(number: int, frame: FrameType | None) -> None:
    raise _OrphanedError


def _end_all(folder: str) -> int:
    """End the process group, this process included, and remove `folder`."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and _has_child():
        time.sleep(0.01)
    for _ in range(_REMOVALS):  # what takes no notice of SIGTERM may be writing to it
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            break
    os.killpg(0, signal.SIGKILL)
    return 1


def _has_child() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def _end_by(number: int) -> None:
    """End by signal `number`, as the command did, and leave no core file of this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
