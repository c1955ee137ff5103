"""Arguments that C++ makes of ordinary tensors, from what an operation has prepared for its GPU."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from cases import OPERATIONS, assert_matches, poisoned, random_matrix, random_values

import pycutlass
from pycutlass import cutlass

M, N, K = 80, 48, 64
SIZE = (M, N, K)
NAMES = ["f16_tnt", "f64", "hopper_cooperative_2x1", "hopper_pingpong"]


def operands(operation: Any, *batch: int) -> tuple[Any, Any, Any, Any]:
    """Return a random A, B and C, and a D full of NaN."""
    return (
        random_matrix(operation.A, M, K, *batch),
        random_matrix(operation.B, K, N, *batch),
        random_matrix(operation.C, M, N, *batch),
        poisoned(operation.C, M, N, *batch),
    )


def looked_at(operation: Any, *given: Any, **named: Any) -> pycutlass.GemmArguments:
    """Return arguments that were checked in Python; from then on, the operation has something prepared."""
    operation._prepared = ()
    arguments = pycutlass.GemmArguments(operation, *given, **named)
    assert len(operation._prepared) == 1
    return arguments


def at_once(operation: Any, *given: Any, **named: Any) -> pycutlass.GemmArguments:
    """Return arguments that were made without these checks."""
    arguments = pycutlass.GemmArguments(operation, *given, **named)
    assert "_reordering" not in vars(arguments), "the tensors took a closer look"
    return arguments


@pytest.mark.parametrize("source", ["none", "matrix", "bias", "D"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
@pytest.mark.parametrize("name", NAMES)
def test_both_make_the_same_record_and_result(name: str, batch: tuple[int, ...], source: str) -> None:
    operation = OPERATIONS[name]
    A, B, C, D = operands(operation, *batch)
    named: dict[str, Any] = {"gemm_mode": cutlass.gemm.Mode.Batched, "batch": 3} if batch else {}
    given, beta = None, 0.0
    if source != "none":
        given = {"matrix": C, "bias": random_values(operation.C, (N,)), "D": D}[source]
        named["output_op"], beta = operation.epilogue_type(2.0, 0.5), 0.5
        if source == "D":
            D.copy_(C)
    added = None if given is None else given.clone().expand(*batch, M, N)
    alpha = 1.0 if given is None else 2.0
    before = looked_at(operation, SIZE, A, B, given, D, **named)
    arguments = at_once(operation, SIZE, A, B, given, D, **named)
    assert arguments._execution.call.record_bytes == before._execution.call.record_bytes
    assert arguments.launch_config == before.launch_config
    operation.run(arguments)
    arguments.sync()
    for number in range(*batch or (1,)):
        parts = [None if each is None else each[number] if batch else each for each in (A, B, added, D)]
        assert_matches(operation, *parts, alpha, beta)


@pytest.mark.parametrize("name", NAMES)
def test_they_are_updated_and_captured(name: str) -> None:
    import torch

    operation = OPERATIONS[name]
    looked_at(operation, SIZE, *operands(operation)[:2], None, poisoned(operation.C, M, N))
    A, B, _, D = operands(operation)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = at_once(operation, SIZE, A, B, None, D)
        operation.run(captured)
    graph.replay()
    torch.cuda.synchronize()
    assert_matches(operation, A, B, None, D)

    arguments = at_once(operation, SIZE, A, B, None, D)
    A, B, _, D = operands(operation)
    arguments.update(A=A, B=B, D=D)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, None, D)
    A = random_matrix(operation.A, M, K).cpu().numpy()  # which takes the whole check again
    arguments.update(A=A)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, torch.from_numpy(A).cuda(), B, None, D)


@pytest.mark.parametrize("name", NAMES)
def test_two_threads_use_one_prepared_kernel(name: str) -> None:
    import torch

    operation, failures = OPERATIONS[name], []
    looked_at(operation, SIZE, *operands(operation)[:2], None, poisoned(operation.C, M, N))
    (prepared,) = operation._prepared

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    A, B, _, D = operands(operation)
                    arguments = at_once(operation, SIZE, A, B, None, D)
                    operation.run(arguments)
                    arguments.sync()
                    assert_matches(operation, A, B, None, D)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert operation._prepared == (prepared,)
