"""What a process holds after it has tuned hundreds of kernels, and held before."""

from __future__ import annotations

import gc
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Report
from benchmarks.growth import Memory
from benchmarks.pick_shapes import Shape
from benchmarks.tuning_kernels import problem_of
from pycutlass import deferred_release, device, kernel
from pycutlass.plan.measured import machine_of
from pycutlass.trials import Database
from pycutlass.tuning import ProblemReport, TuningOptions, tune
from pycutlass.tuning.bench import GpuBench
from pycutlass.tuning.known import Known
from pycutlass.tuning.problems import considered
from pycutlass.tuning.race import Contestant
from pycutlass.tuning.tuner import tune_problem

__all__ = ["handles"]

_SHAPE = Shape("bf16", "tnt", 512, 1024, 1024)
_FEW = 8  # kernels until allocators, the driver and the database have taken what they need
_SECONDS = 150.0  # that a run may take
_MIB = 1 << 20
_Measurer = Callable[[Any, TuningOptions], Any]


@dataclass(frozen=True)
class _Held:
    """What this process holds: memory, open files, libraries of kernels, threads, and processes that it has started."""

    memory: Memory
    loaded: int
    counts: dict[str, int]

    @classmethod
    def now(cls, loaded: int | None = None) -> _Held:
        """Look, once no more than so many kernels are loaded."""
        Memory.now()  # makes a context where there is none, which has files of its own
        gc.collect()
        end = time.monotonic() + 30
        while (deferred_release._keeper.attempts or _more_than(loaded)) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)  # the last one is being unloaded
        own = Path("/proc/self")
        counts = {
            "open files": len(list((own / "fd").iterdir())),
            "libraries of kernels": (own / "maps").read_text().count("pycutlass-host"),
            "threads": len(list((own / "task").iterdir())),
            "processes": len((own / "task" / str(os.getpid()) / "children").read_text().split()),
        }
        return cls(Memory.now(), len(kernel._loaded), counts)


def _more_than(loaded: int | None) -> bool:
    return loaded is not None and len(kernel._loaded) > loaded


class _Here:
    """Measures in this process as the tuner's child does: kernels are loaded and let go of here."""

    def __init__(self, problem: Any, options: TuningOptions) -> None:
        self._bench: GpuBench | None = GpuBench(problem, options)

    def check(self, number: int, candidate: Any, artifacts: Any) -> None:
        assert self._bench is not None
        own = pickle.loads(pickle.dumps(candidate))  # as a child has it: others of its text keep no kernel loaded
        self._bench.prepare(number, own, artifacts, True)

    def measure(self, number: int, seconds: float) -> list[float]:
        assert self._bench is not None
        return self._bench.measure(number)

    def measure_vendor(self, seconds: float) -> list[float]:
        assert self._bench is not None
        return self._bench.measure_vendor()

    def close(self) -> None:
        self._bench = None


def handles(report: Report, count: int) -> None:
    """Tune so many kernels, in a child as the tuner does and in this process, and record what is left of them."""
    ways: dict[str, _Measurer | None] = {"in a child": None, "in this process": _Here}
    for way, measurer in ways.items():
        _run(_FEW, measurer)
        before = _Held.now()
        measured = _run(count, measurer)
        after = _Held.now(before.loaded)
        _tell(report, f"{count} kernels tuned {way}", measured, count, before, after)


def _tell(report: Report, what: str, measured: int, count: int, before: _Held, after: _Held) -> None:
    report.check(f"{what}: measured", measured, count, "kernels", at_least=True)
    grown = max(getattr(after.memory, name) - getattr(before.memory, name) for name in ("device", "pool"))
    report.check(f"{what}: growth of device memory", grown / _MIB, 0, "MiB")
    most = max(after.counts[name] - before.counts[name] for name in before.counts)
    report.check(f"{what}: growth of files, libraries, threads and processes", most, 0, "")
    report.check(f"{what}: kernels still loaded", after.loaded - before.loaded, 0, "kernels")
    rows = [
        ("memory of the GPU in use, MiB", *(f"{each.memory.device / _MIB:,.2f}" for each in (before, after))),
        ("resident memory, MiB", *(f"{each.memory.host / _MIB:,.2f}" for each in (before, after))),
        *((name, str(before.counts[name]), str(after.counts[name])) for name in before.counts),
    ]
    report.table(what, ("what the process holds", "before", "after"), rows)


def _run(count: int, measurer: _Measurer | None) -> int:
    """Tune so many candidates of one problem, and return how many have a time."""
    settings = TuningOptions(most_candidates=count, least_rounds=3, most_rounds=3)
    with tempfile.TemporaryDirectory(prefix="pycutlass-benchmark-") as name:
        database = Database(Path(name) / "trials.db")
        try:
            return len(_tuned(settings, database, measurer).measured)
        finally:
            database.close()


def _tuned(settings: TuningOptions, database: Database, measurer: _Measurer | None) -> ProblemReport:
    problem = problem_of(_SHAPE)
    if measurer is None:
        return tune(problem, _SECONDS, options=settings, database=database)[0]
    gpu = device.describe(device.current())
    contestants = [Contestant(*each) for each in considered(problem, settings, gpu)]
    known = Known(database, machine_of(gpu.ordinal), settings)
    until = time.monotonic() + _SECONDS
    return tune_problem(problem, contestants, gpu, settings, until, known, measurer=measurer)
