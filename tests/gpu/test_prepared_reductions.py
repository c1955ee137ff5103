"""Reductions of the sums of a convolution: C++ makes their arguments of tensors of torch and cupy."""

from __future__ import annotations

from typing import Any

import pytest
from conv_cases import OPERATIONS, SPLIT, assert_matches, problem, reduction, tensors

import pycutlass
from pycutlass import cutlass
from pycutlass.errors import PyCutlassError

DEEP = ((1, 17, 11, 3, 3, (1, 1), (1, 1), (1, 1)), 288, 160)
SLICES = 4
CUPY = ["f16_fprop_optimized", "f32_simt_dgrad"]


def partial_sums(name: str) -> tuple[Any, ...]:
    """Return an operation, its problem, tensors, and arguments that make partial sums."""
    operation, size = OPERATIONS[name], problem(*DEEP)
    A, B, C, D = tensors(operation, size)
    mode = cutlass.conv.SplitKMode.Parallel
    sums = pycutlass.Conv2dArguments(operation, size, A, B, split_k_mode=mode, split_k_slices=SLICES)
    return operation, size, A, B, C, D, sums


def flat(tensor: Any, operation: Any, size: Any) -> Any:
    """Return the output of a convolution, (N, C, H, W) in channels_last, as the matrix that its product is."""
    product = cutlass.conv.implicit_gemm_problem_size(operation.conv_kind, size)
    return tensor.permute(0, 2, 3, 1).reshape(product.m(), product.n())


def ended(ends: Any, at_once: bool, *given: Any, **named: Any) -> pycutlass.ReductionArguments:
    """Return arguments that C++ made, or that were checked in Python."""
    start, answers = pycutlass.ReductionArguments._start_ordinary, []

    def counted(self: Any, *what: Any) -> bool:
        answers.append(at_once and start(self, *what))
        return answers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pycutlass.ReductionArguments, "_start_ordinary", counted)
        arguments = pycutlass.ReductionArguments(ends, *given, **named)
    assert answers == [at_once], "the tensors took a closer look"
    return arguments


@pytest.mark.parametrize("name", SPLIT)
def test_both_make_the_same_record_and_result(name: str) -> None:
    operation, size, A, B, C, D, sums = partial_sums(name)
    ends = reduction(operation)
    ends._prepared = ()
    target, source = (flat(tensor, operation, size) for tensor in (D, C))
    given = (target.shape, SLICES, sums.ptr_D, target, source)
    scalars = ends.epilogue_type(2.0, 0.5)
    before, arguments = (ended(ends, at_once, *given, output_op=scalars) for at_once in (False, True))
    assert arguments._execution.call.record_bytes == before._execution.call.record_bytes
    assert arguments.launch_config == before.launch_config
    operation.run(sums)
    ends.run(arguments)
    arguments.sync()
    assert_matches(operation, size, A, B, C, D, 2.0, 0.5)


@pytest.mark.parametrize("name", CUPY)
def test_arrays_of_cupy_are_taken_at_once(name: str) -> None:
    import cupy
    import torch

    operation, size, A, B, C, D, sums = partial_sums(name)
    ends = reduction(operation)
    target = flat(D, operation, size)
    arguments = ended(ends, True, target.shape, SLICES, sums.ptr_D, cupy.from_dlpack(target))
    operation.run(sums)
    torch.cuda.synchronize()
    ends.run(arguments)
    arguments.sync()
    assert_matches(operation, size, A, B, C, D, 1.0, 0.0)


def test_a_destination_across_the_sums_is_refused() -> None:
    """And one of the planes is none that lies across them."""
    import torch

    operation, size, *_, sums = partial_sums("f32_simt_fprop")
    ends = reduction(operation)
    m, n = size.N * size.P * size.Q, size.K
    planes = torch.zeros(SLICES + 1, m, n, device="cuda")
    with pytest.raises(PyCutlassError, match="destination overlaps workspace"):
        pycutlass.ReductionArguments(ends, (m, n), SLICES, planes[:SLICES], planes.view(-1, n)[1 : m + 1])
    with pytest.raises(PyCutlassError, match="destination overlaps workspace"):
        pycutlass.ReductionArguments(ends, (m, n), SLICES, sums.ptr_D, sums.ptr_D + 4 * n)
    operation.run(sums)
    arguments = pycutlass.ReductionArguments(ends, (m, n), SLICES, sums.ptr_D, sums.ptr_D + 4 * m * n)
    ends.run(arguments)
    other = pycutlass.ReductionArguments(ends, (m, n), SLICES, planes[:SLICES], planes[1])
    planes[:SLICES].fill_(0.25)
    ends.run(other)
    other.sync()
    assert torch.equal(planes[1], torch.ones_like(planes[1]))
