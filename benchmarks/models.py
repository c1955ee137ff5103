"""Models compiled with our backend, against eager torch and ``torch.compile``: all of them as CUDA graphs.

A transformer block, a mixture of experts, an MLP and ResNet-50 in inference. Each result is compared with that of
float64, of which it may not be further away than the result of torch's own kernels, but for a part of it.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.common import BenchmarkError, Report, number, options
from benchmarks.timing import both_ways
from pycutlass import device

__all__ = ["PARTS", "cases", "main"]

PARTS = ("block", "experts", "mlp", "resnet")
#: How much further from float64 a result may be than that of eager torch.
_FURTHER = 1.5

_ABOUT = (
    "Each model as a CUDA graph, in turns: eager torch, `torch.compile` with Inductor, and with the backend of "
    "PyCUTLASS. Device time, each call alone with a cold L2 cache and queued back to back. Limits are of the time "
    "alone, over the best of torch's. Every result is compared with float64. *Until the first result* is what the "
    "first call of a compiled model took, with kernels that were compiled before, and whatever Inductor has cached."
)


@dataclass(frozen=True)
class Case:
    """A model with an input.

    Attributes
    ----------
    part : str
        Of `PARTS`.
    name : str
        What is measured.
    limit : float
        How many times as fast as the best of torch's it is to be.
    make : function
        Returns the model of torch, and ours where it differs.
    input : function
        Returns the input.
    """

    part: str
    name: str
    limit: float
    make: Callable[[], tuple[Any, Any]]
    input: Callable[[], Any]


def cases(scale: int = 1, where: str = "cuda") -> Iterator[Case]:
    """Yield what is measured.

    Parameters
    ----------
    scale : int, default 1
        By what extents are divided: to try it out.
    where : str
        The device.
    """
    import torch

    from benchmarks.networks import Block, Experts, Mlp, ResNet50

    def placed(model: Any, dtype: Any) -> Any:
        return model.to(where, dtype).eval()

    def drawn(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(shape, device=where, dtype=dtype)

    width, hidden = 4096 // scale, 14336 // scale
    block: list[Any] = []

    def the_block() -> tuple[Any, Any]:
        if not block:
            block.append(placed(Block(width, hidden), torch.bfloat16))
        return block[0], block[0]

    for tokens, limit in ((16, 1.10), (512, 1.03), (8192 // scale, 1.02)):
        yield Case(
            "block",
            f"transformer block, {tokens} tokens",
            limit,
            the_block,
            partial(drawn, tokens, width),
        )
    block.clear()

    def experts() -> tuple[Any, Any]:
        made = placed(
            Experts(2048 // scale, 4096 // scale, max(4, 64 // scale), 2, torch.nn.functional.grouped_mm),
            torch.bfloat16,
        )
        return made, made

    yield Case("experts", "mixture of experts", 1.20, experts, lambda: drawn(4096 // scale, 2048 // scale))

    def mlp() -> tuple[Any, Any]:
        made = placed(Mlp(1024 // scale, 4096 // scale), torch.bfloat16)
        return made, made

    yield Case("mlp", "MLP 1024 - 4096 - 1024, 8192 rows", 1.15, mlp, lambda: drawn(8192 // scale, 1024 // scale))

    def resnet() -> tuple[Any, Any]:
        made = placed(ResNet50(), torch.float16).to(memory_format=torch.channels_last)
        return made, made

    def images() -> Any:
        extent = 224 if scale == 1 else 32
        return drawn(max(1, 32 // scale), 3, extent, extent, dtype=torch.float16).to(memory_format=torch.channels_last)

    yield Case("resnet", "ResNet-50, 32 images, f16", 1.05, resnet, images)


def _captured(call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Return what replays a call as a CUDA graph, and where its result is."""
    import torch

    cuda: Any = torch.cuda  # as it is to type checkers
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            call()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        result = call()
    return graph.replay, result


def _error(made: Any, exact: Any) -> float:
    """Return the greatest distance from float64, as a part of the typical element."""
    return float((made.double() - exact).abs().max() / exact.square().mean().sqrt())


def measure(case: Case, seconds: float, tuned: bool, report: Report) -> None:
    """Measure one case, and record it."""
    import torch

    import pycutlass.pytorch  # the backend of its name  # noqa: F401

    torch.manual_seed(1)
    theirs, ours = case.make()
    x = case.input()
    with torch.no_grad():
        exact = _in_doubles(theirs, x)
        compiled: dict[str, Any] = {"eager": theirs, "Inductor": torch.compile(theirs, dynamic=False)}
        if tuned:
            compiled["max-autotune"] = torch.compile(theirs, dynamic=False, mode="max-autotune-no-cudagraphs")
        compiled["PyCUTLASS"] = torch.compile(ours, dynamic=False, backend="pycutlass")
        replays, first, errors = {}, {}, {}
        for name, model in compiled.items():
            started = time.perf_counter()
            model(x)
            torch.cuda.synchronize()
            first[name] = time.perf_counter() - started
            replays[name], result = _captured(partial(model, x))
            replays[name]()
            errors[name] = _error(result, exact)
            torch._dynamo.reset()
        if errors["PyCUTLASS"] > _FURTHER * errors["eager"] + 1e-3:
            raise BenchmarkError(f"wrong result: errors are {errors}")
        rows = []
        for way, times in both_ways(replays, seconds).items():
            best = min(times[name] for name in times if name != "PyCUTLASS")
            speed = best / times["PyCUTLASS"]
            rows.append([way, *(number(times[name]) for name in compiled), f"{speed:.3f}"])
            if way == "alone":
                report.check(f"{case.name}: speed of torch's best", speed, case.limit, "times", at_least=True)
        rows.append(["until the first result, s", *(number(first[name]) for name in compiled), ""])
        rows.append(["greatest error", *(f"{errors[name]:.2g}" for name in compiled), ""])
    report.table(f"{case.name}, us", ["how", *compiled, "speed of torch's best"], rows)
    report.raw(case.name, {"first": first, "errors": errors})


def _in_doubles(model: Any, x: Any) -> Any:
    """Return the result of float64; groups, which torch multiplies in 16 bits alone, by a loop."""
    import torch

    exact = copy.copy(model)
    if hasattr(model, "product"):
        exact.product = _grouped
    wide = {name: each.double() for name, each in model.state_dict().items() if each.is_floating_point()}
    return torch.func.functional_call(exact, wide, (x.double(),))


def _grouped(rows: Any, weights: Any, *, offs: Any) -> Any:
    import torch

    ends = offs.tolist()
    return torch.cat([rows[a:b] @ w for a, b, w in zip([0, *ends], ends, weights, strict=False)])


def main(argv: list[str] | None = None) -> int:
    """Measure, and write the results."""
    parser = options(__doc__, PARTS)
    parser.add_argument("--tuned", action="store_true", help="max-autotune as well, which takes minutes")
    chosen = parser.parse_args(argv)
    device.require()
    import torch

    torch.backends.cudnn.benchmark = True  # torch's convolutions are the fastest of cuDNN's
    report = Report("models", "Models", _ABOUT, chosen.out, quick=chosen.quick)
    seconds = 0.1 if chosen.quick else 0.5
    for case in cases():
        if case.part in chosen.only:
            with report.part(case.name):
                measure(case, seconds, chosen.tuned, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
