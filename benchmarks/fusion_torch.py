"""Epilogue functions against PyTorch, eager and compiled, with autotuning as well."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.common import Report, number, options
from benchmarks.fusion import HOPPER, SHAPES, Work, operation
from benchmarks.timing import both_ways
from pycutlass import compiler, cutlass, device
from pycutlass.epilogue import EpilogueFunction, fusions

#: Of the best of PyTorch's, by function and shape: issue's limits.
AGAINST_TORCH = {"bias_gelu": (1.04, 1.06, 1.30), "bias_silu_residual": (1.04, 1.07, 1.20), "swiglu": (1.08,)}
#: Shapes of functions that have others: of SwiGLU the product with the weights of gate and up, whose D has N / 2.
_SHAPES_OF = {"swiglu": ((8192, 28672, 4096),)}

_ABOUT = (
    "bf16 operands and D, f32 accumulation, random normal inputs; every result checked against float64 on some rows. "
    "Device time in turns, each call alone with a cold L2 cache and queued back to back. PyTorch's is the best of "
    "eager execution, `torch.compile`, and `torch.compile` with max-autotune, which measures kernels written in Triton "
    "beside cuBLAS; ours the best of a few tiles."
)


def against_torch(report: Report, seconds: float, names: Iterable[str]) -> None:
    """Measure functions on their shapes."""
    import torch
    from torch.nn import functional

    def swiglu(x: Any, w: Any, bias: Any, residual: Any) -> Any:
        gate, up = functional.linear(x, w).chunk(2, dim=-1)  # the rows of one weight lie behind those of the other
        return functional.silu(gate) * up

    expressions: dict[str, Callable[..., Any]] = {
        "bias_gelu": lambda x, w, bias, residual: functional.gelu(functional.linear(x, w, bias)),
        "bias_silu_residual": lambda x, w, bias, residual: functional.silu(functional.linear(x, w, bias)) + residual,
        "swiglu": swiglu,
    }
    for name in names:
        expression = expressions[name]
        with report.part(f"torch, {name}"):
            function: EpilogueFunction = fusions.ALL[name]
            kernels = [operation(function(cutlass.bfloat16, 8), "Hopper", tile) for tile in range(len(HOPPER))]
            compiler.add_module(kernels)
            rows = []
            for shape, limit in zip(_SHAPES_OF.get(name, SHAPES), AGAINST_TORCH[name], strict=True):
                work = Work(shape)
                given = (work.A, work.B.T, work.tensors["row"], work.tensors["matrix"])
                ways = {
                    "eager": expression,
                    "compiled": torch.compile(expression, dynamic=False),
                    "max-autotune": torch.compile(expression, dynamic=False, mode="max-autotune-no-cudagraphs"),
                }
                calls: dict[str, Callable[[], Any]] = {
                    way: lambda made=made, given=given: made(*given) for way, made in ways.items()
                }
                for each in calls.values():
                    each()
                ours = {f"tile {i}": work.call(kernel) for i, kernel in enumerate(kernels)}
                for way, times in both_ways({**calls, **ours}, seconds).items():
                    theirs, best = min((times[each], each) for each in ways), min((times[each], each) for each in ours)
                    rows.append(
                        [
                            f"{'x'.join(map(str, shape))}, {way}",
                            *(number(times[each]) for each in ways),
                            f"{number(best[0])} ({HOPPER[int(best[1][5:])][0]})",
                            f"{theirs[0] / best[0]:.3f}",
                        ]
                    )
                    if way == "alone":
                        report.check(
                            f"{name} {'x'.join(map(str, shape))}: speed of PyTorch's best",
                            theirs[0] / best[0],
                            limit,
                            "times",
                            at_least=True,
                        )
                del work, calls, ours
            report.table(f"{name}, us", ["M x N x K", *ways, "PyCUTLASS", "speed of the best"], rows)


def main() -> int:
    """Measure, and write the results."""
    chosen = options(__doc__, tuple(AGAINST_TORCH)).parse_args()
    device.require()
    report = Report("fusion_torch", "Epilogue functions against PyTorch", _ABOUT, chosen.out, quick=chosen.quick)
    against_torch(report, 0.06 if chosen.quick else 1.0, chosen.only)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
