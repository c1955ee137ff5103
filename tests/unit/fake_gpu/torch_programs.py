"""Runs programs, each in a process that has torch already: to import it takes longer than most of what is tested.

The text of this file is run by ``python -c``. It reads a program a line, as JSON, and says how each has ended. What it
imports starts no thread and looks for no GPU, so a process that is forked here is as good as a new one.
"""

import faulthandler
import json
import os
import sys

import numpy  # noqa: F401
import torch  # noqa: F401


def next_program() -> str:
    """Return the program that this process is to run: a process of its own, made for it."""
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


exec(compile(next_program(), "<string>", "exec"), {"__name__": "__main__"})
