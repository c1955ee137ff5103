"""What `Child` starts: ``python -m pycutlass.tuning.child_main PARENT DESCRIPTOR MODULE:FUNCTION``."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(parent: str, descriptor: str, function: str) -> None:
    """Call a function with the connection to the parent, until that has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # a kernel that hangs sees no closed pipe
    if os.getppid() != int(parent):  # it died before this was asked for
        return
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(Connection(int(descriptor)))


if __name__ == "__main__":
    main(*sys.argv[1:])
