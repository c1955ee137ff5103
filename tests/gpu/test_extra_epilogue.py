"""Kernels whose epilogue has a tensor, a row vector and a second output of another type, with five scalars."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from extra_epilogue import SCALARS
from extra_operations import EXTRA

import pycutlass
from pycutlass import cutlass

TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def drawn(operation: Any, m: int, n: int, k: int, batch: tuple[int, ...] = ()) -> dict[str, Any]:
    functor, kind = operation.epilogue_functor, TORCH[operation.C.type.short]

    def randn(*shape: int) -> Any:  # multiplied without rounding, in tf32 too
        return torch.randn(*batch, *shape, device="cuda", dtype=torch.bfloat16).to(kind)

    given = {"A": randn(m, k), "B": randn(n, k).transpose(-1, -2), "C": randn(m, n), "D": randn(m, n)}
    given |= {"extra": randn(m, n), "bias": randn(n)}
    nan, second = float("nan"), TORCH[functor.outputs[0].type.short]
    given["D"].fill_(nan)
    return given | {"second": torch.full((*batch, m, n), nan, device="cuda", dtype=second)}


def check(given: dict[str, Any], reads_c: bool = True, **changed: float) -> None:
    alpha, beta, gamma, delta, epsilon = (SCALARS | changed).values()
    exact = {name: each.double() for name, each in given.items()}
    bias = exact["bias"].unsqueeze(-2)
    D = alpha * (exact["A"] @ exact["B"]) + gamma * exact["extra"] + delta * bias
    if reads_c:
        D = D + beta * exact["C"]
    for name, made in (("D", D), ("second", epsilon * D)):
        found = given[name]
        relative = 2e-3 if found.dtype == torch.float16 else 1e-4
        torch.testing.assert_close(found.double(), made, rtol=relative, atol=1e-2 if found.itemsize == 2 else 2e-3)


def make(operation: Any, size: tuple[int, int, int], given: dict[str, Any], **options: Any) -> Any:
    others = {name: given[name] for name in ("extra", "bias", "second")}
    options = {"output_op": operation.epilogue_type(**SCALARS)} | options
    return pycutlass.GemmArguments(
        operation, size, given["A"], given["B"], given["C"], given["D"], epilogue=others, **options
    )


@pytest.mark.parametrize("name", EXTRA)
@pytest.mark.parametrize("size", [(128, 128, 64), (264, 136, 72), (8, 8, 8), (1000, 520, 136)])
def test_every_output_is_right(name: str, size: tuple[int, int, int]) -> None:
    operation = EXTRA[name]
    pycutlass.compiler.add_module([operation])
    given = drawn(operation, *size)
    arguments = make(operation, size, given)
    operation.run(arguments)
    arguments.sync()
    check(given)

    other = drawn(operation, *size)
    arguments.update(
        **{letter: other[letter] for letter in "ABCD"},
        epilogue={name: other[name] for name in ("extra", "bias", "second")},
    )
    operation.run(arguments)
    arguments.sync()
    check(other)


@pytest.mark.parametrize("name", EXTRA)
def test_batches_device_scalars_graphs_and_no_c(name: str) -> None:
    operation = EXTRA[name]
    pycutlass.compiler.add_module([operation])
    m, n, k = 136, 264, 64
    given = drawn(operation, m, n, k, (3,))
    options = {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": 3}
    arguments = make(operation, (m, n, k), given, **options)
    operation.run(arguments)
    arguments.sync()
    check(given)

    given = drawn(operation, m, n, k)
    alpha = torch.full((1,), 3.0, device="cuda")
    scalars = operation.epilogue_type(**SCALARS | {"alpha": alpha, "beta": 0.0})
    arguments = make(operation, (m, n, k), given | {"C": None}, output_op=scalars)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        operation.run(arguments)
    graph.replay()
    torch.cuda.synchronize()
    check(given, reads_c=False, alpha=3.0)
