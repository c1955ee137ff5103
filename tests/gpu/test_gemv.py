"""GEMV kernels against exact sums, on sizes that tiles do not divide, with memory around that must not change."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from gemv_classes import CLASSES, HEAVY, gemv
from hopper_launches import TORCH, integers

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal, cutlass

PLAIN = {name: each for name, each in (CLASSES | HEAVY).items() if not each.epilogue_functor.is_tree}
FUNCTIONS = {name: each for name, each in CLASSES.items() if each.epilogue_functor.is_tree}
#: M, N and K of the small operand, the large one and both; K is rounded to what the description is aligned to.
SIZES = [(1, 1, 16), (1, 4096, 4096), (3, 517, 1040), (8, 100, 5008), (7, 33, 16), (19, 64, 272), (2, 4097, 48)]
_GUARD = 64  # which all types have


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    pycutlass.compiler.add_module([*CLASSES.values(), *HEAVY.values()])


def guarded(description: Any, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix in its layout, with guard memory behind each line and at both ends, and all of that memory."""
    lines = values if description.is_row_major else values.mT
    *before, count, length = lines.shape
    memory = torch.full((*before, count + 2, length + 16), _GUARD, device="cuda").to(TORCH[description.type.short])
    inside = memory[..., 1:-1, :length]
    inside.copy_(lines)
    return (inside if description.is_row_major else inside.mT), memory


def check_guard(description: Any, memory: torch.Tensor) -> None:
    """Check that nothing but the matrix has been written."""
    guard = memory.double().clone()
    guard[..., 1:-1, :-16] = _GUARD
    assert torch.all(guard == _GUARD)


