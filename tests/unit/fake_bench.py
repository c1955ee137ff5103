"""The process that measures, on the stand-in driver."""

from __future__ import annotations

from multiprocessing.connection import Connection

import fake_gpu.inside  # puts a pool of memory in the place of RMM's  # noqa: F401

from pycutlass import timing
from pycutlass.tuning.bench import GpuBench
from pycutlass.tuning.measuring import serve

__all__ = ["serve_on_stand_in"]

timing._LEAST_FLUSHED_BYTES = 3000


def serve_on_stand_in(connection: Connection) -> None:
    serve(connection, GpuBench)
