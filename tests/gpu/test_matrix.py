"""Every case of the generated matrix against the reference, outputs poisoned first."""

from __future__ import annotations

from typing import Any

import pytest
from cases import assert_matches, poisoned, random_matrix, random_values
from matrix import CASES, KERNELS, REDUCTIONS, Case, Mode

import pycutlass


def test_the_matrix_is_large() -> None:
    assert len(CASES) == len({str(case) for case in CASES}) >= 600


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    operation = KERNELS[case.kernel]
    m, n, k = case.size
    batch = (case.count,) if case.mode in (Mode.Batched, Mode.Array) and case.count > 1 else ()
    A, B = random_matrix(operation.A, m, k, *batch), random_matrix(operation.B, k, n, *batch)
    C, D = _source(case, operation, batch), poisoned(operation.C, m, n, *batch)
    run = {Mode.Gemm: _single, Mode.GemmSplitKParallel: _split, Mode.Batched: _batched, Mode.Array: _array}[case.mode]
    run(case, operation, A, B, C, D)
    compared = operation if case.mode != Mode.GemmSplitKParallel else _with_epilogue_of_reduction(case)
    slices = case.count if case.mode == Mode.Gemm else 1
    assert_matches(compared, A, B, _broadcast(case, operation, C), D, *case.scalars, slices=slices)


def _source(case: Case, operation: Any, batch: tuple[int, ...]) -> Any:
    m, n, _ = case.size
    if not case.bias:
        return random_matrix(operation.C, m, n, *batch)
    return random_values(operation.C, (*batch, n if operation.C.is_row_major else m))


def _broadcast(case: Case, operation: Any, C: Any) -> Any:
    if not case.bias:
        return C
    return C.unsqueeze(-2) if operation.C.is_row_major else C.unsqueeze(-1)


def _single(case: Case, operation: Any, A: Any, B: Any, C: Any, D: Any) -> None:
    arguments = pycutlass.GemmArguments(
        operation,
        case.size,
        A,
        B,
        C,
        D,
        output_op=operation.epilogue_type(*case.scalars),
        split_k_slices=case.count,
    )
    for _ in range(2 if case.count > 1 else 1):  # serial split-K leaves its semaphores ready for the next run
        D.copy_(poisoned(operation.C, *case.size[:2]))
        operation.run(arguments)
    arguments.sync()


def _split(case: Case, operation: Any, A: Any, B: Any, C: Any, D: Any) -> None:
    reduction = REDUCTIONS[case.kernel]
    arguments = pycutlass.GemmArguments(operation, case.size, A, B, C, D, case.mode, split_k_slices=case.count)
    ends = pycutlass.ReductionArguments(
        reduction,
        case.size[:2],
        case.count,
        arguments.ptr_D,
        D,
        C,
        output_op=reduction.epilogue_type(*case.scalars),
    )
    operation.run(arguments)
    reduction.run(ends)
    ends.sync()


def _with_epilogue_of_reduction(case: Case) -> Any:
    operation = KERNELS[case.kernel]
    functor = REDUCTIONS[case.kernel].epilogue_functor
    return type(operation)(*(getattr(operation, f) for f in operation._FIELDS[:5]), functor)


def _batched(case: Case, operation: Any, A: Any, B: Any, C: Any, D: Any) -> None:
    arguments = pycutlass.GemmArguments(
        operation,
        case.size,
        A,
        B,
        C,
        D,
        case.mode,
        output_op=operation.epilogue_type(*case.scalars),
        batch=case.count,
    )
    operation.run(arguments)
    arguments.sync()


def _array(case: Case, operation: Any, A: Any, B: Any, C: Any, D: Any) -> None:
    lists = [list(operand) if case.count > 1 else [operand] for operand in (A, B, C, D)]
    _batched(case, operation, *lists)
