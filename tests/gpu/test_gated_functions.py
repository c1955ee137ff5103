"""Epilogue functions of pairs of columns on a GPU: every element of D, in every mode and kernel that takes them."""

from typing import Any

import pytest
import torch
from descriptions import native_parts, parts
from epilogue_functions import gated
from function_cases import check, drawn, launch

import pycutlass
from pycutlass import GemmOperationUniversal, KernelSchedule, cutlass
from pycutlass.epilogue import fusions

KERNELS = {
    "ampere f16": lambda: parts("f16"),
    "ampere f32": lambda: parts("f32"),
    "ampere f16, stream-K": lambda: parts("f16") | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK},
    "ampere f16, alignment 2": lambda: parts("f16", alignment=2, tile=(64, 64, 32)),
    "hopper cooperative": lambda: native_parts(tile=(128, 128, 64), cluster=(2, 1)),
    "hopper cooperative, two below": lambda: native_parts(tile=(256, 112, 64), cluster=(1, 1)),
    "hopper pingpong": lambda: native_parts(tile=(64, 128, 64), cluster=(1, 1), schedule=KernelSchedule.Pingpong),
}


def make(kernel: str, function: Any) -> Any:
    described = KERNELS[kernel]()
    functor = function(described["C"].element, described["C"].alignment, cutlass.float32)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    return operation


def with_room(given: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return operands with a D that has room between its lines, and that memory."""
    D = given["D"]
    memory = torch.full((*D.shape[:-1], D.shape[-1] + 16), float("nan"), device="cuda", dtype=D.dtype)
    return given | {"D": memory[..., : D.shape[-1]]}, memory


@pytest.mark.parametrize("size", [(128, 128, 64), (264, 144, 72), (8, 16, 8), (1000, 528, 136)])
@pytest.mark.parametrize("function", [gated, fusions.swiglu, fusions.bias_geglu], ids=lambda each: each.name)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_element_is_right(kernel: str, function: Any, size: tuple[int, int, int]) -> None:
    operation = make(kernel, function)
    given, memory = with_room(drawn(operation, *size))
    for _ in range(2):
        launch(operation, given).sync()
        check(operation, given)
        assert memory[:, size[1] // 2 :].isnan().all()
        given["D"].fill_(float("nan"))


@pytest.mark.parametrize("kernel", KERNELS)
def test_batches(kernel: str) -> None:
    operation = make(kernel, gated)
    given, memory = with_room(drawn(operation, 136, 272, 64, (3,)))
    launch(operation, given).sync()
    check(operation, given)
    assert memory[..., 136:].isnan().all()


@pytest.mark.parametrize("kernel", ["ampere f16", "ampere f32"])
def test_slices_and_arrays(kernel: str) -> None:
    operation = make(kernel, gated)
    given = drawn(operation, 136, 272, 256)
    launch(operation, given, slices=4).sync()
    check(operation, given)
    problems = [drawn(operation, 136, 272, 64) for _ in range(3)]
    A, B, D = ([each[name] for each in problems] for name in "ABD")
    others = {name: [each[name] for each in problems] for name in ("bias", "left")}
    mode = cutlass.gemm.Mode.Array
    arguments = pycutlass.GemmArguments(
        operation, (136, 272, 64), A, B, None, D, epilogue=others, gemm_mode=mode, batch=3
    )
    operation.run(arguments)
    arguments.sync()
    for each in problems:
        check(operation, each)


@pytest.mark.parametrize("kernel", ["ampere f16", "hopper cooperative", "hopper pingpong"])
def test_graphs_and_other_tensors(kernel: str) -> None:
    operation = make(kernel, gated)
    given, other = drawn(operation, 264, 144, 72), drawn(operation, 264, 144, 72)
    arguments = launch(operation, given)
    others = {name: other[name] for name in ("bias", "left")}
    arguments.update(A=other["A"], B=other["B"], D=other["D"], epilogue=others)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    other["D"].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    check(operation, other)
    check(operation, given)


@pytest.mark.parametrize("kernel", ["ampere f16", "hopper pingpong"])
def test_weights_of_linear_layers_in_turn(kernel: str) -> None:
    operation = make(kernel, fusions.bias_swiglu)
    m, n, k = 200, 512, 128
    x = torch.randn(m, k, device="cuda", dtype=torch.float16)
    gate, up = (torch.randn(n // 2, k, device="cuda", dtype=torch.float16) / 8 for _ in "gu")
    of_gate, of_up = (torch.randn(n // 2, device="cuda", dtype=torch.float16) for _ in "gu")
    weights = torch.stack((gate, up), dim=1).view(-1, k).T
    biases = torch.stack((of_gate, of_up), dim=1).view(-1)
    D = torch.empty(m, n // 2, device="cuda", dtype=torch.float16)
    operation.run(pycutlass.GemmArguments(operation, (m, n, k), x, weights, None, D, epilogue={"bias": biases}))
    exact = torch.nn.functional.silu(x.double() @ gate.double().T + of_gate) * (x.double() @ up.double().T + of_up)
    torch.testing.assert_close(D.double(), exact, rtol=2e-3, atol=2e-2)
