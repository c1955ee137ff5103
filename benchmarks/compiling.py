"""How long `torch.compile` takes with our backend, against Inductor, and the host time of operators of torch.

Each time of a compile is that of the first call of a transformer block in a process of its own, which torch and a CUDA
context are in already. Kernels are there, as with the bundle, and no compiler of C++ is started.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchmarkError, Report, number, options
from benchmarks.timing import Loop, host_times, repeating, summarize
from pycutlass import device

__all__ = ["PARTS", "main"]

PARTS = ("compile", "operators")
WARM_LIMIT, OUT_LIMIT = 0.5, 2.0  # seconds above Inductor's, and microseconds above the plan's
_BACKENDS = ("inductor", "pycutlass")
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_ERROR = 0.02

_ABOUT = (
    "The first call of a transformer block (d 4096, ffn 14336, bfloat16) that `torch.compile` was given, in a process "
    "of its own with a CUDA context. Kernels of PyCUTLASS are compiled before; *cold* is with empty caches of Inductor "
    "and Triton, *warm* a second process. And host microseconds of operators of torch beside those of plans."
)
_ABOUT_OPERATORS = (
    "Host microseconds of operators of torch beside those of plans. How long models take to compile was not measured."
)


def first_call(backend: str, tokens: int, caches: Path, *, place: str = "cuda", scale: int = 1, **more: str) -> float:
    """Return the seconds of the first call in a new process.

    Parameters
    ----------
    backend : str
        Of ``torch.compile``.
    tokens : int
        Rows of the block's input.
    caches : Path
        Where Inductor and Triton keep what they compile.
    place : str, default "cuda"
        The device.
    scale : int, default 1
        By what extents are divided: to try it out.
    **more
        Further variables of the environment.
    """
    command = [sys.executable, "-m", "benchmarks.first_model", backend, str(tokens), place, str(scale)]
    environment = {**os.environ, **{name: str(caches / name) for name in _CACHES}, **more}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command[1:])} failed:\n{done.stderr[-2000:]}")
    made = json.loads(done.stdout.splitlines()[-1])
    if made["error"] > _ERROR:
        raise BenchmarkError(f"wrong result: {made}")
    return float(made["seconds"])


def compiles(report: Report, tokens: int, rounds: int) -> None:
    """Measure compiling with caches that are empty, and those that a process before has filled."""
    times: dict[tuple[str, str], list[float]] = {(way, each): [] for way in ("cold", "warm") for each in _BACKENDS}
    with tempfile.TemporaryDirectory(prefix="pycutlass-benchmark-") as name:
        first_call("pycutlass", tokens, Path(name) / "kernels")  # compiles kernels
        for turn in range(rounds):
            for backend in _BACKENDS:
                for way in ("cold", "warm"):
                    caches = Path(name) / f"{backend}-{turn}"
                    seconds = first_call(backend, tokens, caches, PYCUTLASS_NO_COMPILE="1")
                    times[way, backend].append(seconds)
    medians = {key: statistics.median(values) for key, values in times.items()}
    what = f"transformer block, {tokens} tokens"
    report.check(f"{what}, cold: time of Inductor's", _ratio(medians, "cold"), 1.0, "times")
    above = medians["warm", "pycutlass"] - medians["warm", "inductor"]
    report.check(f"{what}, warm: above Inductor", above, WARM_LIMIT, "s")
    rows = [[way, *(number(medians[way, each]) for each in _BACKENDS)] for way in ("cold", "warm")]
    report.table(f"{what}, until the first result, s", ["caches", "Inductor", "PyCUTLASS"], rows)
    report.raw(what, {" ".join(key): values for key, values in times.items()})


def _ratio(medians: dict[tuple[str, str], float], way: str) -> float:
    return medians[way, "pycutlass"] / medians[way, "inductor"]


def operators(report: Report, rounds: int) -> None:
    """Measure the host time of operators against that of the plans that compute the same."""
    import torch

    calls = _calls_of_operators("cuda")
    loops: dict[str, Loop] = {name: repeating(call) for pair in calls for name, call in pair.items()}
    times = host_times(loops, torch.cuda.synchronize, rounds=rounds)
    medians = {name: summarize(each).median for name, each in times.items()}
    for plan, operator in (list(pair) for pair in calls if "torch.mm(a, b)" not in pair):
        report.check(f"{operator}, above the plan", medians[operator] - medians[plan], OUT_LIMIT, "us")
    report.table("Host time, us", ["call", "us"], [[name, number(value)] for name, value in medians.items()])


def _calls_of_operators(device: str) -> list[dict[str, Any]]:
    """Return pairs of calls with their names: that of a plan, and that of the operator which computes the same."""
    import torch

    import pycutlass
    import pycutlass.pytorch  # registers operators
    from pycutlass.epilogue import fusions

    def random(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=torch.float16)

    def images(*shape: int) -> Any:
        return random(*shape).contiguous(memory_format=torch.channels_last)

    ops = torch.ops.pycutlass
    a, w, c, bias, d = random(256, 64), random(256, 64), random(256, 256), random(256), random(256, 256)
    b = w.t()
    plan, with_c, with_bias = pycutlass.Gemm(a, b), pycutlass.Gemm(a, b, c, beta=1), pycutlass.Gemm(a, b, bias=bias)
    function = fusions.bias_gelu
    handle, inputs = pycutlass.pytorch.epilogue_handle(function), {"bias": bias}
    fused = pycutlass.Gemm(a, b, epilogue=function, epilogue_inputs=inputs)
    x, filters, y = images(8, 32, 14, 14), images(64, 32, 3, 3), images(8, 64, 14, 14)
    convolution, padding = pycutlass.Conv2d(x, filters, padding=1), ([1, 1], [1, 1])
    return [
        {
            "plan.run(a, b, out=d)": lambda: plan.run(a, b, out=d),
            "matmul.out(a, b, out=d)": lambda: ops.matmul.out(a, b, out=d),
        },
        {
            "plan.run(a, b, c, out=d)": lambda: with_c.run(a, b, c, out=d),
            "addmm.out(c, a, b, out=d)": lambda: ops.addmm.out(c, a, b, out=d),
        },
        {
            "plan.run(a, b, out=d, bias=bias)": lambda: with_bias.run(a, b, out=d, bias=bias),
            "linear.out(a, w, bias, out=d)": lambda: ops.linear.out(a, w, bias, out=d),
        },
        {
            "plan.run of a convolution": lambda: convolution.run(x, filters, out=y),
            "conv2d.out(x, filters, out=y)": lambda: ops.conv2d.out(x, filters, None, *padding, out=y),
        },
        {
            "plan.run with an epilogue function": lambda: fused.run(a, b, out=d, epilogue_inputs=inputs),
            "fused_mm.out(a, b, ..., out=[d])": lambda: ops.fused_mm.out(a, b, handle, [bias], out=[d]),
        },
        {"torch.mm(a, b, out=d)": lambda: torch.mm(a, b, out=d), "torch.mm(a, b)": lambda: torch.mm(a, b)},
    ]


def main(argv: list[str] | None = None) -> int:
    """Measure, and write the results."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 512], help="rows of the block's input")
    chosen = parser.parse_args(argv)
    device.require()
    about = _ABOUT if "compile" in chosen.only else _ABOUT_OPERATORS
    report = Report("compiling", "Compiling models", about, chosen.out, quick=chosen.quick)
    if "operators" in chosen.only:
        with report.part("operators"):
            operators(report, 15 if chosen.quick else 151)
    for tokens in chosen.tokens if "compile" in chosen.only else ():
        with report.part(f"compile, {tokens} tokens"):
            compiles(report, tokens, 1 if chosen.quick else 3)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