def problem(operation: GemmOperationUniversal, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return M, N and K of the caller: few rows, or few columns, and lines as long as alignments ask for."""
    few, many, k = size
    step = operation.A.alignment
    large = operation.family.parts_of(operation).B
    many = -(-many // step) * step if large.is_row_major else many
    m, n = (many, few) if operation.swap_ab else (few, many)
    return m, n, -(-k // step) * step


def launch(operation: GemmOperationUniversal, size: tuple[int, int, int], batch: int | None = None) -> None:
    """Launch with poisoned memory, and compare every element with what it must be."""
    (m, n, k), before = problem(operation, size), () if batch is None else (batch,)
    a, b, c = integers(*before, m, k), integers(*before, k, n), integers(*before, m, n, most=2)
    (A, _), (B, _), (C, _) = guarded(operation.A, a), guarded(operation.B, b), guarded(operation.C, c)
    D, memory = guarded(operation.D, torch.full((*before, m, n), 99.0, device="cuda"))
    options: dict[str, Any] = {}
    if batch is not None:
        options |= {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": batch}
    output_op = operation.epilogue_type(2, -1)
    arguments = GemmArguments(operation, (m, n, k), A, B, C, D, output_op=output_op, **options)
    operation.run(arguments)
    arguments.sync()
    exact = 2 * (a @ b) - c
    exact = exact.relu() if operation.epilogue_functor.activation is not None else exact
    low, high = operation.D.type.limits
    assert torch.equal(D.double(), exact.clamp(low, high).to(TORCH[operation.D.type.short]).double())
    check_guard(operation.D, memory)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PLAIN)
def test_every_element_is_exact(name: str, size: tuple[int, int, int]) -> None:
    launch(PLAIN[name], size)


@pytest.mark.parametrize("name", [name for name in CLASSES if name in PLAIN])
def test_a_batch_is_exact(name: str) -> None:
    launch(PLAIN[name], (3, 200, 528), 5)


@pytest.mark.parametrize("name", ["f16", "int8 to int8"])
def test_more_batches_and_rows_than_a_grid_has_along_an_axis(name: str) -> None:
    launch(PLAIN[name], (1, 5, 16), 66_000)
    launch(PLAIN[name], (66_001, 5, 16))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("batch", [None, 3])
def test_a_function_has_its_own_meaning(name: str, batch: int | None) -> None:
    """With small integers, of which only the function rounds."""
    operation = FUNCTIONS[name]
    functor = operation.epilogue_functor
    (m, n, k), before = problem(operation, (3, 133, 528)), () if batch is None else (batch,)
    if any(port.form == "number" for port in functor.inputs) and batch is None:
        pytest.skip("has numbers of batches")
    a, b, c = integers(*before, m, k), integers(*before, k, n), integers(*before, m, n, most=2)
    given: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    for port in functor.ports:
        placed = port.beside(operation.D)
        shape = {"row": (n,), "column": (m,), "number": (batch,)}.get(port.form, (*before, m, n))
        values = integers(*shape, most=2)
        if port.form == "matrix":
            given[port.name], _ = guarded(placed.description, values)
        else:
            given[port.name] = values.to(TORCH[port.type.short])
        if port in functor.inputs:
            shaped = {"row": (n,), "column": (m, 1), "number": (-1, 1, 1)}.get(port.form)
            plain[port.name] = values if shaped is None else values.reshape(shaped)
    D, memory = guarded(operation.D, torch.full((*before, m, n), 99.0, device="cuda"))
    options: dict[str, Any] = {} if batch is None else {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": batch}
    C = guarded(operation.C, c)[0] if functor.reads_source else None
    (A, _), (B, _) = guarded(operation.A, a), guarded(operation.B, b)
    arguments = GemmArguments(operation, (m, n, k), A, B, C, D, epilogue=given, **options)
    operation.run(arguments)
    arguments.sync()
    scalars = {scalar.name: scalar.default for scalar in functor.scalar_table}
    arrays = {name: values.cpu().numpy() for name, values in plain.items()}
    made = functor.evaluate((a @ b).cpu().numpy(), c.cpu().numpy(), scalars, arrays)
    for port_name, exact in made.items():
        kind = operation.D.type if port_name == "D" else next(p.type for p in functor.outputs if p.name == port_name)
        found = (D if port_name == "D" else given[port_name]).double().cpu()
        low, high = kind.limits
        expected = torch.from_numpy(exact).double().expand(found.shape).clamp(low, high)
        error = (found - expected).abs()
        assert torch.all(error <= 2 * kind.epsilon * expected.abs() + 2e-3), port_name
    check_guard(operation.D, memory)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "e4m3", "s8"])
def test_results_are_the_same_in_every_launch_and_as_close_as_f32_sums(kind: str) -> None:
    operation = next(
        each
        for each in PLAIN.values()
        if each.A.type.short == each.B.type.short == kind and not each.swap_ab and not each.B.is_row_major
    )
    m, n, k = problem(operation, (operation.tile_description.threadblock_shape[0], 1023, 8192))
    A, B = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    if kind == "s8":
        A, B = 20 * A, 20 * B
    A, B = A.to(TORCH[kind]), B.to(TORCH[kind]).mT
    results = []
    for _ in range(5):
        D = torch.empty((m, n), device="cuda", dtype=TORCH[operation.D.type.short])
        D = D if operation.D.is_row_major else D.mT.contiguous().mT
        arguments = GemmArguments(operation, (m, n, k), A, B, None, D)
        operation.run(arguments)
        arguments.sync()
        results.append(D)
    assert all(torch.equal(results[0], each) for each in results[1:])
    exact = A.double() @ B.double()
    epsilon = 0 if kind == "s8" else operation.D.type.epsilon
    assert torch.all((results[0].double() - exact).abs() <= epsilon * exact.abs() + (kind != "s8") * 2e-3)


def test_no_number_is_not_hidden_and_does_not_spread() -> None:
    operation = CLASSES["f16, single elements"]
    a, b = torch.ones((2, 13), device="cuda").half(), torch.ones((40, 13), device="cuda").half()
    a[1, 12], b[7, 0] = float("inf"), float("nan")
    D = torch.empty((2, 40), device="cuda").half()
    arguments = GemmArguments(operation, (2, 40, 13), a, b.mT, None, D)
    operation.run(arguments)
    arguments.sync()
    assert torch.equal(D.isnan().nonzero(), torch.tensor([[0, 7], [1, 7]], device="cuda"))
    assert torch.all(D[1].isinf() | D[1].isnan()) and torch.all(D[0].isnan() | (D[0] == 13))


def test_dependent_launches_and_graphs_see_what_was_written_before() -> None:
    """A chain of products, each of which reads what the one before it has just written."""
    operation = gemv(shape=(1, 8, 1024), capability=90)
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("for compute capability 90")
    pycutlass.compiler.add_module([operation])
    extent = 2048
    weight = torch.eye(extent, device="cuda").half().roll(1, 0)
    vectors = [torch.zeros((1, extent), device="cuda").half() for _ in range(9)]
    calls = [
        GemmArguments(operation, (1, extent, extent), x, weight.mT, None, y) for x, y in itertools.pairwise(vectors)
    ]
    vectors[0][0, 5] = 3
    for call in calls:
        operation.run(call)
    torch.cuda.synchronize()
    assert [int(each.argmax()) for each in vectors] == [5 + i for i in range(9)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            operation.run(call)
    vectors[0].zero_()
    vectors[0][0, 100] = 2
    for _ in range(10):
        for each in vectors[1:]:
            each.fill_(float("nan"))
        graph.replay()
    torch.cuda.synchronize()
    assert [int(each.argmax()) for each in vectors] == [100 + i for i in range(9)]
    assert all(float(each.sum()) == 2 for each in vectors)


def test_arguments_go_over_to_others_and_results_take_the_place_of_c() -> None:
    operation = CLASSES["f16"]
    n, k = 300, 512
    a, b, c = integers(1, k), integers(k, n), integers(1, n, most=2)
    A, B, C = a.half(), b.half().mT.contiguous().mT, c.half()
    arguments = GemmArguments(operation, (1, n, k), A, B, C, C, output_op=operation.epilogue_type(1, 1))
    operation.run(arguments)
    other = integers(1, k)
    arguments.update(A=other.half())
    operation.run(arguments)
    arguments.sync()
    assert torch.equal(C.double(), c + (a + other) @ b)


@pytest.mark.parametrize("name", ["f16 of 8 rows, for Hopper", "f32 to columns", "few columns"])
def test_a_bias_and_scalars_in_device_memory(name: str) -> None:
    """A vector stands for all rows of a row-major C, or for all columns of a column-major one."""
    operation = PLAIN[name]
    m, n, k = problem(operation, (5, 133, 1040))
    a, b, bias = integers(m, k), integers(k, n), integers(n if operation.C.is_row_major else m, most=2)
    (A, _), (B, _) = guarded(operation.A, a), guarded(operation.B, b)
    D, memory = guarded(operation.D, torch.full((m, n), 99.0, device="cuda"))
    alpha, beta = (torch.tensor([number], device="cuda", dtype=torch.float32) for number in (2.0, -3.0))
    vector = bias.to(TORCH[operation.C.type.short])
    output_op = operation.epilogue_type(alpha, beta)
    arguments = GemmArguments(operation, (m, n, k), A, B, vector, D, output_op=output_op)
    operation.run(arguments)
    arguments.sync()
    bias = bias if operation.C.is_row_major else bias[:, None]
    assert torch.equal(D.double(), (2 * (a @ b) - 3 * bias).to(D.dtype).double())
    check_guard(operation.D, memory)


def test_a_weight_is_shared_by_a_batch_and_a_view_is_enough() -> None:
    """B of two dimensions, A in the middle of larger memory, and a D whose matrices are lines of one matrix."""
    operation = CLASSES["f16"]
    batch, n, k = 6, 260, 512
    a, b = integers(batch, 1, k), integers(k, n)
    room = torch.full((batch, 3, k), 5.0, device="cuda").half()
    room[:, 1:2] = a.half()
    D = torch.full((1, batch, n), 99.0, device="cuda").half()
    mode = cutlass.gemm.Mode.Batched
    B = b.half().mT.contiguous().mT
    arguments = GemmArguments(operation, (1, n, k), room[:, 1:2], B, None, D.swapaxes(0, 1), mode, batch=batch)
    operation.run(arguments)
    arguments.sync()
    assert torch.equal(D[0].double(), (a @ b)[:, 0])
