"""Hopper-native GEMMs of operands that TMA cannot copy: every element, and the memory around each operand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from epilogue_functions import several
from function_cases import check, drawn
from function_cases import launch as launch_function
from unaligned import FUNCTIONS, UNALIGNED, unaligned

import pycutlass
from pycutlass import GemmArguments, LinearCombination, ReductionArguments, ReductionOperation, cutlass
from pycutlass.types import element

TORCH = {
    **{"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "tf32": torch.float32},
    **{"s8": torch.int8, "s32": torch.int32, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2},
}
#: Each extent is rounded up to what the alignments ask for.
SIZES = [(1, 1, 1), (37, 51, 29), (129, 131, 65), (300, 257, 130), (1, 515, 1000), (400, 3, 33), (1030, 1029, 257)]
#: What lies around D, of every type; around A and B there are numbers that would spoil every sum.
AROUND = 96.0


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    pycutlass.compiler.add_module([*UNALIGNED.values(), *FUNCTIONS.values()])


def fitting(operation: Any, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return a size that is no smaller, and divided by the alignments."""
    steps = {"M": 1, "N": 1, "K": 1}
    lines = (("A", "MK"), ("B", "KN"), ("C", "MN"), ("D", "MN"))
    for name, axes in lines:
        described = getattr(operation, name)
        axis = axes[1 if described.is_row_major else 0]
        steps[axis] = max(steps[axis], described.alignment)
    if operation.epilogue_functor.columns(2) == 1:
        steps["N"] = 2 * operation.D.alignment
    m, n, k = (-(-extent // step) * step for extent, step in zip(size, steps.values(), strict=True))
    return m, n, k


def placed(values: torch.Tensor, kind: torch.dtype, alignment: int, by_rows: bool, around: float) -> Any:
    """Return a matrix, or a batch of them, that is no better aligned than it says, and the memory around it."""
    lines = values if by_rows else values.mT
    *batch, count, length = lines.shape
    leading = length + alignment if length // alignment % 2 == 0 else length + 2 * alignment
    apart = count * leading + alignment
    memory = torch.full((alignment + apart * max([1, *batch]) + 64,), around, device="cuda").to(kind)
    strides = [*([apart] if batch else []), leading, 1]
    inside = memory.as_strided((*batch, count, length), strides, alignment)
    inside.copy_(lines)
    return inside if by_rows else inside.mT, memory


def untouched(memory: torch.Tensor, inside: torch.Tensor) -> bool:
    """Return whether all is as it was around a matrix; its own elements are overwritten."""
    inside.copy_(torch.full_like(inside.float(), AROUND))
    return bool((memory.float() == AROUND).all())


def integers(*shape: int, most: int = 1) -> torch.Tensor:
    return torch.randint(-most, most + 1, shape, device="cuda").double()


def place(description: Any, values: torch.Tensor, around: float) -> Any:
    kind = TORCH[description.type.short]
    around = 55.0 if not kind.is_floating_point and around != around else around
    return placed(values, kind, description.alignment, description.is_row_major, around)


def rounded(operation: Any, exact: torch.Tensor) -> torch.Tensor:
    low, high = operation.D.type.limits
    return exact.clamp(low, high).to(TORCH[operation.D.type.short]).double()


def launch(operation: Any, size: tuple[int, int, int], batch: int | None, beta: float = -1.0) -> None:
    (m, n, k), before = fitting(operation, size), () if batch is None else (batch,)
    a, b, c = integers(*before, m, k), integers(*before, k, n), integers(*before, m, n, most=2)
    nan = float("nan")
    (A, _), (B, _) = place(operation.A, a, nan), place(operation.B, b, nan)
    is_float = operation.C.type.short not in ("s8", "s32")
    C, _ = place(operation.C, torch.full_like(c, nan) if beta == 0 and is_float else c, nan)
    D, memory = place(operation.D, torch.full_like(c, AROUND), AROUND)
    exact = a @ b + beta * c
    if operation.epilogue_functor.activation is not None:
        exact = exact.relu()
    options: dict[str, Any] = {} if batch is None else {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": batch}
    output_op = operation.epilogue_type(1.0, beta)
    arguments = GemmArguments(operation, (m, n, k), A, B, C, D, output_op=output_op, **options)
    operation.run(arguments)
    arguments.sync()
    assert torch.equal(D.double(), rounded(operation, exact))
    assert untouched(memory, D)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", UNALIGNED)
def test_every_element_is_exact_and_nothing_else_is_written(name: str, size: tuple[int, int, int]) -> None:
    launch(UNALIGNED[name], size, None)


@pytest.mark.parametrize("size", [(37, 51, 29), (129, 131, 65)])
@pytest.mark.parametrize("name", UNALIGNED)
def test_without_beta_c_is_not_read(name: str, size: tuple[int, int, int]) -> None:
    launch(UNALIGNED[name], size, None, 0.0)


@pytest.mark.parametrize("size", [(45, 70, 37), (130, 140, 200)])
@pytest.mark.parametrize("name", UNALIGNED)
def test_a_batch_is_exact(name: str, size: tuple[int, int, int]) -> None:
    launch(UNALIGNED[name], size, 3)


@pytest.mark.parametrize("name", [name for name, each in UNALIGNED.items() if not each.is_apart])
def test_d_may_be_c(name: str) -> None:
    operation = UNALIGNED[name]
    m, n, k = fitting(operation, (333, 259, 77))
    a, b, c = integers(m, k), integers(k, n), integers(m, n, most=2)
    (A, _), (B, _) = place(operation.A, a, float("nan")), place(operation.B, b, float("nan"))
    D, memory = place(operation.D, c, AROUND)
    arguments = GemmArguments(operation, (m, n, k), A, B, D, D, output_op=operation.epilogue_type(1.0, 1.0))
    operation.run(arguments)
    arguments.sync()
    exact = a @ b + c
    exact = exact if operation.epilogue_functor.activation is None else exact.relu()
    assert torch.equal(D.double(), rounded(operation, exact))
    assert untouched(memory, D)


def test_slices_of_stream_k_are_exact() -> None:
    operation = UNALIGNED["D of pairs, stream-K"]
    for (m, n, k), slices in (((129, 130, 4096), 3), ((33, 514, 2048), 8), ((1, 2, 1024), 1)):
        a, b = integers(m, k), integers(k, n)
        (A, _), (B, _) = place(operation.A, a, float("nan")), place(operation.B, b, float("nan"))
        D, memory = place(operation.D, torch.full((m, n), AROUND, device="cuda"), AROUND)
        arguments = GemmArguments(operation, (m, n, k), A, B, None, D, split_k_slices=slices)
        operation.run(arguments)
        arguments.sync()
        assert torch.equal(D.double(), (a @ b).half().double()) and untouched(memory, D)


@pytest.mark.parametrize("name", ["4 bytes", "D of any alignment", "neither along K"])
def test_partial_sums_are_exact(name: str) -> None:
    operation = UNALIGNED[name]
    D, count = operation.D, operation.D.alignment
    functor = LinearCombination(D.element, count, cutlass.float32, cutlass.float32)
    shape = cutlass.MatrixCoord(4, 32 * count)
    reduction = ReductionOperation(shape, D, cutlass.float32, epilogue_functor=functor, count=count)
    pycutlass.compiler.add_module([operation, reduction])
    for size, slices in (((271, 143, 768), 6), ((5, 301, 2048), 8)):
        m, n, k = fitting(operation, size)
        a, b = integers(m, k), integers(k, n)
        (A, _), (B, _) = place(operation.A, a, float("nan")), place(operation.B, b, float("nan"))
        result, memory = place(D, torch.full((m, n), AROUND, device="cuda"), AROUND)
        mode = cutlass.gemm.Mode.GemmSplitKParallel
        arguments = GemmArguments(operation, (m, n, k), A, B, None, result, mode, split_k_slices=slices)
        operation.run(arguments)
        reduction.run(ReductionArguments(reduction, (m, n), slices, arguments.ptr_D, result))
        torch.cuda.synchronize()
        assert torch.equal(result.double(), (a @ b).to(result.dtype).double()) and untouched(memory, result)


def test_kernels_of_either_kind_wait_for_each_other() -> None:
    """Each permutes the columns of what the one before it has written."""
    by_tma, by_threads = UNALIGNED["D of any alignment"], UNALIGNED["4 bytes"]
    m, n = 1030, 1032
    x = integers(m, n, most=2)
    given, exact = x.half(), x
    results, calls = [], []
    for i in range(20):
        order = torch.randperm(n, device="cuda")
        B = torch.zeros(n, n, device="cuda", dtype=torch.float16)
        B[order, torch.arange(n, device="cuda")] = 1
        B, exact = B.mT.contiguous().mT, exact[:, order]
        D = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
        operation = (by_tma, by_threads)[i % 2]
        calls.append((operation, GemmArguments(operation, (m, n, n), given, B, None, D)))
        results.append(D)
        given = D
    torch.cuda.synchronize()
    for operation, arguments in calls:
        operation.run(arguments)
    torch.cuda.synchronize()
    assert torch.equal(results[-1].double(), exact)


def test_tf32_beyond_its_bits_is_cut_off() -> None:
    operation = UNALIGNED["tf32"]
    m, n, k = fitting(operation, (65, 67, 129))
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda").mT
    D = torch.full((m, n), float("nan"), device="cuda")
    arguments = GemmArguments(operation, (m, n, k), a, b, None, D)
    operation.run(arguments)
    arguments.sync()
    cut = [(each.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32).double() for each in (a, b)]
    bound = 2.0**-16 * (cut[0].abs() @ cut[1].abs()) + 1e-6
    assert ((D.double() - cut[0] @ cut[1]).abs() <= bound).all()


@pytest.mark.parametrize("size", [(37, 51, 29), (129, 131, 65), (261, 390, 130), (1, 515, 200)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_output_of_a_function_is_right(name: str, size: tuple[int, int, int]) -> None:
    operation = FUNCTIONS[name]
    given = drawn(operation, *fitting(operation, size))
    written = {"D": operation.D, **{port.name: port for port in operation.epilogue_functor.outputs}}
    memories = {}
    for each, described in written.items():
        tensor = given[each]
        by_rows = tensor.ndim < 2 or tensor.stride(-1) == 1
        kind = TORCH[element(getattr(described, "tag", None) or described.element).short]
        if tensor.ndim < 2:
            memory = torch.full((tensor.numel() + 9,), AROUND, device="cuda").to(kind)
            given[each] = memory[1 : 1 + tensor.numel()]
            given[each].fill_(float("nan"))
        else:
            given[each], memory = placed(tensor, kind, described.alignment, by_rows, AROUND)
        memories[each] = memory
    launch_function(operation, given).sync()
    check(operation, given)
    assert all(untouched(memory, given[each]) for each, memory in memories.items())


@pytest.mark.parametrize("m", [37, 129, 256])
def test_a_swapped_function_by_tma_writes_nothing_behind_an_odd_number_of_rows(m: int) -> None:
    """Rows are columns of its tiles: they do not come in pairs."""
    operation = unaligned(alignments=(8, 8, 8), functor=several(cutlass.float16, 8), swap_ab=True, shape=(128, 32, 64))
    assert not operation.stores_directly
    pycutlass.compiler.add_module([operation])
    given = drawn(operation, m, 136, 72)
    memories = {}
    for name in ("D", "first", "second"):
        given[name], memories[name] = placed(given[name], torch.float16, 8, True, AROUND)
    launch_function(operation, given).sync()
    check(operation, given)
    assert all(untouched(memory, given[name]) for name, memory in memories.items())


@pytest.mark.parametrize("name", ["biased", "biased, swapped", "several", "residual"])
def test_a_batch_of_a_function_is_right(name: str) -> None:
    operation = FUNCTIONS[name]
    given = drawn(operation, *fitting(operation, (45, 70, 37)), batch=(3,))
    launch_function(operation, given).sync()
    check(operation, given)
