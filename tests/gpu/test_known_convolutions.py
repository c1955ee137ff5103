"""Convolutions whose problem an operation has met: C++ makes their arguments of tensors of torch and cupy."""

from __future__ import annotations

from typing import Any

import pytest
from conv_cases import OPERATIONS, assert_matches, problem, problems, random_tensor, tensors
from two_streams import on_two_streams

import pycutlass
from pycutlass import _core, cutlass
from pycutlass.errors import ArgumentError, PyCutlassError

NAMES = [
    "f16_fprop_optimized",
    "f16_dgrad_optimized",
    "f16_dgrad_strided_optimized",
    "f16_wgrad_optimized",
    "f16_fprop_few4",
    "tf32_wgrad_align1",
    "f32_simt_fprop",
    *(name for name, operation in OPERATIONS.items() if operation.group_mode is not None),
]


def looked_at(operation: Any, *given: Any, **named: Any) -> pycutlass.Conv2dArguments:
    """Return arguments that were checked in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pycutlass.Conv2dArguments, "_start_known", lambda *given: False)
        return pycutlass.Conv2dArguments(operation, *given, **named)


def is_at_once(arguments: pycutlass.Conv2dArguments) -> bool:
    """Return whether C++ made them, without these checks."""
    return "_reordering" not in vars(arguments)


def at_once(operation: Any, *given: Any, **named: Any) -> pycutlass.Conv2dArguments:
    arguments = pycutlass.Conv2dArguments(operation, *given, **named)
    assert is_at_once(arguments), "the tensors took a closer look"
    return arguments


def met(name: str, **named: Any) -> tuple[Any, Any]:
    """Return an operation and a problem that it has met."""
    operation = OPERATIONS[name]
    size = problems(operation)[2]
    operation._prepared = ()
    A, B, _, D = tensors(operation, size)
    assert not is_at_once(pycutlass.Conv2dArguments(operation, size, A, B, None, D, **named))
    return operation, size


def same_record(arguments: Any, before: Any) -> bool:
    return bool(
        arguments._execution.call.record_bytes == before._execution.call.record_bytes
        and arguments.launch_config == before.launch_config
    )


@pytest.mark.parametrize("source", ["none", "tensor", "bias", "D"])
@pytest.mark.parametrize("name", NAMES)
def test_both_make_the_same_record_and_result(name: str, source: str) -> None:
    operation, size = met(name)
    A, B, C, D = tensors(operation, size)
    if source == "bias" and operation.conv_kind is cutlass.conv.Operator.wgrad:
        with pytest.raises(ArgumentError, match="takes no bias"):
            bias = random_tensor(operation.C, (1, 1, 1, D.shape[1])).reshape(-1)
            pycutlass.Conv2dArguments(operation, size, A, B, bias, D, operation.epilogue_type(2.0, 0.5))
        return
    if source == "none":
        arguments, before = (make(operation, size, A, B, None, D) for make in (at_once, looked_at))
        added, scalars = C, (1.0, 0.0)
    else:
        bias = random_tensor(operation.C, (1, 1, 1, D.shape[1]))
        given = {"tensor": C, "bias": bias.reshape(-1), "D": D}[source]
        if source == "D":
            D.copy_(C)
        added, scalars = bias.expand(D.shape) if source == "bias" else C, (2.0, 0.5)
        how = {"output_op": operation.epilogue_type(*scalars)}
        arguments, before = (make(operation, size, A, B, given, D, **how) for make in (at_once, looked_at))
        assert arguments.bias == before.bias == (source == "bias")
    assert same_record(arguments, before)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, size, A, B, added, D, *scalars)


@pytest.mark.parametrize("name", ["f16_fprop_optimized", "f16_dgrad_strided_optimized", "f16_wgrad_optimized"])
def test_they_are_updated_and_captured(name: str) -> None:
    import torch

    operation, size = met(name)
    A, B, C, D = tensors(operation, size)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = at_once(operation, size, A, B, None, D)
        operation.run(captured)
    graph.replay()
    torch.cuda.synchronize()
    assert_matches(operation, size, A, B, C, D, 1.0, 0.0)

    arguments = at_once(operation, size, A, B, None, D)
    A, B, C, D = tensors(operation, size)
    arguments.update(A=A, B=B, D=D)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, size, A, B, C, D, 1.0, 0.0)
    host = A.cpu().permute(0, 2, 3, 1).contiguous().numpy()  # which takes the whole check again
    arguments.update(A=host)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, size, A, B, C, D, 1.0, 0.0)


@pytest.mark.parametrize("name", ["f16_fprop_optimized", "f16_wgrad_optimized"])
def test_two_threads_use_one_prepared_kernel(name: str) -> None:
    operation, size = met(name)
    operation._prepared = ()  # the two may prepare it at the same time

    def work() -> None:
        for _ in range(20):
            A, B, C, D = tensors(operation, size)
            arguments = pycutlass.Conv2dArguments(operation, size, A, B, None, D)
            operation.run(arguments)
            arguments.sync()
            assert_matches(operation, size, A, B, C, D, 1.0, 0.0)

    on_two_streams(work)
    (prepared,) = operation._prepared
    assert len(prepared.problems) == 1
    A, B, _, D = tensors(operation, size)
    at_once(operation, size, A, B, None, D)


def test_slices_of_k_have_a_workspace() -> None:
    """Serial split-K counts its slices in a workspace, on the stream that is named, too."""
    import torch

    operation = OPERATIONS["f16_fprop_optimized"]
    size = problem((1, 17, 11, 3, 3, (1, 1), (1, 1), (1, 1)), 288, 160)
    operation._prepared = ()
    A, B, C, D = tensors(operation, size)
    before = pycutlass.Conv2dArguments(operation, size, A, B, None, D, split_k_slices=3)
    arguments = at_once(operation, size.reset_split_k_slices(3), A, B, None, D)
    assert arguments.launch_config == before.launch_config
    stream = torch.cuda.Stream()
    for given in (None, stream, None):
        D.fill_(float("nan"))
        torch.cuda.synchronize()
        operation.run(arguments, given)
        arguments.sync()
        assert_matches(operation, size, A, B, C, D, 1.0, 0.0, slices=3)


@pytest.mark.parametrize("name", ["f16_fprop_optimized", "f16_dgrad_optimized", "f32_simt_fprop"])
def test_arrays_of_cupy_are_taken_at_once(name: str) -> None:
    """As (N, H, W, C) and (K, R, S, C), on cupy's current stream."""
    import cupy

    operation, size = met(name)
    A, B, C, D = tensors(operation, size)
    arrays = [None if each is None else cupy.from_dlpack(each.permute(0, 2, 3, 1)) for each in (A, B, None, D)]
    arguments, before = (make(operation, size, *arrays) for make in (at_once, looked_at))
    assert same_record(arguments, before)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        operation.run(arguments)
    arguments.sync()
    assert arguments._execution.call.last_stream.handle == stream.ptr
    assert_matches(operation, size, A, B, C, D, 1.0, 0.0)


def test_what_is_refused_is_refused_in_the_same_words() -> None:
    """Operands that do not fit, on the host, of another format, or over one another."""
    operation, size = met("f16_fprop_optimized")
    A, B, C, D = tensors(operation, size)
    cases = [
        (size, A.cpu(), B, None, D),
        (size, A.float(), B, None, D),
        (size, A.contiguous(), B, None, D),
        (size, A[:, :, 1:], B, None, D),
        (size, A, B, C, D),
        (size, A, B, None, None),
        (size, A, B, None, D.flip(2).transpose(2, 3)),
        (size, A, B, None, D.clone().requires_grad_()),
        (size, A, B, None, D.contiguous()),
    ]
    for given in cases:
        _core.forget_tensors()
        with pytest.raises(PyCutlassError) as expected:
            looked_at(operation, *given)
        with pytest.raises(PyCutlassError) as got:
            pycutlass.Conv2dArguments(operation, *given)
        assert (type(got.value), str(got.value)) == (type(expected.value), str(expected.value))
