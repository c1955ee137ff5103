"""Arguments that C++ makes of ordinary tensors of torch and cupy, the first of an operation as the later ones."""

from __future__ import annotations

from typing import Any

import pytest
from cases import OPERATIONS, assert_matches, poisoned, random_matrix, random_values
from two_streams import on_two_streams

import pycutlass
from pycutlass import _core, cutlass
from pycutlass.errors import PyCutlassError

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
    """Return arguments that were checked in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pycutlass.GemmArguments, "_start_ordinary", lambda *given: False)
        return pycutlass.GemmArguments(operation, *given, **named)


def at_once(operation: Any, *given: Any, **named: Any) -> pycutlass.GemmArguments:
    """Return arguments that C++ made, without these checks."""
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
    operation._prepared = ()
    at_once(operation, SIZE, *operands(operation)[:2], None, poisoned(operation.C, M, N))
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
    operation = OPERATIONS[name]
    at_once(operation, SIZE, *operands(operation)[:2], None, poisoned(operation.C, M, N))
    operation._prepared = ()  # the two may prepare it at the same time

    def work() -> None:
        for _ in range(20):
            A, B, _, D = operands(operation)
            arguments = at_once(operation, SIZE, A, B, None, D)
            operation.run(arguments)
            arguments.sync()
            assert_matches(operation, A, B, None, D)

    on_two_streams(work)
    (prepared,) = operation._prepared
    at_once(operation, SIZE, *operands(operation)[:2], None, poisoned(operation.C, M, N))
    assert operation._prepared == (prepared,)


@pytest.mark.parametrize("known", [False, True], ids=["first tensors", "later ones"])
@pytest.mark.parametrize("name", NAMES)
def test_the_first_arguments_are_made_at_once(name: str, known: bool) -> None:
    """Of an operation that was never launched, in a process that has seen such tensors before or has not."""
    operation = OPERATIONS[name]
    A, B, C, D = operands(operation)
    scalars = operation.epilogue_type(2.0, 0.5)
    operation._prepared = ()
    if not known:
        _core.forget_tensors()
    arguments = at_once(operation, SIZE, A, B, C, D, output_op=scalars)
    before = looked_at(operation, SIZE, A, B, C, D, output_op=scalars)
    assert arguments._execution.call.record_bytes == before._execution.call.record_bytes
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, C, D, 2.0, 0.5)


@pytest.mark.parametrize("source", ["none", "matrix", "bias"])
@pytest.mark.parametrize("name", ["f16_tnt", "f64", "hopper_cooperative_2x1"])
def test_arrays_of_cupy_are_taken_at_once(name: str, source: str) -> None:
    """They are launched on cupy's current stream, and exchanged."""
    import cupy

    operation = OPERATIONS[name]
    A, B, C, D = operands(operation)
    given = {"none": None, "matrix": C, "bias": random_values(operation.C, (N,))}[source]
    added, beta = (None, 0.0) if given is None else (given.expand(M, N), 0.5)
    scalars = operation.epilogue_type(2.0, beta)
    arrays = [None if each is None else cupy.from_dlpack(each) for each in (A, B, given, D)]
    operation._prepared = ()
    arguments = at_once(operation, SIZE, *arrays, output_op=scalars)
    before = looked_at(operation, SIZE, *arrays, output_op=scalars)
    assert arguments._execution.call.record_bytes == before._execution.call.record_bytes
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        operation.run(arguments)
    arguments.sync()
    assert arguments._execution.call.last_stream.handle == stream.ptr
    assert_matches(operation, A, B, added, D, 2.0, beta)

    A, B, _, D = operands(operation)
    arguments.update(A=cupy.from_dlpack(A), B=cupy.from_dlpack(B), D=cupy.from_dlpack(D))
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, added, D, 2.0, beta)


def test_slices_of_k_have_a_workspace_at_once() -> None:
    """Serial split-K counts its slices in a workspace, on the stream that is named, too."""
    import torch

    operation = OPERATIONS["f16_tnt"]
    A, B, _, D = operands(operation)
    operation._prepared = ()
    arguments = at_once(operation, SIZE, A, B, None, D, split_k_slices=3)
    before = looked_at(operation, SIZE, A, B, None, D, split_k_slices=3)
    assert arguments.launch_config == before.launch_config
    stream = torch.cuda.Stream()
    for given in (None, stream, None):
        D.fill_(float("nan"))
        torch.cuda.synchronize()
        operation.run(arguments, given)
        arguments.sync()
        assert_matches(operation, A, B, None, D, slices=3)


def test_what_is_first_refused_is_refused_in_the_same_words() -> None:
    """Operands that do not fit each other, on the host, of two libraries, or over one another."""
    import cupy
    import torch

    operation = OPERATIONS["f16_tnt"]
    A, B, C, D = operands(operation)
    square = random_matrix(operation.A, 64, 64)
    cases = [
        (SIZE, A.cpu(), B, None, D),
        (SIZE, A.float(), B, None, D),
        (SIZE, A, B.t(), None, D),
        (SIZE, A, B, C, D),
        (SIZE, A, B, None, None),
        (SIZE, A, B, None, D[:, ::2]),
        (SIZE, A, B, None, D.clone().requires_grad_()),
        ((64, 64, 64), square, random_matrix(operation.B, 64, 64), None, square),
        ((M, N, K + 1), A, B, None, D),
    ]
    for given in cases:
        operation._prepared = ()
        _core.forget_tensors()
        with pytest.raises(PyCutlassError) as expected:
            looked_at(operation, *given)
        with pytest.raises(PyCutlassError) as got:
            pycutlass.GemmArguments(operation, *given)
        assert (type(got.value), str(got.value)) == (type(expected.value), str(expected.value))
    mixed = pycutlass.GemmArguments(operation, SIZE, cupy.from_dlpack(A), B, None, D)  # right, and not at once
    assert "_reordering" in vars(mixed)
    operation.run(mixed)
    mixed.sync()
    torch.cuda.synchronize()
    assert_matches(operation, A, B, None, D)
