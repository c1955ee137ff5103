"""The k largest of each row and their columns on a GPU: of ties, NaN and infinities, in every mode and family.

Operands are small integers, whose products are exact and often equal: all results are compared element by element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from convolutions import UNITY, conv, fprop
from descriptions import native_parts, parts
from epilogue_functions import EVERY, selecting

import pycutlass
from pycutlass import GemmArguments, GemmGroupedArguments, GemmOperationGrouped, GemmOperationUniversal, cutlass
from pycutlass.enums import KernelSchedule
from pycutlass.epilogue import Tensor, top_k

DEVICE = "cuda"
POISON = 99
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "s32": torch.int32}
KERNELS = {
    "ampere f16": lambda: parts("f16"),
    "ampere f32": lambda: parts("f32"),
    "ampere f16, stream-K": lambda: parts("f16") | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK},
    "ampere f16, alignment 2": lambda: parts("f16", alignment=2, tile=(64, 64, 32)),
    "ampere f16, 256 columns": lambda: parts("f16", alignment=4, tile=(128, 256, 32)),
    "hopper cooperative": lambda: native_parts(tile=(128, 128, 64), cluster=(2, 1)),
    "hopper cooperative, two rows of warps": lambda: native_parts(tile=(256, 128, 64), cluster=(1, 1)),
    "hopper cooperative, 256 columns": lambda: native_parts(tile=(128, 256, 64), cluster=(1, 2)),
    "hopper pingpong": lambda: native_parts(tile=(64, 128, 64), cluster=(1, 1), schedule=KernelSchedule.Pingpong),
}
FEW = ("ampere f16", "hopper cooperative", "hopper pingpong")


def make(kernel: str, function: Any, kind: Any = GemmOperationUniversal, **types: Any) -> Any:
    described = KERNELS[kernel]()
    functor = function(described["C"].element, described["C"].alignment, cutlass.float32, **types)
    operation = kind(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    return operation


def drawn(operation: Any, m: int, n: int, k: int, batch: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return operands and tensors of an operation; those that are written are poisoned, as is what lies beside them."""
    functor = operation.epilogue_functor

    def integers(kind: str, *shape: int) -> Any:
        return torch.randint(-2, 3, (*batch, *shape), device=DEVICE).to(TORCH[kind])

    def written(kind: str, rows: int, columns: int, slack: int) -> Any:
        memory = torch.full((*batch, rows, columns + slack), POISON, device=DEVICE).to(TORCH[kind])
        return memory[..., :columns]

    given = {"A": integers(operation.A.type.short, m, k)}
    given["B"] = integers(operation.B.type.short, n, k).transpose(-1, -2)
    given["D"] = written(functor.output.short, m, functor.columns(n), operation.C.alignment)
    for port in functor.inputs:
        shapes = {"row": (port.columns(n),), "matrix": (m, port.columns(n))}
        given[port.name] = integers(port.type.short, *shapes[port.form])
    for port in functor.outputs:
        shapes = {"column": (*batch, m), "row": (*batch, functor.columns(n)), "scalar": (*batch, 1)}
        if port.selected:
            given[port.name] = written(port.type.short, m, port.selected, 3)
        else:
            given[port.name] = torch.full(shapes[port.form], POISON, device=DEVICE).to(TORCH[port.type.short])
    return given


