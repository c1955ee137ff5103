"""Draw random kernels of every family, build them, run each on some problems, and compare with torch in float64.

    python -m tools.fuzz --seed 1 --minutes 6 --out results
    python -m tools.fuzz --case 1:17:3

Kernels are built in parallel on all cores while others run, on all GPUs. The end is a table; with --out also a JSON
file of counts and failures, which tools/gpu_results.py puts into docs/gpu-results.md. A case is named
SEED:KERNEL:PROBLEM, and --case runs it again: the same as long as the rules of descriptions are the same, which is why
a failure is printed with its description as well. With --dry no GPU is needed: the cases, smaller ones, go through the
host's reference. Builders keep what they make where PYCUTLASS_CACHE_DIR names a cache.

Compiling takes most of the time, which a machine without a GPU can do before, for an H100 or H200:

    python -m tools.fuzz --seed 1 --family "gemm hopper" --kernels 100 --minutes 60 --build kernels.zip
    python -m tools.fuzz --seed 1 --family "gemm hopper" --bundle kernels.zip --out results

Seed, families, problems and code have to be the same. Kernels that are not in the bundle are passed over.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pycutlass import compiler, device
from tools.fuzz import bundles
from tools.fuzz.bundling import Bundling
from tools.fuzz.cases import needed
from tools.fuzz.kernels import FAMILIES, draw_kernel
from tools.fuzz.processes import run_number
from tools.fuzz.session import Options, Session

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the fuzz; 0 where nothing was found."""
    given = _options().parse_args(argv)
    if given.case:
        return _run_again(given)
    gpus = [] if given.dry or given.build else _gpus()
    options = Options(
        seed=given.seed,
        families=tuple(given.family or ()),
        seconds=60 * given.minutes,
        problems=given.problems,
        gpus=gpus,
        target=device.describe(0).target if gpus else given.target,
        compiles=not given.no_compile,
        builders=given.builders,
        runners=0 if given.build else given.runners,
        most_kernels=given.kernels,
        bundle=given.bundle,
    )
    if gpus and given.no_compile:
        raise SystemExit("--no-compile is for --dry: a GPU needs kernels")
    if given.build:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # which ends a run as Ctrl-C does
    session = Bundling(options, file=given.build) if given.build else Session(options)
    session.run()
    session.show()
    if given.out:
        print(f"written: {session.write(given.out, given.commit)}")
    return 0 if session.well else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "tools.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", action="append", choices=list(FAMILIES), help="this alone, or these (all)")
    parser.add_argument("--minutes", type=float, default=6, help="of wall time, in all (%(default)s)")
    parser.add_argument("--out", type=Path, help="directory of the JSON file")
    parser.add_argument("--case", metavar="SEED:KERNEL[:PROBLEM]", help="run this again, and nothing else")
    parser.add_argument("--problems", type=int, default=5, help="of each kernel (%(default)s)")
    parser.add_argument("--kernels", type=int, help="stop after so many")
    parser.add_argument("--dry", action="store_true", help="run on the host, by the reference")
    kernels = parser.add_mutually_exclusive_group()
    kernels.add_argument("--no-compile", action="store_true", help="with --dry: build nothing")
    kernels.add_argument("--build", type=Path, metavar="FILE", help="only compile, and write the kernels to a bundle")
    kernels.add_argument("--bundle", type=Path, metavar="FILE", help="take kernels from a bundle, and compile none")
    parser.add_argument("--target", default="sm_90", help="what --dry and --build build for (%(default)s)")
    parser.add_argument("--builders", type=int, default=len(os.sched_getaffinity(0)), help="compilers at once")
    parser.add_argument("--runners", type=int, default=3, help="processes for each GPU (%(default)s)")
    parser.add_argument("--commit", default="", help="what is tested, for a copy of a checkout")
    return parser


def _gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES has to be for each GPU."""
    device.require()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[: device.count()] if visible else [str(number) for number in range(device.count())]


def _run_again(given: argparse.Namespace) -> int:
    seed, index, *problem = map(int, given.case.split(":"))
    kernel = draw_kernel(seed, index, tuple(given.family or ()))
    print(kernel.family, kernel.operation, *([kernel.reduction] if kernel.reduction else []), sep="\n")
    on_gpu = not given.dry and device.available()
    numbers = problem or range(given.problems)
    if given.bundle:
        bundles.take(given.bundle)
    if on_gpu or not given.no_compile:
        compiler.add_module(needed(kernel, numbers), target=None if on_gpu else given.target)
    bad = 0
    for number in numbers:
        refusals, mode, outcome = run_number(kernel, number, on_gpu=on_gpu)
        print(f"{seed}:{index}:{number} {mode}: {outcome.verdict} {outcome.reason}\n  {outcome.problem}")
        print(*(f"  refused: {reason}" for reason in refusals), sep="\n", end="\n" if refusals else "")
        bad += outcome.verdict in ("wrong", "failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
