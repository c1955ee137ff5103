"""Epilogue functions of pairs of columns on a GPU: every element of D, in every mode and kernel that takes them."""

from typing import Any

import pytest
import torch
from descriptions import native_parts, parts
from epilogue_functions import gated, gated_reduced, gated_several, gated_tiles
from function_cases import check, drawn, launch

import pycutlass
from pycutlass import (
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    KernelSchedule,
    SchedulerMode,
    TensorDescription,
    cutlass,
)
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


GROUPS: dict[str, Any] = {
    "ampere, device": lambda: parts("f16"),
    "ampere, host": lambda: parts("f16") | {"precompute_mode": SchedulerMode.Host},
    "ampere f32": lambda: parts("f32"),
    "hopper cooperative": KERNELS["hopper cooperative"],
    "hopper pingpong": KERNELS["hopper pingpong"],
}
SIZES = [(264, 144, 72), (0, 128, 64), (8, 528, 0), (1000, 16, 136), (128, 256, 64), (16, 0, 8), (72, 272, 200)]


def group(kernel: str, function: Any) -> Any:
    described = GROUPS[kernel]()
    functor = function(described["C"].element, described["C"].alignment, cutlass.float32)
    operation = GemmOperationGrouped(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    return operation


def drawn_group(operation: Any, sizes: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the operands of each problem, with room between the lines of D, and the memory of all D."""
    made = [with_room(drawn(operation.single, *size)) for size in sizes]
    return [given for given, _ in made], [memory for _, memory in made]


def listed(operation: Any, given: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    operands = {name: [each[name] for each in given] for name in "ABD"}
    return operands, {port.name: [each[port.name] for each in given] for port in operation.epilogue_functor.ports}


def check_group(operation: Any, sizes: Any, given: list[dict[str, Any]], memory: list[Any]) -> None:
    for (m, n, _), each, whole in zip(sizes, given, memory, strict=True):
        if m and n:
            check(operation.single, each)
        assert whole[:, n // 2 :].isnan().all()


BESIDE = [gated_several, gated_reduced]
#: Nothing is reduced of no elements.
WHOLE = [size for size in SIZES if size[0] and size[1]]


@pytest.mark.parametrize("size", [(128, 128, 64), (264, 144, 72), (8, 16, 8), (1000, 528, 136)])
@pytest.mark.parametrize("function", BESIDE, ids=lambda each: each.name)
@pytest.mark.parametrize("kernel", KERNELS)
def test_tensors_and_reductions_beside_pairs(kernel: str, function: Any, size: tuple[int, int, int]) -> None:
    operation = make(kernel, function)
    given, memory = with_room(drawn(operation, *size))
    first: dict[str, Any] = {}
    for _ in range(3):
        launch(operation, given).sync()
        check(operation, given)
        assert memory[:, size[1] // 2 :].isnan().all()
        for name in ("D", *(port.name for port in operation.epilogue_functor.outputs)):
            assert torch.equal(first.setdefault(name, given[name].clone()), given[name])  # the same bits each time
            given[name].fill_(float("nan"))


@pytest.mark.parametrize("function", BESIDE, ids=lambda each: each.name)
@pytest.mark.parametrize("kernel", KERNELS)
def test_batches_of_tensors_beside_pairs(kernel: str, function: Any) -> None:
    operation = make(kernel, function)
    given, memory = with_room(drawn(operation, 136, 272, 64, (3,)))
    launch(operation, given).sync()
    check(operation, given)
    assert memory[..., 136:].isnan().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_residual_is_d_itself(kernel: str) -> None:
    """Threads of Hopper-native kernels write elements that their neighbours have read."""
    operation = make(kernel, gated_several)
    for size in ((264, 144, 72), (2000, 1040, 136)):
        given = drawn(operation, *size)
        before = given["residual"].clone()
        in_place = given | {"D": given["residual"]}
        launch(operation, in_place).sync()
        check(operation, in_place | {"residual": before})


@pytest.mark.parametrize("kernel", ["ampere f16", "hopper cooperative", "hopper pingpong"])
def test_results_of_tiles_of_pairs(kernel: str) -> None:
    described = KERNELS[kernel]()
    rows, columns, _ = described["tile_description"].threadblock_shape
    functor = gated_tiles(rows, columns)(described["C"].element, described["C"].alignment, cutlass.float32)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    m, n, k = 264, 528, 72
    given = drawn(operation, m, n, k)
    given["scales"] = given["scales"].new_empty(m * -(-n // columns))
    given["column_greatest"] = given["column_greatest"].new_empty(n // 2 * -(-m // rows))
    launch(operation, given).sync()
    check(operation, given)


@pytest.mark.parametrize("kernel", ["ampere f16", "hopper cooperative", "hopper pingpong"])
@pytest.mark.parametrize(
    "types",
    [
        {"T": cutlass.float32, "pre": cutlass.bfloat16, "other": cutlass.float_e4m3},
        {
            "T": TensorDescription(cutlass.float16, cutlass.ColumnMajor, 1),
            "second": TensorDescription(cutlass.float32, cutlass.ColumnMajor, 1),
            "pre": TensorDescription(cutlass.float16, cutlass.ColumnMajor, 1),
        },
    ],
)
def test_other_types_and_layouts_beside_pairs(kernel: str, types: dict[str, Any]) -> None:
    described = KERNELS[kernel]()
    functor = gated_several(described["C"].element, described["C"].alignment, cutlass.float32, **types)
    operation = GemmOperationUniversal(**described | {"epilogue_functor": functor})
    pycutlass.compiler.add_module([operation])
    given = drawn(operation, 264, 144, 72)
    launch(operation, given).sync()
    check(operation, given)


@pytest.mark.parametrize("function", BESIDE, ids=lambda each: each.name)
@pytest.mark.parametrize("kernel", GROUPS)
def test_tensors_and_reductions_beside_pairs_in_groups(kernel: str, function: Any) -> None:
    operation, sizes = group(kernel, function), WHOLE if function is gated_reduced else SIZES
    given, memory = drawn_group(operation, sizes)
    operands, ports = listed(operation, given)
    arguments = GemmGroupedArguments(operation, sizes, **operands, epilogue=ports)
    for _ in range(2):
        operation.run(arguments)
        arguments.sync()
        check_group(operation, sizes, given, memory)
        for each in given:
            each["D"].fill_(float("nan"))


@pytest.mark.parametrize("function", [gated, fusions.swiglu, fusions.bias_geglu], ids=lambda each: each.name)
@pytest.mark.parametrize("kernel", GROUPS)
def test_every_problem_of_a_group_is_right(kernel: str, function: Any) -> None:
    operation = group(kernel, function)
    given, memory = drawn_group(operation, SIZES)
    (operands, ports) = listed(operation, given)
    arguments = GemmGroupedArguments(operation, SIZES, **operands, epilogue=ports)
    for _ in range(2):
        operation.run(arguments)
        arguments.sync()
        check_group(operation, SIZES, given, memory)
        for whole in memory:
            whole.fill_(float("nan"))


@pytest.mark.parametrize("kernel", GROUPS)
def test_many_problems(kernel: str) -> None:
    """More tiles than there are multiprocessors, so that each goes from problem to problem."""
    operation = group(kernel, gated)
    sizes = [(8 * (i % 70), 16 * (i % 27 + 1), 8 * (i % 9)) for i in range(400)]
    given, memory = drawn_group(operation, sizes)
    operands, ports = listed(operation, given)
    arguments = GemmGroupedArguments(operation, sizes, **operands, epilogue=ports)
    operation.run(arguments)
    arguments.sync()
    check_group(operation, sizes, given, memory)


@pytest.mark.parametrize("function", [gated, fusions.swiglu], ids=lambda each: each.name)
@pytest.mark.parametrize("kernel", ["ampere, device", "ampere, host", "hopper cooperative", "hopper pingpong"])
def test_other_tensors_and_sizes_of_a_group(kernel: str, function: Any) -> None:
    operation = group(kernel, function)
    given, memory = drawn_group(operation, SIZES)
    operands, ports = listed(operation, given)
    arguments = GemmGroupedArguments(operation, SIZES, **operands, epilogue=ports)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    others, memory_of_others = drawn_group(operation, SIZES)
    operands, ports = listed(operation, others)
    arguments.update(**operands, **({"epilogue": ports} if ports else {}))
    operation.run(arguments)
    arguments.sync()
    check_group(operation, SIZES, others, memory_of_others)
    graph.replay()
    torch.cuda.synchronize()
    check_group(operation, SIZES, given, memory)
    more = [*SIZES[::-1], (520, 144, 8)]
    given, memory = drawn_group(operation, more)
    operands, ports = listed(operation, given)
    arguments.update(problem_sizes=more, **operands, **({"epilogue": ports} if ports else {}))
    operation.run(arguments)
    arguments.sync()
    check_group(operation, more, given, memory)


@pytest.mark.parametrize("kernel", ["ampere, device", "hopper cooperative", "hopper pingpong"])
def test_tables_that_are_on_the_device(kernel: str) -> None:
    operation = group(kernel, gated)
    given, memory = drawn_group(operation, SIZES)

    def table(values: Any, dtype: Any = torch.int64) -> Any:
        return torch.tensor(list(values), dtype=dtype, device="cuda")

    def addresses(name: str) -> Any:
        return table(each[name].data_ptr() for each in given)

    k = table(size[2] for size in SIZES)
    arguments = GemmGroupedArguments.from_device(
        operation,
        len(SIZES),
        table(SIZES, torch.int32),
        *(addresses("A"), addresses("B"), None, addresses("D")),
        *(k, k, None, table(each.shape[1] for each in memory)),
        epilogue={name: addresses(name) for name in ("bias", "left")},
    )
    operation.run(arguments)
    arguments.sync()
    check_group(operation, SIZES, given, memory)
