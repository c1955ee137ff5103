"""Hopper-native kernels in ``Mode.Array``, and scalars of each matrix of a batch, against sums that are exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from descriptions import COLUMN
from epilogue_functions import gated, reduced, residual
from function_cases import check, drawn
from hopper_classes import CLASSES, F16, described, of_tma
from hopper_launches import TORCH, integers

import pycutlass
from pycutlass import GemmArguments, GemmOperationUniversal, KernelSchedule, cutlass

Mode = cutlass.gemm.Mode
GUARD = 77.0
FUNCTIONS = {
    "residual": described(C=of_tma("f16"), functor=residual(F16, 8)),
    "residual, pingpong": described(C=of_tma("f16"), functor=residual(F16, 8), schedule=KernelSchedule.Pingpong),
    "residual, by columns": described(C=of_tma("f16", COLUMN), functor=residual(F16, 8)),
    "reduced": described(C=of_tma("f16"), functor=reduced(F16, 8)),
    "gated": described(C=of_tma("f16"), functor=gated(F16, 8)),
}
LISTED = [
    *("A by columns, C and D by columns", "B by rows, pingpong", "neither along K, cluster of 8", "tf32"),
    *("C and D of other types, by columns", "int8 to int8", "e5m2 x e4m3, fast, to e4m3", "e4m3 to e5m2 by columns"),
    *("144 columns", "swapped, 8 columns", "swapped, by columns", "ReLU of the transposed"),
]
#: Of 8-bit floats whose sums threads add up.
PRECISE = {
    "e4m3 to bf16": described("e4m3", C=of_tma("bf16")),
    "e5m2 x e4m3, pingpong": described(
        *("e5m2", "e4m3"), C=of_tma("bf16"), shape=(64, 128, 128), schedule=KernelSchedule.Pingpong
    ),
    "e4m3, halves": described("e4m3", C=of_tma("bf16"), shape=(64, 192, 128), schedule=KernelSchedule.Pingpong),
}
ARRAYS = {**{name: CLASSES[name] for name in LISTED}, **PRECISE}
SCALED = [
    *("A by columns, C and D by columns", "B by rows, pingpong", "C and D of other types, by columns"),
    *("e4m3 to e5m2 by columns", "swapped, by columns", "ReLU of the transposed", "stream-K"),
]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    arrays = [*ARRAYS.values(), *FUNCTIONS.values()]
    batched = [CLASSES[name] for name in SCALED]
    pycutlass.compiler.add_module([*(each.array for each in arrays), *batched])


def lines(description: Any, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix in its layout, and all of its memory, which has a guard behind each line and behind the last."""
    values = values if description.is_row_major else values.mT
    rows, columns = values.shape[-2:]
    memory = torch.full((*values.shape[:-2], rows + 1, columns + 16), GUARD, device="cuda")
    memory = memory.to(TORCH[description.type.short])
    inside = memory[..., :rows, :columns]
    inside.copy_(values)
    return (inside if description.is_row_major else inside.mT), memory


def untouched(description: Any, memory: torch.Tensor) -> bool:
    """Return whether the guards are as they were."""
    guard = torch.tensor(GUARD).to(TORCH[description.type.short]).double().item()
    values = memory.double()
    return bool((values[..., -1, :] == guard).all() and (values[..., :, -16:] == guard).all())


def exact(operation: GemmOperationUniversal, a: Any, b: Any, c: Any, alpha: Any = 1.0, beta: Any = -1.0) -> Any:
    """Return D of the functor, in the type of D."""
    sums = alpha * (a @ b) + beta * c
    sums = sums.relu() if operation.epilogue_functor.activation is not None else sums
    low, high = operation.D.type.limits
    return sums.clamp(low, high).to(TORCH[operation.D.type.short]).double()


@pytest.mark.parametrize(
    ("size", "batch"), [((16, 16, 16), 1), ((144, 80, 96), 3), ((272, 144, 400), 5), ((128, 128, 64), 333)]
)
@pytest.mark.parametrize("name", ARRAYS)
def test_every_element_of_every_problem_is_exact(name: str, size: tuple[int, int, int], batch: int) -> None:
    operation, (m, n, k) = ARRAYS[name], size
    a, b, c = integers(batch, m, k), integers(batch, k, n), integers(batch, m, n, most=2)
    placed = [
        [lines(description, each) for each in values]
        for description, values in (
            (operation.A, a),
            (operation.B, b),
            (operation.C, c),
            (operation.D, torch.full_like(c, 99.0)),
        )
    ]
    for each in placed[::2]:  # addresses in no order
        each.append(each.pop(0))
    A, B, C, D = ([view for view, _ in each] for each in placed)
    arguments = GemmArguments(
        *(operation, size, A, B, C, D, Mode.Array), batch=batch, output_op=operation.epilogue_type(1.0, -1.0)
    )
    for _ in range(2):  # the workspace holds the tensor maps of the launch before
        for each in D:
            each.fill_(99)
        operation.run(arguments)
        arguments.sync()
        wanted = exact(operation, a.roll(-1, 0), b, c.roll(-1, 0))
        for view, one in zip(D, wanted, strict=True):
            assert torch.equal(view.double(), one)
    assert all(untouched(operation.D, memory) for _, memory in placed[3])


