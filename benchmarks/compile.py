"""Compile times: a kernel that nobody has compiled yet, one that is in the cache, and one that two processes want.

Cold: PyCUTLASS with an empty cache against one `nvcc -shared` that makes device and host side of the same kernel, in
turns. Cached: from `add_module` to the kernel on the device, in processes that were just started.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.builds import build_native
from benchmarks.common import BenchmarkError, Report, child_environment, number, options
from benchmarks.timing import rotated, summarize
from pycutlass import device

__all__ = ["main"]

PARTS = ("cold", "cached", "race")
FAMILIES = ("ampere", "hopper")
BACKENDS = ("nvcc", "nvrtc")
COLD_LIMIT = {"ampere": 0.45, "hopper": 0.62}  # of nvcc -shared
CACHED_LIMIT = 14.0  # ms

_NAMES = {
    "ampere": "f16 TensorOp 128x256x64, 3 stages",
    "hopper": "f16 Hopper cooperative 128x256x64, cluster 2x1",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--repeats", type=int, default=3, help="cold compiles of each kind (%(default)s)")
    parser.add_argument("--kernels", default=",".join(FAMILIES), help="which kernels (%(default)s)")
    chosen = parser.parse_args(argv)
    repeats = 1 if chosen.quick else chosen.repeats
    families = [family for family in FAMILIES if family in chosen.kernels.split(",")]
    about = (
        "Seconds from `add_module` to the compiled kernel with an empty cache, against one `nvcc -shared` that makes "
        "device and host side of the same kernel; and milliseconds for a kernel that is in the cache."
    )
    report = Report("compile", "Compile times", about, chosen.out, quick=chosen.quick)
    with tempfile.TemporaryDirectory(prefix="pycutlass-benchmark-") as name:
        folder = Path(name)
        for family in families if "cold" in chosen.only else ():
            with report.part(f"cold, {family}"):
                cold(report, family, folder, repeats)
        for family in families if "cached" in chosen.only else ():
            with report.part(f"cached, {family}"):
                cached(report, family, folder, 3 if chosen.quick else 9)
        if "race" in chosen.only:
            with report.part("two processes, one kernel"):
                race(report, folder)
    return report.finish()


def cold(report: Report, family: str, folder: Path, repeats: int) -> None:
    """Compare compilations of one kernel, in turns."""
    times: dict[str, list[float]] = {"nvcc -shared": [], **{backend: [] for backend in BACKENDS}}
    whole: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    phases: list[dict[str, Any]] = []
    for repeat in range(repeats):
        for what in rotated(list(times), repeat):
            if what == "nvcc -shared":
                times[what].append(build_native(family, folder / f"{family}.so"))
                continue
            empty = tempfile.mkdtemp(prefix=f"cache-{family}-{what}-", dir=folder)
            start = time.perf_counter()
            answer = _Worker(family, what, Path(empty)).answer()
            whole[what].append(time.perf_counter() - start)
            if answer["compiled"] != 1:
                raise BenchmarkError(f"a process with an empty cache compiled {answer['compiled']} kernels, not 1")
            times[what].append(answer["add_module"])
            phases.append({"backend": what, "target": answer["target"], **answer["report"]})
    report.raw(f"cold {family}", {"seconds": times, "whole process": whole, "reports": phases})

    native = summarize(times["nvcc -shared"])
    rows = [("`nvcc -shared`, device and host", number(native.median), native.spread(), "1", "")]
    for backend in BACKENDS:
        ours = summarize(times[backend])
        ratio = ours.median / native.median
        process = f"{number(summarize(whole[backend]).median)}"
        rows.append((f"PyCUTLASS with {backend}", number(ours.median), ours.spread(), number(ratio), process))
        report.check(f"cold compile, {_NAMES[family]}, {backend}: of nvcc -shared", ratio, COLD_LIMIT[family], "x")
    columns = ("compiler", "median s", "p10 - p90", "of nvcc -shared", "whole process, s")
    note = f"{repeats} of each, in turns, for {phases[0]['target']}."
    report.table(f"Cold: {_NAMES[family]}", columns, rows, note)


def cached(report: Report, family: str, folder: Path, repeats: int) -> None:
    """Measure fresh processes that find their kernel in the cache."""
    gpu = device.available()
    rows = []
    for backend in BACKENDS:
        filled = folder.glob(f"cache-{family}-{backend}-*")  # by the cold compiles, where they were asked for
        directory = next(filled, folder / f"cache-{family}-{backend}")
        _Worker(family, backend, directory).answer()
        answers = [_Worker(family, backend, directory, load=gpu).answer() for _ in range(repeats)]
        compiled = sum(answer["compiled"] for answer in answers)
        if compiled:
            raise BenchmarkError(f"{compiled} of {repeats} processes compiled a kernel that was in the cache")
        added, loaded = ([1000 * answer[phase] for answer in answers] for phase in ("add_module", "load"))
        total = summarize([first + second for first, second in zip(added, loaded, strict=True)])
        report.raw(f"cached {family} {backend}", answers)
        phases = (number(summarize(added).median), number(summarize(loaded).median) if gpu else "no GPU")
        size = f"{answers[0]['report']['cubin_bytes']:,}"
        rows.append((backend, number(total.median), total.spread(), *phases, size))
        if gpu:
            what = f"cached kernel, {_NAMES[family]}, {backend}: add_module to loaded"
            report.check(what, total.median, CACHED_LIMIT, "ms")
    columns = ("compiled by", "median ms", "p10 - p90", "add_module, ms", "load, ms", "cubin, bytes")
    report.table(f"Cached: {_NAMES[family]}", columns, rows, f"{repeats} processes of each.")
    if not gpu:
        raise BenchmarkError("there is no GPU: loading was not measured, so there is no verdict")


def race(report: Report, folder: Path) -> None:
    """Let two processes ask for the same new kernel at the same moment."""
    directory = folder / "race"
    workers = [_Worker("ampere", "nvcc", directory, wait=True) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    for worker in workers:
        worker.begin()
    answers = [worker.answer() for worker in workers]
    compiled = sum(answer["compiled"] for answer in answers)
    report.raw("race", answers)
    report.check("compiles for two processes that ask for one new kernel: not more than one", compiled, 1, "")
    report.check("and not less", compiled, 1, "", at_least=True)


@dataclass
class _Worker:
    """A process of benchmarks/worker.py."""

    family: str
    backend: str
    cache: Path
    load: bool = False
    wait: bool = False

    def __post_init__(self) -> None:
        flags = [flag for flag, wanted in (("--load", self.load), ("--wait", self.wait)) if wanted]
        self._command = [sys.executable, "-P", "-m", "benchmarks.worker", self.family, *flags]
        self._process = subprocess.Popen(
            self._command,
            # nvcc is what is used where nobody chooses, and it is found faster when it is not named.
            env=child_environment(
                PYCUTLASS_CACHE_DIR=str(self.cache),
                PYCUTLASS_BACKEND=None if self.backend == "nvcc" else self.backend,
                PYCUTLASS_NO_COMPILE=None,
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Wait until nothing but the clock has to be started."""
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            self.answer()

    def begin(self) -> None:
        """Let it begin."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for its end and return what it printed."""
        output, errors = self._process.communicate()
        if self._process.returncode != 0:
            raise BenchmarkError(f"{' '.join(self._command)} failed:\n{errors}")
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        if not answer["compiler"].startswith(self.backend):
            raise BenchmarkError(f"the kernel was to be compiled by {self.backend}, it was by {answer['compiler']}")
        return answer


if __name__ == "__main__":
    sys.exit(main())
