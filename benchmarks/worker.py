"""One fresh process that asks for one kernel, for benchmarks/compile.py; prints what it took as JSON.

The interpreter, the imports, the description and the CUDA context are there before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time

from benchmarks.kernels import COMPILED
from pycutlass import _core, compiler, device, kernel

__all__ = ["main"]


class _Compilations(logging.Handler):
    """Counts the kernels that this process compiled, by what PyCUTLASS writes into its log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("compiled "):
            self.count += 1


def main(argv: list[str] | None = None) -> None:
    """Compile or fetch the kernel and load it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", choices=COMPILED)
    parser.add_argument("--load", action="store_true", help="load it on the GPU as well")
    parser.add_argument("--wait", action="store_true", help="say so when ready, and begin at a line on stdin")
    options = parser.parse_args(argv)

    compilations = _Compilations()
    log = logging.getLogger("pycutlass")
    log.addHandler(compilations)
    log.setLevel(logging.INFO)
    operation = COMPILED[options.kernel]()
    if device.available():
        _core.memory_info(0)  # makes the context
    if options.wait:
        print("ready", flush=True)
        sys.stdin.readline()

    start = time.perf_counter()
    [artifact] = compiler.add_module([operation])
    added = time.perf_counter()
    if options.load:
        kernel.load(operation, 0)
    loaded = time.perf_counter()
    answer = {
        "add_module": added - start,
        "load": loaded - added,
        "compiled": compilations.count,
        "compiler": artifact.fields["device_compiler"],
        "target": artifact.target,
        "report": artifact.report,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
