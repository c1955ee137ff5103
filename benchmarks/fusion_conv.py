"""Convolution, bias, residual and ReLU in one kernel: beside our own plain convolution, and PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pycutlass
from benchmarks.common import BenchmarkError, Report, number
from benchmarks.conv_choices import Layer, Tile, fprop
from benchmarks.timing import both_ways
from pycutlass import Conv2dArguments, Conv2dOperation, LinearCombination, cutlass
from pycutlass.epilogue import fusions

__all__ = ["BANDWIDTH", "OVERHEAD", "against_plain_and_torch"]

#: Bytes in a second that an H200's memory moves, as copies of large arrays do.
BANDWIDTH = 4.2e12
#: How much longer than the plain kernel a function may take, beside its bytes.
OVERHEAD = 1.05

_BATCH = 32
_LAYERS = (
    Layer(56, 56, 64, 64, 3),
    Layer(28, 28, 128, 128, 3),
    Layer(14, 14, 256, 256, 3),
    Layer(14, 14, 256, 1024, 1),
)
#: Those that `benchmarks.conv` finds best for these layers, and the swizzle.
_TILES: tuple[tuple[Tile, int], ...] = (
    (((128, 64, 64), 3, (2, 2, 1)), 4),
    (((256, 64, 32), 4, (4, 1, 1)), 1),
    (((64, 128, 64), 3, (2, 2, 1)), 1),
    (((128, 128, 64), 3, (2, 2, 1)), 4),
    (((256, 128, 64), 3, (4, 2, 1)), 4),
)
#: How many times as fast as PyTorch without compilation: the issue's limit.
_AGAINST_EAGER = 1.2
_F16, _F32 = cutlass.float16, cutlass.float32


def _operation(functor: Any, tile: Tile, swizzle: int) -> Conv2dOperation:
    instruction = pycutlass.MathInstruction([16, 8, 16], _F16, _F16, _F32, cutlass.OpClass.TensorOp)
    described = pycutlass.TileDescription(*tile, instruction)
    nhwc = pycutlass.TensorDescription(_F16, cutlass.TensorNHWC, 8)
    optimized = cutlass.conv.IteratorAlgorithm.optimized
    swizzling = getattr(cutlass, f"IdentitySwizzle{swizzle}")
    support = pycutlass.StrideSupport.Strided
    return Conv2dOperation(fprop, optimized, 80, described, nhwc, nhwc, nhwc, support, functor, swizzling)


def kernels() -> dict[str, list[Conv2dOperation]]:
    """Return plain convolutions and those with the function, in several tiles each."""
    functors = {"plain": LinearCombination(_F16, 8, _F32, _F32), "fused": fusions.bias_residual_relu(_F16, 8)}
    return {
        name: [_operation(functor, tile, swizzle) for tile, swizzle in _TILES] for name, functor in functors.items()
    }


def against_plain_and_torch(report: Report, seconds: float) -> None:
    """Measure the best of the fused kernels beside the best of the plain ones, and PyTorch eager and compiled."""
    import torch

    # PyTorch's convolution chooses among cuDNN's kernels by measuring them.
    torch.backends.cudnn.benchmark = True
    with report.part("conv, bias_residual_relu"):
        made = kernels()
        pycutlass.compiler.add_module([operation for each in made.values() for operation in each])
        rows = []
        for layer in _LAYERS:
            calls, residual_bytes = _calls(layer, made)
            for way, times in both_ways(calls, seconds).items():
                best = {name: min(times[each] for each in times if each.startswith(name)) for name in made}
                allowed = OVERHEAD * best["plain"] + 1e6 * residual_bytes / BANDWIDTH
                share, speed = best["fused"] / allowed, times["eager"] / best["fused"]
                rows.append(
                    [
                        f"{layer.name}, {way}",
                        *(number(each) for each in (times["eager"], times["compiled"], best["plain"], best["fused"])),
                        f"{share:.3f}",
                        f"{speed:.3f}",
                    ]
                )
                name = f"conv {layer.name} bias_residual_relu, {way}"
                report.check(f"{name}: time of what is allowed", share, 1.0, "times")
                report.check(f"{name}: speed of PyTorch's eager", speed, _AGAINST_EAGER, "times", at_least=True)
            del calls
        titles = ["layer", "eager", "compiled", "plain", "fused", "of allowed", "speed of eager"]
        report.table(f"fprop, N={_BATCH}, f16: relu(conv + bias + residual), us", titles, rows)


def _calls(layer: Layer, made: dict[str, list[Conv2dOperation]]) -> tuple[dict[str, Callable[[], Any]], int]:
    """Return all that is measured of a layer, each checked against float64; and the bytes of the residual."""
    import torch

    p = layer.problem(_BATCH)

    def drawn(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, device="cuda", dtype=torch.float16)
        return made.contiguous(memory_format=torch.channels_last)

    x, w, residual = drawn(p.N, p.C, p.H, p.W), drawn(p.K, p.C, p.R, p.S), drawn(p.N, p.K, p.P, p.Q)
    bias = torch.randn(p.K, device="cuda", dtype=torch.float16)
    stride, padding = [p.stride_h] * 2, [p.pad_h] * 2

    def expression(x: Any, w: Any, bias: Any, residual: Any) -> Any:
        return torch.relu(torch.nn.functional.conv2d(x, w, bias, stride, padding) + residual)

    exact = expression(*(each.double() for each in (x[:2], w, bias, residual[:2])))
    product = torch.nn.functional.conv2d(x[:2].double(), w.double(), None, stride, padding)
    compiled = torch.compile(expression, dynamic=False)
    given = (x, w, bias, residual)
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: expression(*given), "compiled": lambda: compiled(*given)}
    for each in calls.values():
        each()
    for name, operations in made.items():
        extra = {"epilogue": {"bias": bias, "residual": residual}} if name == "fused" else {}
        for index, operation in enumerate(operations):
            D = torch.full_like(residual, float("nan"))
            call = functools.partial(operation.run, Conv2dArguments(operation, p, x, w, None, D, **extra))
            call()
            right = exact if name == "fused" else product
            error = float((D[:2].double() - right).norm() / right.norm())
            if not error < 1e-3 or bool(D.isnan().any()):
                raise BenchmarkError(f"{operation.procedural_name()} of {layer.name} is wrong by {error:.2g}")
            calls[f"{name} {index}"] = call
    return calls, residual.numel() * residual.element_size()