def test_without_c_nothing_is_read_in_its_place() -> None:
    operation, (m, n, k), batch = CLASSES["A by columns, C and D by columns"], (272, 144, 80), 4
    a, b = integers(batch, m, k), integers(batch, k, n)
    A, B = (
        [lines(description, each)[0] for each in values] for description, values in ((operation.A, a), (operation.B, b))
    )
    D = [lines(operation.D, torch.full((m, n), float("nan"), device="cuda"))[0] for _ in range(batch)]
    arguments = GemmArguments(operation, (m, n, k), A, B, None, D, Mode.Array, batch=batch)
    operation.run(arguments)
    arguments.sync()
    assert all(torch.equal(view.double(), one.half().double()) for view, one in zip(D, a @ b, strict=True))


def test_sums_of_no_products() -> None:
    operation = CLASSES["B by rows, pingpong"]
    D = [torch.full((40, 24), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    A = [torch.empty((40, 0), device="cuda", dtype=torch.bfloat16)] * 3
    B = [torch.empty((0, 24), device="cuda", dtype=torch.bfloat16)] * 3
    arguments = GemmArguments(operation, (40, 24, 0), A, B, None, D, Mode.Array, batch=3)
    operation.run(arguments)
    arguments.sync()
    assert all((each == 0).all() for each in D)


@pytest.mark.parametrize("name", ["A by columns, C and D by columns", "B by rows, pingpong"])
def test_tables_that_are_on_the_device(name: str) -> None:
    operation, (m, n, k), count = CLASSES[name], (144, 80, 96), 7
    a, b = integers(count, m, k), integers(count, k, n)

    def packed(description: Any, values: torch.Tensor) -> torch.Tensor:
        values = values.to(TORCH[description.type.short])
        return values.contiguous() if description.is_row_major else values.mT.contiguous().mT

    A, B, D = (
        packed(operation.A, a),
        packed(operation.B, b),
        packed(operation.D, torch.full((count, m, n), 99.0).cuda()),
    )
    chosen = [5, 0, 3]
    tables = [torch.tensor([each[i].data_ptr() for i in chosen], device="cuda") for each in (A, B, D)]
    arguments = GemmArguments(operation, (m, n, k), *tables[:2], None, tables[2], Mode.Array, batch=len(chosen))
    operation.run(arguments)
    arguments.sync()
    wanted = torch.full((count, m, n), 99.0).cuda().double()
    wanted[chosen] = (a @ b)[chosen]
    assert torch.equal(D.double(), wanted)
    # The tables are read when the kernel runs.
    others = [2, 6, 1]
    for table, each in zip(tables, (A, B, D), strict=True):
        table.copy_(torch.tensor([each[i].data_ptr() for i in others]))
    operation.run(arguments)
    arguments.sync()
    wanted[others] = (a @ b)[others]
    assert torch.equal(D.double(), wanted)


@pytest.mark.parametrize(("size", "batch"), [((144, 80, 96), 3), ((272, 528, 64), 40)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_with_tensors_of_each_problem(name: str, size: tuple[int, int, int], batch: int) -> None:
    operation = FUNCTIONS[name]
    given = drawn(operation, *size, (batch,))
    listed = {key: None if each is None else list(each) for key, each in given.items()}
    ports = {port.name: listed[port.name] for port in operation.epilogue_functor.ports}
    operands = (listed[key] for key in "ABCD")
    arguments = GemmArguments(operation, size, *operands, Mode.Array, batch=batch, epilogue=ports)
    for _ in range(2):  # counters of reductions come round
        operation.run(arguments)
        arguments.sync()
        check(operation, given)
    others = drawn(operation, *size, (batch,))
    read = [port.name for port in operation.epilogue_functor.inputs]
    arguments.update(A=list(others["A"]), epilogue={each: list(others[each]) for each in read})
    operation.run(arguments)
    arguments.sync()
    check(operation, given | {key: others[key] for key in ("A", *read)})


# Scalars of each matrix


@pytest.mark.parametrize("mode", [Mode.Batched, Mode.Array])
@pytest.mark.parametrize("name", SCALED)
def test_each_matrix_has_scalars_of_its_own(name: str, mode: Any) -> None:
    """A C of NaN is not read where beta is 0, among others that are."""
    operation, (m, n, k), batch = CLASSES[name], (272, 144, 96), 9
    if mode == Mode.Array and name == "stream-K":
        pytest.skip("stream-K has no arrays")
    alpha = torch.tensor([1.0, -1.0, 2.0, 0.0, 1.0, 0.5, -2.0, 1.0, 1.0], device="cuda")
    beta = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.0, 0.0, 1.0, -2.0, 0.0], device="cuda")
    a, b, c = integers(batch, m, k), integers(batch, k, n), integers(batch, m, n, most=2)
    wanted = exact(operation, a, b, c, alpha.double()[:, None, None], beta.double()[:, None, None])
    c[beta == 0] = float("nan")
    placed = [
        lines(description, values)
        for description, values in (
            (operation.A, a),
            (operation.B, b),
            (operation.C, c),
            (operation.D, torch.full_like(a @ b, 99.0)),
        )
    ]
    operands = [list(view) if mode == Mode.Array else view for view, _ in placed]
    scalars = operation.epilogue_type(alpha, beta)
    arguments = GemmArguments(operation, (m, n, k), *operands, mode, batch=batch, output_op=scalars)
    D, memory = placed[3]
    for _ in range(2):
        D.fill_(99)
        operation.run(arguments)
        arguments.sync()
        assert torch.equal(D.double(), wanted)
    assert untouched(operation.D, memory)
    # Numbers beside them, and others after an update.
    clean = integers(batch, m, n, most=2)
    placed[2][0].copy_(clean)
    for one, other in ((alpha, -1.0), (2.0, beta), (1.0, 1.0), (beta, alpha)):
        arguments.update(output_op=operation.epilogue_type(one, other))
        operation.run(arguments)
        arguments.sync()
        as_tensors = [
            torch.as_tensor(each, dtype=torch.float64, device="cuda").reshape(-1, 1, 1) for each in (one, other)
        ]
        assert torch.equal(D.double(), exact(operation, a, b, clean, *as_tensors))


def test_scalars_are_read_when_the_kernel_runs() -> None:
    operation, (m, n, k), batch = CLASSES["B by rows, pingpong"], (128, 128, 64), 300
    a, b = integers(batch, m, k), integers(batch, k, n)
    A, B = (each.bfloat16() for each in (a, b))
    D, alpha = torch.full((batch, m, n), float("nan"), device="cuda", dtype=torch.bfloat16), torch.zeros(batch).cuda()
    options = {"batch": batch, "output_op": operation.epilogue_type(alpha)}
    arguments = GemmArguments(operation, (m, n, k), A, B, None, D, Mode.Batched, **options)
    graph = torch.cuda.CUDAGraph()
    operation.run(arguments)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        alpha.copy_(alpha + 1)
        operation.run(arguments)
    for times in (1, 2, 3):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(D.double(), (times * (a @ b)).bfloat16().double())


# Launches


def test_launches_on_two_streams_and_in_graphs_do_not_disturb_each_other() -> None:
    """Tensor maps are written to a workspace of the arguments, whose launches are put in order."""
    operation, (m, n, k), batch = CLASSES["B by rows, pingpong"], (144, 272, 96), 40
    a, b = integers(batch, m, k), integers(batch, k, n)
    A, B = ([each.bfloat16() for each in values] for values in (a, b))
    wanted = (a @ b).bfloat16()
    results = [torch.full((batch, m, n), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    calls = [GemmArguments(operation, (m, n, k), A, B, None, list(D), Mode.Array, batch=batch) for D in results]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for turn in range(100):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                operation.run(calls[(number + turn) % 2])  # now on this stream, then on the other
    torch.cuda.synchronize()
    assert all(torch.equal(D, wanted) for D in results)
    graph = torch.cuda.CUDAGraph()
    for D in results:
        D.fill_(float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for call in (*calls, *calls):
            operation.run(call)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(D, wanted) for D in results)


def test_other_tensors_take_the_place_of_those_before() -> None:
    operation, (m, n, k), batch = CLASSES["144 columns"], (144, 160, 96), 5
    D = [torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16) for _ in range(batch)]
    arguments = None
    for _ in range(4):
        a, b = integers(batch, m, k), integers(batch, k, n)
        A, B = [each.half() for each in a], [each.half().mT.contiguous().mT for each in b]
        if arguments is None:
            arguments = GemmArguments(operation, (m, n, k), A, B, None, D, Mode.Array, batch=batch)
        else:
            arguments.update(A=A, B=B)
        operation.run(arguments)
        arguments.sync()
        assert all(torch.equal(view.double(), one) for view, one in zip(D, a @ b, strict=True))


def test_what_is_not_compiled_says_what_to_compile() -> None:
    operation = described(C=of_tma("f16"), shape=(64, 16, 64))
    memory = [torch.zeros((16, 16), device="cuda", dtype=torch.float16)] * 2
    D = [each.clone() for each in memory]
    with pytest.raises(pycutlass.errors.NotCompiledError, match=r"add_module\(\[operation\.array\]\)"):
        GemmArguments(operation, (16, 16, 16), memory, [each.mT for each in memory], None, D, Mode.Array, batch=2)
