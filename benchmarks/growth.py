"""Whether host or device memory grows over many launches."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pycutlass
from benchmarks.common import Report
from benchmarks.problems import Problem
from benchmarks.timing import Loop, repeating
from pycutlass import GemmArguments, GemmOperationUniversal, _core

__all__ = ["growth"]

_MIB = 1 << 20
# An allocator may take a few pages more at any time. What every one of 100 000 launches lost would be above this if it
# were 11 bytes, and what every one of 1000 arguments lost if it were a quarter of the kernel's parameters.
_HOST_LIMIT = 1.0
_SIZE = (256, 256, 64)


@dataclass(frozen=True)
class Memory:
    """Bytes in use: resident on the host, on the GPU as the driver tells it, and of the pool."""

    host: int
    device: int
    pool: int

    @classmethod
    def now(cls) -> Memory:
        """Read them when everything that was launched has finished."""
        import torch

        torch.cuda.synchronize()
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        free, total = _core.memory_info(0)
        return cls(resident, total - free, pycutlass.get_allocated_size())


def growth(report: Report, family: str, operation: GemmOperationUniversal, launches: int) -> None:
    """Measure all ways of launching, each with `launches` launches or a hundredth as many arguments."""
    rows = []
    most_host = most_device = 0.0
    for name, (loop, count) in _ways(operation, launches).items():
        loop(max(count // 5, 20))  # allocators and the driver take what they need
        before = Memory.now()
        loop(count)
        after = Memory.now()
        host = (after.host - before.host) / _MIB
        device, pool = (after.device - before.device) / _MIB, (after.pool - before.pool) / _MIB
        most_host, most_device = max(most_host, host), max(most_device, device, pool)
        rows.append((name, f"{count:,}", *(f"{grown:+.2f}" for grown in (host, device, pool))))
    report.check(f"{family}, {launches:,} launches: growth of host memory", most_host, _HOST_LIMIT, "MiB")
    report.check(f"{family}, {launches:,} launches: growth of device memory", most_device, 0, "MiB")
    columns = ("what", "times", "host, MiB", "device, MiB", "pool in use, MiB")
    note = (
        "Resident memory of the process, memory of the GPU in use (cuMemGetInfo), and bytes in use in the pool; the "
        "verdicts are on the largest."
    )
    report.table(f"Growth of memory, {family} kernel", columns, rows, note)


def _ways(operation: GemmOperationUniversal, launches: int) -> Mapping[str, tuple[Loop, int]]:
    import torch

    problem = Problem(_SIZE, sets=2)
    (a, b, d), (other_a, _, other_d) = problem.sets
    arguments, moving, elsewhere = (GemmArguments(operation, _SIZE, a, b, None, d) for _ in range(3))
    stream = torch.cuda.Stream()

    def update_and_run() -> None:
        moving.update(A=other_a, D=other_d)
        operation.run(moving)
        moving.update(A=a, D=d)
        operation.run(moving)

    def update_and_run_elsewhere() -> None:
        elsewhere.update(A=other_a, D=other_d)
        operation.run(elsewhere, stream)

    def new_arguments() -> None:
        operation.run(GemmArguments(operation, _SIZE, a, b, None, d))

    def new_host_arguments() -> None:
        made = GemmArguments(operation, _SIZE, host_a, host_b, None, host_d)
        operation.run(made)
        made.sync()

    host_a, host_b = a.cpu().numpy(), np.asfortranarray(b.cpu().numpy())
    host_d = np.empty((_SIZE[0], _SIZE[1]), np.float16)
    return {
        "run": (repeating(operation.run, arguments), launches),
        "update + run, twice": (repeating(update_and_run), launches // 2),
        "run on a named stream": (repeating(operation.run, arguments, stream), launches),
        "update + run on a named stream": (repeating(update_and_run_elsewhere), launches // 10),
        "arguments of torch tensors, made and deleted": (repeating(new_arguments), launches // 100),
        "arguments of NumPy arrays, made and deleted": (repeating(new_host_arguments), launches // 100),
    }
