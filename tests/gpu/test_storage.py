"""Tensors whose memory is moved between their arguments and a launch, and what autograd is told."""

from __future__ import annotations

from typing import Any

import pytest
from cases import OPERATIONS, assert_matches, poisoned, random_matrix
from grouped_cases import GROUPED, Group

import pycutlass
from pycutlass import cutlass
from pycutlass._core import TensorGuard
from pycutlass.errors import ArgumentError

M, N, K = 264, 136, 72
BOTH = pytest.mark.parametrize("name", ["f16_tnt", "hopper_cooperative_2x1"])


def operands(name: str) -> tuple[Any, Any, Any, Any, Any]:
    operation = OPERATIONS[name]
    A, B, C = ((operation.A, M, K), (operation.B, K, N), (operation.C, M, N))
    return operation, random_matrix(*A), random_matrix(*B), random_matrix(*C), poisoned(*C)


def test_looking_at_a_tensor_takes_no_call_of_python() -> None:
    import torch

    assert TensorGuard(torch.empty(4, device="cuda"), True).direct
    assert TensorGuard(torch.nn.Parameter(torch.empty(4, device="cuda")), False).direct


@BOTH
@pytest.mark.parametrize("which", "ABCD")
def test_moved_memory_is_refused(name: str, which: str) -> None:
    import torch

    operation, A, B, C, D = operands(name)
    output_op = operation.epilogue_type(1.0, 1.0)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, C, D, output_op=output_op)
    operation.run(arguments)
    assert_matches(operation, A, B, C, D, 1.0, 1.0)
    moved = {"A": A, "B": B, "C": C, "D": D}[which]
    moved.data = moved.clone()
    for stream in (None, torch.cuda.Stream()):
        with pytest.raises(ArgumentError, match=rf"operand {which} .*update"):
            operation.run(arguments, stream=stream)
    arguments.update(**{which: moved})
    D.fill_(float("nan"))
    operation.run(arguments)
    assert_matches(operation, A, B, C, D, 1.0, 1.0)


@BOTH
@pytest.mark.parametrize("which", "ABCD")
def test_a_tensor_that_is_transposed_in_place_is_refused(name: str, which: str) -> None:
    import torch

    operation, A, B, C, D = operands(name)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, C, D, output_op=operation.epilogue_type(1.0, 1.0))
    operation.run(arguments)
    D.fill_(float("nan"))
    changed = {"A": A, "B": B, "C": C, "D": D}[which]
    changed.t_()
    for stream in (None, torch.cuda.Stream()):
        with pytest.raises(ArgumentError, match=rf"operand {which} is not the tensor .*update"):
            operation.run(arguments, stream=stream)
    changed.t_()
    assert D.isnan().all()
    operation.run(arguments)
    assert_matches(operation, A, B, C, D, 1.0, 1.0)


@pytest.mark.parametrize("which", "ABD")
def test_a_tensor_of_a_group_that_is_changed_in_place_is_refused(which: str) -> None:
    group = Group(GROUPED["f16_tnt_device"], [(64, 64, 64)] * 3)
    arguments = group.run()
    changed = {"A": group.A, "B": group.B, "D": group.D}[which][1]
    changed.t_()
    with pytest.raises(ArgumentError, match=rf"operand {which}\[1\] is not the tensor"):
        group.operation.run(arguments)
    changed.t_()
    group.poison()
    group.operation.run(arguments)
    group.check()


def test_a_storage_that_is_resized_is_refused() -> None:
    operation, A, B, _, D = operands("f16_tnt")
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    operation.run(arguments)
    D.resize_(64 * M, N)
    with pytest.raises(ArgumentError, match="operand D "):
        operation.run(arguments)


def test_memory_lives_until_a_named_stream_has_used_it() -> None:
    import torch

    operation, A, B, _, D = operands("f16_tnt")
    expected, side = A.clone(), torch.cuda.Stream()
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    operation.run(arguments)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
    operation.run(arguments, stream=side)
    A.data = torch.empty(0, dtype=A.dtype, device="cuda")  # the tensor lets go of the memory that is being read
    for _ in range(8):  # torch would hand it out here, on its current stream
        random_matrix(operation.A, M, K).fill_(float("inf"))
    side.synchronize()
    assert_matches(operation, expected, B, None, D)


@BOTH
def test_every_launch_counts_as_a_write(name: str) -> None:
    import torch

    operation, A, B, _, D = operands(name)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    before, versions = D._version, (A._version, B._version)
    operation.run(arguments)
    operation.run(arguments, stream=torch.cuda.current_stream())
    assert D._version == before + 2 and (A._version, B._version) == versions
    w = torch.ones(M, N, device="cuda", requires_grad=True)
    loss = (D.float().requires_grad_() * w).sum() + (D.to(torch.float64).float() * w).sum()
    loss.backward()  # copies are not stale
    stale = (D * w.half()).sum()
    operation.run(arguments)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()
    with pytest.raises(ArgumentError, match="requires grad"):
        arguments.update(D=torch.empty_like(D).requires_grad_())
    with torch.inference_mode():
        target = torch.empty_like(D)
        arguments.update(D=target)
        operation.run(arguments)
    operation.run(arguments)
    assert_matches(operation, A, B, None, target)


@BOTH
def test_extents_of_zero(name: str) -> None:
    operation = OPERATIONS[name]
    for m, n, k in ((0, N, K), (M, 0, K), (M, N, 0)):
        A, B = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n)
        C, D = random_matrix(operation.C, m, n), poisoned(operation.C, m, n)
        output_op = operation.epilogue_type(2.0, 3.0)
        arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, C, D, output_op=output_op)
        operation.run(arguments)
        arguments.sync()
        assert (D == 3 * C).all()


def test_slices_of_one_buffer() -> None:
    import torch

    operation = OPERATIONS["f16_tnt"]
    heads, tokens, width = 4, 64, 32
    qkv = torch.randn(tokens, 3, heads, width, device="cuda").half()
    Q, V = (qkv[:, i].transpose(0, 1) for i in (0, 2))
    W = torch.randn(width, width, device="cuda").half().T
    expected = Q.double() @ W.double()
    arguments = pycutlass.GemmArguments(
        operation, (tokens, width, width), Q, W, None, V, gemm_mode=cutlass.gemm.Mode.Batched, batch=heads
    )
    operation.run(arguments)
    torch.testing.assert_close(V.double(), expected, rtol=2.0**-10, atol=1e-2)
    x, y = torch.randn(3, 8, width, device="cuda").half(), torch.empty(3, 8, width, device="cuda").half()
    operation.run(pycutlass.GemmArguments(operation, (24, width, width), x, W, None, y))
    torch.testing.assert_close(y.double(), x.double() @ W.double(), rtol=2.0**-10, atol=1e-2)
