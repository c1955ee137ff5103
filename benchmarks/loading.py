"""Whether memory or handles grow while kernels are loaded, launched and dropped, thousands of times."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import BenchmarkError, Report, options
from benchmarks.growth import Memory
from benchmarks.kernels import KINDS, plain
from benchmarks.problems import Problem
from pycutlass import GemmArguments, compiler, deferred_release, device, kernel

__all__ = ["main"]

PARTS = ("growth",)
_MIB = 1 << 20
_SIZE = (128, 128, 64)
# What every one of 5 000 cycles lost would be above this if it were 840 bytes.
_HOST_LIMIT = 4.0


@dataclass(frozen=True)
class Held:
    """What the process holds when nothing is loaded: memory, open files, and libraries of kernels."""

    memory: Memory
    files: int
    libraries: int

    @classmethod
    def now(cls) -> Held:
        """Look when everything has been unloaded."""
        gc.collect()
        end = time.monotonic() + 30
        while (kernel._loaded or deferred_release._keeper.attempts) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)  # the last one is being unloaded
        libraries = Path("/proc/self/maps").read_text().count("pycutlass-host")
        return cls(Memory.now(), len(list(Path("/proc/self/fd").iterdir())), libraries)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--dry", action="store_true", help="only compile the kernels: needs no GPU")
    chosen = parser.parse_args(argv)
    if chosen.dry:
        for artifact in compiler.add_module([plain(*kind) for kind in KINDS]):
            print(artifact.name)
        return 0
    cycles = 10 * len(KINDS) if chosen.quick else 100 * len(KINDS)
    about = (
        f"{cycles:,} times, {len(KINDS)} kernels in turns: an operation is described and found in the cache, arguments "
        f"are made, launched and waited for, and all of it is dropped. The kernel is unloaded then."
    )
    report = Report("loading", "Loading and unloading kernels", about, chosen.out, quick=chosen.quick)
    with report.part("compile"):
        device.require()
        compiler.add_module([plain(*kind) for kind in KINDS])
    if not report.result["failures"]:
        with report.part("growth"):
            growth(report, cycles)
    return report.finish()


def growth(report: Report, cycles: int) -> None:
    """Measure what so many cycles leave behind."""
    problem = Problem(_SIZE, sets=1)
    _load(problem, 2 * len(KINDS))  # allocators and the driver take what they need
    before = Held.now()
    start = time.perf_counter()
    loads = _load(problem, cycles)
    taken = time.perf_counter() - start
    after = Held.now()
    host = (after.memory.host - before.memory.host) / _MIB
    on_device = max(
        (after.memory.device - before.memory.device) / _MIB, (after.memory.pool - before.memory.pool) / _MIB
    )
    handles = max(after.files - before.files, after.libraries - before.libraries)
    what = f"{cycles:,} cycles over {len(KINDS)} kernels"
    report.check(f"{what}: growth of device memory", on_device, 0, "MiB")
    report.check(f"{what}: growth of open files and libraries", handles, 0, "handles")
    report.check(f"{what}: growth of host memory", host, _HOST_LIMIT, "MiB")
    report.check(f"{what}: kernels still loaded", len(kernel._loaded), 0, "kernels")
    report.check(f"{what}: kernels loaded anew", loads, cycles, "kernels", at_least=True)
    rows = [
        ("resident memory, MiB", f"{before.memory.host / _MIB:,.2f}", f"{after.memory.host / _MIB:,.2f}"),
        ("memory of the GPU in use, MiB", f"{before.memory.device / _MIB:,.2f}", f"{after.memory.device / _MIB:,.2f}"),
        ("open files", str(before.files), str(after.files)),
        ("libraries of kernels, mappings", str(before.libraries), str(after.libraries)),
    ]
    note = f"A cycle took {1000 * taken / cycles:.1f} ms."
    report.table("What the process holds", ("what", "before", "after"), rows, note)


def _load(problem: Problem, cycles: int) -> int:
    """Load, launch and drop kernels in turns; return how often one was loaded that was not there."""
    a, b, d = problem.sets[0]
    expected = a.double() @ b.double()
    loads = 0
    for number in range(cycles):
        operation = plain(*KINDS[number % len(KINDS)])
        [artifact] = compiler.add_module([operation])
        loads += (artifact.key, 0) not in kernel._loaded
        d.fill_(float("nan"))
        arguments = GemmArguments(operation, _SIZE, a, b, None, d)
        operation.run(arguments)
        arguments.sync()
        if not (d.double() - expected).abs().max().item() < 1e-1:
            raise BenchmarkError(f"{operation.procedural_name()} computes something else in cycle {number}")
    return loads


if __name__ == "__main__":
    sys.exit(main())
