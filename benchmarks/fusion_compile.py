"""Compile times of ready-made epilogue functions, beside that of the same kernel with a linear combination.

Each compile is by nvcc, in a process of its own with an empty cache, one process at a time; the plain kernel comes
again and again between the functions. What is compared is the processor time of all compilers, host side included, with
that of the plain kernels before and behind: so what else the machine does changes little. No GPU is needed. Compiling
all of it takes half an hour to an hour; ``--again`` takes the samples of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import BenchmarkError, Report, child_environment, number, options
from benchmarks.timing import rotated, summarize
from pycutlass import (
    GemmOperationUniversal,
    KernelSchedule,
    LinearCombination,
    MathInstruction,
    TensorDescription,
    TileDescription,
    compiler,
    cutlass,
)
from pycutlass.epilogue import Epilogue, fusions

__all__ = ["FAMILIES", "LIMIT", "PLAIN", "functors", "main", "operation", "ratios", "turns"]

#: How much longer than the plain kernel a function may take.
LIMIT = 1.15
PLAIN = "plain"
_F16, _F32, _S8, _S32 = cutlass.float16, cutlass.float32, cutlass.int8, cutlass.int32
FAMILIES = {
    "ampere": "Ampere-style, f16, 128x128x32, 3 stages",
    "hopper": "Hopper-native, f16, pingpong 128x128x64",
    "int8": "Ampere-style, int8, 128x128x64, 3 stages, D of f16",
    "int8_D": "Ampere-style, int8, 128x128x64, 3 stages, D of int8",
}
_OF_INT8 = {"int8": ("dequantize", "dequantize_bias", "dequantize_each"), "int8_D": ("requantize",)}
_ABOUT = (
    "Processor seconds of all compilers, device and host side, for one kernel with an empty cache: with each "
    "ready-made function, and with `LinearCombination`. By nvcc, one process at a time, the plain kernel between the "
    "others; *of plain* is the median of the ratios to the plain kernels just before and behind."
)
Sample = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or compile one kernel for that."""
    parser = options(__doc__, tuple(FAMILIES))
    parser.add_argument("--repeats", type=int, default=3, help="compiles of each function (%(default)s)")
    parser.add_argument(
        "--between", type=int, default=3, help="functions from one plain kernel to the next (%(default)s)"
    )
    parser.add_argument("--functions", default="", metavar="NAME,...", help="some of them alone")
    parser.add_argument("--again", type=Path, metavar="JSON", help="compile nothing: the samples of an earlier run")
    parser.add_argument("--one", nargs=2, metavar=("FAMILY", "FUNCTION"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    if chosen.one:
        print(json.dumps(_compile_here(*chosen.one)), flush=True)
        return 0
    report = Report("fusion_compile", "Compile times of epilogue functions", _ABOUT, chosen.out, quick=chosen.quick)
    earlier: dict[str, Any] = json.loads(chosen.again.read_text(encoding="utf-8")) if chosen.again else {}
    if earlier:
        report.result["environment"] = earlier["environment"]
    repeats = 1 if chosen.quick else chosen.repeats
    for family in chosen.only:
        wanted = chosen.functions.split(",") if chosen.functions else list(functors(family))
        names = [each for each in functors(family) if each in wanted]
        if not names:
            continue
        with report.part(FAMILIES[family]):
            samples: list[Sample] = earlier["raw"].get(family, []) if earlier else []
            if not earlier:
                measure(report, samples, family, names, repeats, chosen.between)
            report.raw(family, samples)
            compare(report, family, samples)
    return report.finish()


def functors(family: str) -> dict[str, Callable[[], Epilogue]]:
    """Return what makes the epilogue of each ready-made function that kernels of a family are compiled with."""
    if family == "int8":
        return {name: lambda name=name: fusions.ALL[name](_F16, 8, _S32) for name in _OF_INT8[family]}  # type: ignore[misc]
    if family == "int8_D":
        return {name: lambda name=name: fusions.ALL[name](_S8, 16, _S32, bias=_S32) for name in _OF_INT8[family]}  # type: ignore[misc]
    return {name: lambda name=name: fusions.ALL[name](_F16, 8) for name in fusions.ALL}  # type: ignore[misc]


def operation(family: str, name: str) -> GemmOperationUniversal:
    """Return a kernel of a family with a function, or with a linear combination."""
    is_int8, is_hopper = family.startswith("int8"), family == "hopper"
    element, alignment, total = (_S8, 16, _S32) if is_int8 else (_F16, 8, _F32)
    written, length = (_S8, 16) if family == "int8_D" else (_F16, 8)
    plain = LinearCombination(written, length, total, _F32)
    shape = None if is_hopper else [16, 8, 32] if is_int8 else [16, 8, 16]
    instruction = MathInstruction(shape, element, element, total, cutlass.OpClass.TensorOp)
    if is_hopper:
        pingpong = KernelSchedule.Pingpong
        tile = TileDescription([128, 128, 64], None, None, instruction, [1, 1, 1], pingpong)
    else:
        tile = TileDescription([128, 128, 64 if is_int8 else 32], 3, [2, 2, 1], instruction)
    return GemmOperationUniversal(
        90 if is_hopper else 80,
        tile,
        TensorDescription(element, cutlass.RowMajor, alignment),
        TensorDescription(element, cutlass.ColumnMajor, alignment),
        TensorDescription(written, cutlass.RowMajor, length),
        plain if name == PLAIN else functors(family)[name](),
    )


def turns(names: Sequence[str], repeats: int, between: int) -> Iterator[str]:
    """Yield what is compiled, one after the other: the plain kernel comes before every few functions, and at last."""
    for repeat in range(repeats):
        for index, name in enumerate(rotated(names, repeat * len(names) // repeats)):
            if index % between == 0:
                yield PLAIN
            yield name
    yield PLAIN


def measure(
    report: Report, samples: list[Sample], family: str, names: Sequence[str], repeats: int, between: int
) -> None:
    """Compile functions of a family so many times, and keep what each took as soon as it is known."""
    for name in turns(names, repeats, between):
        samples.append({"name": name, **_compile(family, name)})
        report.raw(family, samples)
        report.save()


def ratios(samples: Sequence[Sample], what: str) -> dict[str, list[float]]:
    """Return for each function how long it took of the plain kernels around it: the last before it, the next behind."""
    found: dict[str, list[float]] = {}
    plain = [index for index, sample in enumerate(samples) if sample["name"] == PLAIN]
    for index, sample in enumerate(samples):
        if sample["name"] != PLAIN:
            around = [
                max((i for i in plain if i < index), default=None),
                min((i for i in plain if i > index), default=None),
            ]
            times = [samples[each][what] for each in around if each is not None]
            found.setdefault(sample["name"], []).append(sample[what] * len(times) / sum(times))
    return found


def compare(report: Report, family: str, samples: Sequence[Sample]) -> None:
    """Compare each function of a family with the plain kernel."""
    taken: dict[str, list[Sample]] = {}
    for sample in samples:
        taken.setdefault(sample["name"], []).append(sample)
    processor, elapsed = ratios(samples, "processor"), ratios(samples, "elapsed")
    order = sorted(processor, key=lambda name: -summarize(processor[name]).median)
    rows = []
    for name in (*order, PLAIN):
        own, times = (summarize([each[what] for each in taken[name]]) for what in ("processor", "elapsed"))
        texts = [name, str(own.count), number(own.median), own.spread(), number(times.median)]
        if name == PLAIN:
            rows.append([*texts, "1", "1"])
            continue
        ratio = summarize(processor[name]).median
        rows.append([*texts, f"{ratio:.3f}", f"{summarize(elapsed[name]).median:.3f}"])
        report.check(f"{family}, {name}: of the plain kernel", ratio, LIMIT, "x")
    columns = ("epilogue", "compiles", "processor s", "p10 - p90", "elapsed s", "of plain", "elapsed, of plain")
    report.table(FAMILIES[family], columns, rows)


def _compile(family: str, name: str) -> dict[str, float]:
    """Compile a kernel in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="pycutlass-benchmark-") as cache:
        command = [sys.executable, "-P", "-m", "benchmarks.fusion_compile", "--one", family, name]
        environment = child_environment(
            PYCUTLASS_CACHE_DIR=cache, PYCUTLASS_BACKEND="nvcc", PYCUTLASS_NO_COMPILE=None, PYCUTLASS_TARGET=None
        )
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} failed:\n{ended.stderr}")
    answer: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def _compile_here(family: str, name: str) -> dict[str, float]:
    """Compile a kernel and return what it took: of all compilers, of each side, and from beginning to end."""
    made = operation(family, name)
    target = "sm_90a" if family == "hopper" else "sm_80"
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    [artifact] = compiler.add_module([made], target=target)
    elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    report: dict[str, Any] = dict(artifact.report)
    return {
        "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "elapsed": elapsed,
        "load": os.getloadavg()[0],
        **{key: value for key, value in report.items() if isinstance(value, int | float)},
    }


if __name__ == "__main__":
    sys.exit(main())
