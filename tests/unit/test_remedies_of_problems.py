"""Operands that overlap, and slices of K: what a message tells to do is done, accepted, and right."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from conv_operands import size
from convolutions import SIMT, conv, f32, fprop
from descriptions import COLUMN, ROW, ampere, hopper, native_parts, parts
from epilogue_functions import EVERY, gated
from hypothesis import given
from hypothesis import strategies as st
from reordering import operands as interleaved_operands
from reordering import product
from rule_baselines import BASELINES

from pycutlass import (
    Conv2dArguments,
    GemmArguments,
    GemmGroupedArguments,
    GemmOperationGrouped,
    GemmOperationUniversal,
    GemmProblemSize,
    KernelSchedule,
    ReductionArguments,
    ReductionOperation,
    cutlass,
    interleave_rows,
)
from pycutlass.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("without_gpu")

Mode = cutlass.gemm.Mode
RRR = ampere("f32_simt", (ROW, ROW, ROW))
M, N, K = 6, 8, 4


def said(call: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        call()
    return str(caught.value)


def of_its_own(array: Any) -> Any:
    """Return memory of its own for an operand, as messages tell to give it."""
    return [np.zeros_like(each) for each in array] if isinstance(array, list) else np.zeros_like(array)


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def _gemm(buffer: Any) -> dict[str, Any]:
    """One product, of operands in one buffer."""
    A, B = buffer[: M * K].reshape(M, K), buffer[M * K : M * K + K * N].reshape(K, N)
    return {"A": A, "B": B, "D": buffer[5 : 5 + M * N].reshape(M, N)}


def _source(buffer: Any) -> dict[str, Any]:
    """C one row above D."""
    return {
        "A": numbers(M, K),
        "B": numbers(K, N),
        "C": buffer[: M * N].reshape(M, N),
        "D": buffer[N : N + M * N].reshape(M, N),
        "output_op": RRR.epilogue_type(1.0, 1.0),
    }


def _batched(buffer: Any) -> dict[str, Any]:
    """Three products, of which each D begins within A."""
    A = buffer[: 3 * M * K].reshape(3, M, K)
    return {"A": A, "B": numbers(3, K, N), "D": buffer[9 : 9 + 3 * M * N].reshape(3, M, N), **_batch(Mode.Batched)}


def _array(buffer: Any) -> dict[str, Any]:
    """Three products of which two write to one place."""
    D = [buffer[i * N : i * N + M * N].reshape(M, N) for i in (0, 3, 20)]
    return {"A": list(numbers(3, M, K)), "B": list(numbers(3, K, N)), "D": D, **_batch(Mode.Array)}


def _batch(mode: Any) -> dict[str, Any]:
    return {"gemm_mode": mode, "batch": 3}


@pytest.mark.parametrize("make", [_gemm, _source, _batched, _array], ids=lambda make: make.__name__[1:])
def test_an_operand_that_overlaps_is_given_memory_of_its_own(make: Any) -> None:
    given = make(numbers(500))
    message = said(lambda: GemmArguments(RRR, (M, N, K), **given))
    name = re.search(r"Give (\w)(?:\[\d+\])? memory of its own\.$", message)
    assert name is not None, message
    C = 0 if given.get("C") is None else given["C"].copy()
    exact = np.matmul(given["A"], given["B"]) + C
    given[name[1]] = of_its_own(given[name[1]])
    RRR.run(GemmArguments(RRR, (M, N, K), **given))
    np.testing.assert_array_equal(given["D"], exact)


def test_matrices_of_a_group_that_overlap() -> None:
    described = parts("f32_simt", (ROW, ROW, ROW))
    described.pop("swizzling_functor")
    operation, buffer = GemmOperationGrouped(**described), numbers(500)
    A, B = [buffer[:24].reshape(M, K), numbers(M, K)], [numbers(K, N), numbers(K, N)]
    D = [buffer[200:248].reshape(M, N), buffer[4:52].reshape(M, N)]
    message = said(lambda: GemmGroupedArguments(operation, [(M, N, K)] * 2, A, B, None, D))
    name = re.search(r"Give D\[(\d)\] memory of its own\.$", message)
    assert name is not None, message
    D[int(name[1])] = of_its_own(D[int(name[1])])
    exact = np.matmul(A, B)
    operation.run(GemmGroupedArguments(operation, [(M, N, K)] * 2, A, B, None, D))
    np.testing.assert_array_equal(D, exact)


def test_a_convolution_that_overlaps() -> None:
    operation, p = conv(fprop, "optimized", (f32, f32, f32), opcode=SIMT), size(C=4, K=4, R=1, S=1)
    shape = (p.N, p.H, p.W, 4)
    count = int(np.prod(shape))
    buffer, B = numbers(2 * count), numbers(4, 1, 1, 4)
    A, D = buffer[:count].reshape(shape), buffer[8 : 8 + count].reshape(shape)
    message = said(lambda: Conv2dArguments(operation, p, A, B, None, D))
    assert message.endswith("Give D memory of its own."), message
    D = of_its_own(D)
    operation.run(Conv2dArguments(operation, p, A, B, None, D))
    np.testing.assert_array_equal(D, A @ B.reshape(4, 4).T)


def test_a_reduction_that_overlaps() -> None:
    arguments = GemmArguments(
        RRR, (M, N, K), A := numbers(M, K), B := numbers(K, N), gemm_mode=Mode.GemmSplitKParallel, split_k_slices=1
    )
    RRR.run(arguments)
    operation = summing(RRR)
    buffer, scalars = numbers(200), operation.epilogue_type(1.0, 1.0)
    C, D = buffer[: M * N].reshape(M, N), buffer[N : N + M * N].reshape(M, N)

    def make(D: Any) -> ReductionArguments:
        return ReductionArguments(operation, (M, N), 1, arguments.ptr_D, D, C, output_op=scalars)

    message = said(lambda: make(D))
    name = re.search(r"Give (\w+) memory of its own\.$", message)
    assert name is not None and name[1] == "destination", message
    D = of_its_own(D)
    operation.run(make(D))
    np.testing.assert_array_equal(D, A @ B + C)


# Slices of K


def summing(operation: GemmOperationUniversal) -> ReductionOperation:
    """Return what adds up the partial sums of an operation."""
    functor = operation.epilogue_functor
    count = functor.epilogue_vector_length
    return ReductionOperation(
        cutlass.MatrixCoord(4, 32 * count), operation.C, functor.accumulator.tag, epilogue_functor=functor, count=count
    )


@given(
    st.sampled_from(["f16", "tf32", "f32_simt", "f64"]),
    st.sampled_from([Mode.Gemm, Mode.GemmSplitKParallel]),
    st.integers(1, 40),
    st.integers(2, 4000),
)
def test_as_many_slices_as_a_message_allows_are_taken(kind: str, mode: Any, eighths: int, slices: int) -> None:
    operation, k = ampere(kind, (ROW, COLUMN, ROW)), 8 * eighths
    dtype = operation.A.type.dtype
    A, B, D = np.ones((8, k), dtype), np.ones((8, k), dtype).T, np.zeros((8, 8), operation.C.type.dtype)

    def make(slices: int) -> GemmArguments:
        target = {} if mode is Mode.GemmSplitKParallel else {"D": D}
        return GemmArguments(operation, (8, 8, k), A, B, **target, gemm_mode=mode, split_k_slices=slices)

    most = -(-k * operation.A.type.bits // 128)
    if slices <= most:
        make(slices)
        return
    message = said(lambda: make(slices))
    allowed = re.search(r"split_k_slices must be at most (\d+), got", message)
    assert allowed is not None and int(allowed[1]) == most, message
    arguments = make(most)
    operation.run(arguments)
    if mode is Mode.GemmSplitKParallel:
        reduction = summing(operation)
        reduction.run(ReductionArguments(reduction, (8, 8), most, arguments.ptr_D, D))
    np.testing.assert_array_equal(D.astype(float), np.full((8, 8), k))


def test_interleaved_operands_are_not_split() -> None:
    A, B, exact = interleaved_operands()
    message = said(lambda: product(interleave_rows(B), A, reordered=False, split_k_slices=2))
    assert message.endswith(": leave out split_k_slices"), message
    np.testing.assert_array_equal(product(interleave_rows(B), A, reordered=False), exact)


def test_a_narrow_result_is_added_up_in_parallel() -> None:
    operation = GemmOperationUniversal(**BASELINES["int8 clamped"])
    A, B = np.ones((16, 512), np.int8), np.ones((16, 512), np.int8).T
    D = np.zeros((16, 16), np.int8)
    message = said(lambda: GemmArguments(operation, (16, 16, 512), A, B, None, D, split_k_slices=4))
    mode = re.search(r"use (GemmSplitKParallel) .*or one slice$", message)
    assert mode is not None, message
    arguments = GemmArguments(operation, (16, 16, 512), A, B, gemm_mode=Mode[mode[1]], split_k_slices=4)
    operation.run(arguments)
    reduction = summing(operation)
    reduction.run(ReductionArguments(reduction, (16, 16), 4, arguments.ptr_D, D))
    assert (D == 127).all(), "clamped once"
    D[:] = 0
    operation.run(GemmArguments(operation, (16, 16, 512), A, B, None, D))
    assert (D == 127).all()


def test_a_hopper_native_kernel_is_told_how_to_do_without_slices() -> None:
    operation = hopper()
    A, B, D = np.ones((8, 64), np.float16), np.ones((8, 64), np.float16).T, np.zeros((8, 8), np.float16)
    message = said(lambda: GemmArguments(operation, (8, 8, 64), A, B, None, D, split_k_slices=2))
    assert "leave out split_k_slices, or describe swizzling_functor=cutlass.ThreadblockSwizzleStreamK" in message
    assert ", or for an Ampere-style kernel leave out cluster_shape" in message
    for shape, schedule in (((64, 128, 64), KernelSchedule.Pingpong), ((192, 96, 64), KernelSchedule.Cooperative)):
        other = hopper(tile=shape, schedule=schedule)  # which stream-K does not divide
        message = said(lambda other=other: GemmArguments(other, (8, 8, 64), A, B, None, D, split_k_slices=2))
        mode = re.search(r"use Mode\.(\w+), whose partial sums a ReductionOperation adds up", message)
        assert mode is not None and "StreamK" not in message, message
        D[:] = 0
        arguments = GemmArguments(other, (8, 8, 64), A, B, gemm_mode=Mode[mode[1]], split_k_slices=2)
        other.run(arguments)
        reduction = summing(other)
        reduction.run(ReductionArguments(reduction, (8, 8), 2, arguments.ptr_D, D))
        assert (D == 64).all()
    for function in (gated, EVERY["routed"]):  # which no reduction computes
        functor = function(cutlass.float16, 8, cutlass.float32)
        pairs = GemmOperationUniversal(
            **native_parts(tile=(64, 128, 64), schedule=KernelSchedule.Pingpong) | {"epilogue_functor": functor}
        )
        refused = str(pairs.supports(GemmProblemSize(8, 128, 64, Mode.Gemm, 1, 2)).reason)
        assert "leave out split_k_slices, or for an Ampere-style kernel" in refused, refused
    stream_k = hopper(swizzle=cutlass.ThreadblockSwizzleStreamK)
    for each, slices in ((operation, 1), (stream_k, 2), (ampere("f16"), 2)):
        D[:] = 0
        each.run(GemmArguments(each, (8, 8, 64), A, B, None, D, split_k_slices=slices))
        assert (D == 64).all()


@pytest.mark.parametrize(
    ("algorithm", "options", "words"),
    [("analytic", {}, ""), ("few_channels", {"alignments": 4}, r"use (optimized)"), ("optimized", {}, "")],
)
def test_slices_of_a_convolution(algorithm: str, options: dict[str, Any], words: str) -> None:
    operation = conv(fprop, algorithm, **options)
    channels = options.get("alignments", 8)
    p = cutlass.conv.Conv2dProblemSize(1, 4, 4, channels, 8, 1, 1, split_k_slices=2)
    answer = operation.supports(p)
    if not words:
        assert answer
        return
    found = re.search(words, str(answer))
    assert found is not None and not answer, answer
    assert conv(fprop, found[1]).supports(cutlass.conv.Conv2dProblemSize(1, 4, 4, 8, 8, 1, 1, split_k_slices=2))
