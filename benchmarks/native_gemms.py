"""Kernel times of Ampere-style GEMMs, one or two of each family, against the same kernels in C++.

The C++ is CUTLASS's device-level API, device and host side compiled by one nvcc. It has the operation's own types,
layouts, alignments, tile, warps, stages, epilogue and swizzle: what remains is what PyCUTLASS adds. Both make short
batches of launches in turns.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from benchmarks.builds import GemmOperation, build_same, compile_all
from benchmarks.common import Report, number, options
from benchmarks.gemm_cases import CASES, NATIVE, OURS, Case, GroupCase
from benchmarks.timing import device_times, median_ratio, summarize
from pycutlass import device

__all__ = ["main"]

LIMIT = 1.03
_MOST_COMPILERS = 8  # each takes 2 to 4 GB


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = options(__doc__, tuple(CASES))
    parser.add_argument("--dry", action="store_true", help="only list the kernels: needs no GPU")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each comparison (%(default)s)")
    chosen = parser.parse_args(argv)
    cases = [CASES[name] for name in chosen.only]
    if chosen.dry:
        print("\n".join(f"{case.title}, {case.problem}: {case.operation.procedural_name()}" for case in cases))
        return 0
    about = (
        "The same kernel twice: launched by PyCUTLASS, and by CUTLASS's device-level API in C++ compiled by one nvcc. "
        "Random inputs that do not stay in the L2 cache; device time by CUDA events, both in turns; both results "
        "checked against float64, those of integers for equality."
    )
    report = Report("native_gemms", "Ampere-style GEMMs against C++", about, chosen.out, quick=chosen.quick)
    with report.part("GPU"):
        device.require()
    if not report.result["failures"]:
        with tempfile.TemporaryDirectory(prefix="pycutlass-benchmark-") as folder:
            _measure(report, cases, Path(folder), 0.2 if chosen.quick else chosen.seconds)
    return report.finish()


def _measure(report: Report, cases: Sequence[Case | GroupCase], folder: Path, seconds: float) -> None:
    """Compile both sides of all, then compare one after the other."""
    operations = list(dict.fromkeys(case.operation for case in cases))
    pool = ThreadPoolExecutor(max(1, min(_MOST_COMPILERS, len(os.sched_getaffinity(0)) // 2)))
    try:
        libraries = {
            operation: pool.submit(build_same, operation, folder / f"{operation.procedural_name()}.so")
            for operation in operations
        }
        with report.part("compile the kernels"):
            compile_all(report, operations)
        with report.part("wait for the compilers of the C++"):
            wait(libraries.values())  # nothing else runs while times are taken
    finally:
        pool.shutdown(cancel_futures=True)
    rows: list[Sequence[str]] = []
    try:
        for case in cases:
            with report.part(case.title):
                rows.append(compare(report, case, libraries, seconds))
    finally:  # what was measured before an interruption counts
        columns = ("kernel", "M x N x K", "PyCUTLASS us", "C++ us", "time, of the C++ kernel's", "round by round")
        report.table("The same kernels", columns, rows)
        report.save()


def compare(
    report: Report, case: Case | GroupCase, libraries: Mapping[GemmOperation, Future[Path]], seconds: float
) -> Sequence[str]:
    """Measure one kernel from both sides, record the verdict, and return a row of the table."""
    times = device_times(case.loops(libraries[case.operation].result()), seconds=seconds)
    report.raw(f"{case.title}, us", times)
    # How many times as fast C++ is, is how many times as long ours takes.
    ratio, rounds = median_ratio(times[NATIVE], times[OURS])
    report.check(f"{case.title}, {case.problem}: time, of that of the same kernel in C++", ratio, LIMIT, "x")
    taken = (number(summarize(times[name]).median) for name in (OURS, NATIVE))
    return case.title, case.problem, *taken, f"{ratio:.3f}", rounds.spread(3)


if __name__ == "__main__":
    sys.exit(main())
