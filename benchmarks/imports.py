"""What `import pycutlass` takes beyond `import numpy`, in fresh interpreters; and that it does nothing else.

Needs no GPU. The other packages are what one would import instead.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.common import BenchmarkError, Report, child_environment, is_installed, number, options
from benchmarks.timing import rotated, summarize

__all__ = ["main", "measure"]

PARTS = ("pycutlass", "peers")
LIMIT = 120.0  # ms beyond numpy
_PEERS = ("torch", "triton", "cupy", "cuda.core", "cutlass_library")

# Times one import after that of numpy, and sees what else happens meanwhile.
_PROGRAM = """
import json, sys, time
start = time.perf_counter()
import numpy
middle = time.perf_counter()
written = []
def watch(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & 3:
        written.append(str(arguments[0]))
sys.addaudithook(watch)
__import__(sys.argv[1])
end = time.perf_counter()
with open("/proc/self/maps") as maps:
    driver = "libcuda.so" in maps.read()
answer = {
    "numpy": 1000 * (middle - start), "package": 1000 * (end - middle), "written": written, "driver": driver,
    "imported": [name for name in ("torch", "cupy") if name in sys.modules],
}
print(json.dumps(answer))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--repeats", type=int, default=15, help="fresh interpreters for each package (%(default)s)")
    chosen = parser.parse_args(argv)
    about = "Milliseconds that an import takes after `import numpy`, each time in a fresh interpreter."
    report = Report("imports", "Imports", about, chosen.out, quick=chosen.quick)
    with report.part("imports"):
        imports(report, 3 if chosen.quick else chosen.repeats, peers="peers" in chosen.only)
    return report.finish()


def imports(report: Report, repeats: int, peers: bool) -> None:
    """Measure all packages in turns, and check ours."""
    packages = ["pycutlass", *(filter(is_installed, _PEERS) if peers else ())]
    for package in packages:
        measure(package, caching=True)  # so that files are in memory, and Python's caches of compiled modules written
    answers: dict[str, list[dict[str, Any]]] = {package: [] for package in packages}
    for repeat in range(repeats):
        for package in rotated(packages, repeat):
            answers[package].append(measure(package))
    report.raw("imports", answers)

    base = summarize([answer["numpy"] for listed in answers.values() for answer in listed])
    rows = [("numpy, alone", number(base.median), base.spread(1))]
    for package, listed in answers.items():
        taken = summarize([answer["package"] for answer in listed])
        rows.append((f"{package}, after numpy", number(taken.median), taken.spread(1)))
        if package == "pycutlass":
            report.check("import pycutlass, over import numpy", taken.median, LIMIT, "ms")
    report.table("Import times", ("import", "median ms", "p10 - p90"), rows, f"{repeats} interpreters for each.")

    ours = answers["pycutlass"]
    for what, count in (
        ("files that the import opens for writing", sum(len(answer["written"]) for answer in ours)),
        ("of torch and cupy, that it imports", sum(len(answer["imported"]) for answer in ours)),
        ("interpreters that loaded the CUDA driver", sum(answer["driver"] for answer in ours)),
    ):
        report.check(what, count, 0, "")


def measure(package: str, *, caching: bool = False) -> dict[str, Any]:
    """Import `package` in a fresh interpreter and return what it took, in milliseconds, and what it did.

    Python may write its caches of compiled modules only with `caching`: they would count as files that were written.
    """
    command = [sys.executable, "-P", *([] if caching else ["-B"]), "-c", _PROGRAM, package]
    answer = subprocess.run(command, capture_output=True, text=True, env=child_environment(), check=False)
    if answer.returncode != 0:
        raise BenchmarkError(f"import {package} failed:\n{answer.stderr}")
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    sys.exit(main())