def arguments_of(operation: Any, given: dict[str, Any], **options: Any) -> Any:
    A, B = given["A"], given["B"]
    others = {port.name: given[port.name] for port in operation.epilogue_functor.ports}
    if isinstance(A, list):
        size = (*A[0].shape[-2:], B[0].shape[-1])
        options |= {"gemm_mode": cutlass.gemm.Mode.Array, "batch": len(A)}
    else:
        size = (*A.shape[-2:], B.shape[-1])
        options |= {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": len(A)} if A.ndim == 3 else {}
    m, k, n = size
    return GemmArguments(operation, (m, n, k), A, B, None, given["D"], epilogue=others, **options)


def launch(operation: Any, given: dict[str, Any], **options: Any) -> Any:
    arguments = arguments_of(operation, given, **options)
    operation.run(arguments)
    arguments.sync()
    return arguments


def check(operation: Any, given: dict[str, Any]) -> None:
    functor = operation.epilogue_functor
    arrays = {name: each.double().cpu().numpy() for name, each in given.items()}
    inputs = {}
    for port in functor.inputs:
        inputs[port.name] = arrays[port.name][..., None, :] if port.form == "row" else arrays[port.name]
    exact = functor.evaluate(arrays["A"] @ arrays["B"], None, {}, inputs, np.dtype(np.float64))
    kinds = {"D": functor.output} | {port.name: port.type for port in functor.outputs}
    for name, wanted in exact.items():
        rounded = kinds[name].round(wanted).astype(np.float64).reshape(arrays[name].shape)
        np.testing.assert_allclose(arrays[name], rounded, rtol=3e-7, err_msg=name)  # of square roots; others are exact
    for port in functor.outputs:
        if port.selected:
            lines = given[port.name]
            assert lines.stride(-2) == port.selected + 3
            memory = lines.as_strided((*lines.shape[:-1], port.selected + 3), lines.stride())
            assert (memory[..., port.selected :] == POISON).all(), port.name


def poison(operation: Any, given: dict[str, Any]) -> None:
    for name in ("D", *(port.name for port in operation.epilogue_functor.outputs)):
        given[name].fill_(POISON)


def sizes(operation: Any) -> list[tuple[int, int, int]]:
    """Return problems with rows of a whole tile and of less."""
    n = operation.tile_description.threadblock_shape[1]
    return [(128, n, 64), (264, n - 16, 72), (8, 16, 8), (1000, n // 2 + 16, 136), (1, n, 64), (4096, n, 64)]


@pytest.mark.parametrize("kernel", KERNELS)
def test_top_k_of_every_row(kernel: str) -> None:
    """Three selections beside a reduction, one of them of NaN, infinities and square roots."""
    operation = make(kernel, EVERY["routed"])
    for size in sizes(operation):
        given = drawn(operation, *size)
        launch(operation, given)
        check(operation, given)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("kernel", ["ampere f16", "hopper cooperative"])
def test_top_k_of_every_k(kernel: str, k: int) -> None:
    operation = make(kernel, selecting(k))
    for size in [*sizes(operation)[:4], (136, 8, 64)]:  # and of as many columns as there may be results
        for batch in ((), (3,)):
            given = drawn(operation, *size, batch)
            launch(operation, given)
            check(operation, given)


@pytest.mark.parametrize("kernel", ["ampere f16", "ampere f16, stream-K", "hopper cooperative", "hopper pingpong"])
def test_top_k_of_pairs(kernel: str) -> None:
    operation = make(kernel, EVERY["gated_routed"])
    for size in [*sizes(operation)[:4], (136, 16, 64)]:
        for batch in ((), (3,)):
            given = drawn(operation, *size, batch)
            launch(operation, given)
            check(operation, given)


@pycutlass.epilogue_function
def of_tensor(accum: Any, x: Tensor(cutlass.float32)) -> Any:  # type: ignore[valid-type]
    x = x + 0.0 * accum
    values, indices = top_k(x, 5)
    return {"D": accum, "values": values, "indices": indices}


@pytest.mark.parametrize("kernel", KERNELS)
def test_top_k_of_nan_infinities_and_zeros_of_two_signs(kernel: str) -> None:
    operation = make(kernel, of_tensor)
    m, n, k = 1000, operation.tile_description.threadblock_shape[1], 64
    odd = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, 1.0])
    for share in (0.02, 0.3, 1.0):
        given = drawn(operation, m, n, k)
        given["A"].zero_()
        x = torch.randn(m, n)
        chosen = torch.rand(m, n) < share
        x[chosen] = odd[torch.randint(len(odd), (int(chosen.sum()),))]
        x[0], x[1], x[2] = torch.nan, -torch.inf, -0.0
        given["x"] = x.to(DEVICE)
        launch(operation, given)
        exact, columns = top_k(x.numpy(), 5)
        np.testing.assert_array_equal(given["indices"].cpu().numpy(), columns)
        np.testing.assert_array_equal(given["values"].cpu().numpy(), exact)
        of_torch = given["x"].topk(5, dim=1).values
        assert torch.equal(of_torch.nan_to_num(7e37), given["values"].nan_to_num(7e37))


@pytest.mark.parametrize("kernel", FEW)
def test_top_k_of_values_of_a_narrow_type(kernel: str) -> None:
    """They are selected before they are rounded."""
    operation = make(kernel, EVERY["routed"], values=cutlass.bfloat16, roots=cutlass.float16)
    given = drawn(operation, *sizes(operation)[1])
    launch(operation, given)
    check(operation, given)


@pytest.mark.parametrize("slices", [2, 5])
def test_top_k_behind_slices_of_k(slices: int) -> None:
    operation = make("ampere f16", EVERY["routed"])
    for m, n in ((128, 128), (264, 72)):
        given = drawn(operation, m, n, 520)
        launch(operation, given, split_k_slices=slices)
        check(operation, given)


@pytest.mark.parametrize("size", [(128, 128, 8192), (264, 72, 4104), (136, 128, 65536)])
def test_top_k_by_stream_k_over_long_sums(size: tuple[int, int, int]) -> None:
    operation = make("ampere f16, stream-K", selecting(4))
    given = drawn(operation, *size)
    given["A"][:, 1000:] = 0  # sums that float16 holds
    arguments = launch(operation, given)
    check(operation, given)
    for _ in range(20):
        poison(operation, given)
        operation.run(arguments)
        arguments.sync()
        check(operation, given)


def test_top_k_of_lists_of_tensors() -> None:
    operation = make("ampere f16", EVERY["routed"])
    given = drawn(operation, 136, 120, 64, (3,))
    launch(operation, {name: list(each) for name, each in given.items()})
    check(operation, given)


@pytest.mark.parametrize("kernel", FEW)
def test_top_k_of_groups(kernel: str) -> None:
    operation = make(kernel, EVERY["routed"], GemmOperationGrouped)
    n = operation.tile_description.threadblock_shape[1]
    problems = [(264, n, 72), (0, n, 64), (0, 0, 0), (1000, 8, 136), (128, 72, 64), (1, 16, 8), (40, n - 8, 0)]
    given = [drawn(operation.single, *size) for size in problems]
    operands = [[each[name] for each in given] for name in "ABD"]
    ports = {port.name: [each[port.name] for each in given] for port in operation.epilogue_functor.ports}
    A, B, D = operands
    arguments = GemmGroupedArguments(operation, problems, A, B, None, D, epilogue=ports)
    for _ in range(3):
        for each in given:
            poison(operation, each)
        operation.run(arguments)
        arguments.sync()
        for (m, n, _), each in zip(problems, given, strict=True):
            if m and n:
                check(operation.single, each)


@pytest.mark.parametrize("kernel", FEW)
def test_top_k_in_a_graph_and_with_other_tensors(kernel: str) -> None:
    operation = make(kernel, selecting(2))
    given, others = (drawn(operation, 264, 64, 72) for _ in "ab")
    arguments = launch(operation, given)
    check(operation, given)
    arguments.update(A=others["A"], epilogue={name: others[name] for name in ("values", "indices")})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    others |= {"B": given["B"], "D": given["D"]}
    for _ in range(3):
        poison(operation, others)
        graph.replay()
        torch.cuda.synchronize()
        check(operation, others)


@pytest.mark.parametrize("kernel", FEW)
def test_top_k_of_arrays_of_the_host(kernel: str) -> None:
    operation = make(kernel, selecting(2))
    given = drawn(operation, 264, 64, 72)
    arrays = {name: each.cpu().numpy().copy() for name, each in given.items()}
    arrays["B"] = np.asfortranarray(arrays["B"])
    launch(operation, arrays)
    exact = arrays["A"].astype(float) @ arrays["B"].astype(float)
    values, indices = top_k(exact, 2)
    np.testing.assert_array_equal(arrays["values"], values)
    np.testing.assert_array_equal(arrays["indices"], indices)


def test_top_k_of_pixels() -> None:
    """The channels of a pixel are a row."""
    function = selecting(3)
    operation = conv(fprop, "optimized", stride=UNITY, shape=(128, 64, 32), functor=lambda *types: function(*types))
    pycutlass.compiler.add_module([operation])
    for channels in (64, 24):
        x, w = (torch.randint(-2, 3, shape, device=DEVICE).half() for shape in ((2, 9, 7, 16), (channels, 3, 3, 16)))
        y = torch.empty(2, 9, 7, channels, device=DEVICE, dtype=torch.float16)
        found = {"values": torch.full((126, 3), torch.nan, device=DEVICE)}
        found["indices"] = torch.full((126, 3), POISON, device=DEVICE, dtype=torch.int32)
        problem = cutlass.conv.Conv2dProblemSize(2, 9, 7, 16, channels, 3, 3, pad_h=1, pad_w=1)
        arguments = pycutlass.Conv2dArguments(operation, problem, x, w, None, y, epilogue=found)
        operation.run(arguments)
        arguments.sync()
        exact = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).double(), w.permute(0, 3, 1, 2).double(), padding=1)
        values, indices = top_k(exact.permute(0, 2, 3, 1).reshape(126, channels).cpu().numpy(), 3)
        np.testing.assert_array_equal(found["values"].cpu().numpy(), values)
        np.testing.assert_array_equal(found["indices"].cpu().numpy(), indices)
