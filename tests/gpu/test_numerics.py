"""What a GPU computes to the last digits: activations, slices that take turns, integers that int32 lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from activations import BOUNDED, points, too_wrong
from cases import COLUMN, ROW, SIMT, Math, ampere, f16, f32, f64, hopper, s8, s32

import pycutlass
from pycutlass import GemmArguments, compiler, device, reference
from pycutlass.operation import GemmOperationUniversal


def activated(activation: Any) -> Any:
    return lambda *types: pycutlass.LinearCombinationGeneric(activation(), *types)


def kernel(activation: Any, short: str) -> GemmOperationUniversal:
    """Return a GEMM that computes its epilogue in a type, and writes this type."""
    functor = activated(activation)
    simt: dict[str, Any] = {"instruction": (1, 1, 1), "opcode": SIMT, "functor": functor}
    if short == "f16":
        return ampere(f16, f16, f16, tile=(64, 64, 32), functor=functor)
    if short == "f32":
        return ampere(f32, f32, f32, tile=(64, 64, 8), warps=(2, 2, 1), **simt)
    if short == "f64":
        return ampere(f64, f64, f64, tile=(64, 64, 8), warps=(2, 2, 1), **simt)
    return hopper(f16, f32, (64, 64, 64), (1, 1), pycutlass.KernelSchedule.Pingpong, functor=functor)


@pytest.mark.parametrize("short", ["f16", "f32", "f64", "hopper"])
def test_activations_are_right_to_what_is_stated(short: str) -> None:
    import torch

    if short == "hopper" and device.describe(0).compute_capability != 90:
        pytest.skip("needs a GPU of compute capability 9.0")
    kernels = [kernel(activation, short) for activation in BOUNDED]
    compiler.add_module(kernels)
    computed = "f32" if short == "hopper" else short
    x = points("f16" if short == "hopper" else short)
    for operation, activation in zip(kernels, BOUNDED, strict=True):
        m, n, k = len(x), 8, 8
        A = torch.zeros(m, k, dtype=torch.from_numpy(x).dtype, device="cuda")
        A[:, 0] = torch.from_numpy(x)
        B = torch.zeros(n, k, dtype=A.dtype, device="cuda").T
        B[0] = 1
        D = torch.full((m, n), float("nan"), dtype=getattr(torch, operation.C.type.dtype_name), device="cuda")
        arguments = GemmArguments(operation, (m, n, k), A, B, None, D)
        operation.run(arguments)
        arguments.sync()
        found = D.cpu().numpy()
        assert (found == found[:, :1]).all(), "the columns are alike"
        assert too_wrong(activation, computed, x.astype(found.dtype), found[:, 0]) == []


@pytest.mark.parametrize("layouts", [(ROW, COLUMN, ROW), (COLUMN, ROW, COLUMN)])
@pytest.mark.parametrize(("k", "slices"), [(1000, 3), (1024, 4), (4096, 7)])
def test_serial_slices_round_as_the_reference_says(layouts: Any, k: int, slices: int) -> None:
    """Sums of small integers are exact, so that nothing rounds but what the slices write, bit for bit."""
    import torch

    operation = ampere(f16, f32, f16, layouts, tile=(64, 64, 32))
    compiler.add_module([operation])
    rng = np.random.default_rng(0)
    m, n = 72, 136

    def integers(rows: int, columns: int, layout: Any) -> Any:
        values = rng.integers(-16, 17, (rows, columns)).astype(np.float16)
        return np.asarray(values, order="C" if layout is ROW else "F")

    A, B, C = integers(m, k, layouts[0]), integers(k, n, layouts[1]), integers(m, n, layouts[2])
    D = torch.zeros(m, n, dtype=torch.float16, device="cuda") if layouts[2] is ROW else None
    D = torch.zeros(n, m, dtype=torch.float16, device="cuda").T if D is None else D

    def on_gpu(array: Any) -> Any:
        return torch.from_numpy(array).cuda() if array.flags.c_contiguous else torch.from_numpy(array.T).cuda().T

    arguments = GemmArguments(
        *(operation, (m, n, k), on_gpu(A), on_gpu(B), on_gpu(C), D),
        split_k_slices=slices,
        output_op=operation.epilogue_type(1.0, 3.0),
    )
    operation.run(arguments)
    arguments.sync()
    in_turn = reference.serial_slices(operation, k, slices)
    expected = reference.gemm(operation, A, B, C, 1.0, 3.0, slices=in_turn)
    np.testing.assert_array_equal(D.cpu().numpy(), expected)
    assert (expected != reference.gemm(operation, A, B, C, 1.0, 3.0)).any(), "slices make a difference"


@pytest.mark.parametrize("name", ["saturates", "wraps"])
def test_integers_beyond_int32(name: str) -> None:
    import torch

    functor = lambda output, length, *_: pycutlass.LinearCombination(output, length, s32, s32)  # noqa: E731
    if name == "wraps":
        simt: dict[str, Any] = {"instruction": (1, 1, 4), "opcode": SIMT, "stages": 2, "alignments": (4, 4, 1)}
        operation = ampere(s8, s32, s32, tile=(64, 64, 32), functor=functor, **simt)
    else:
        saturate: dict[str, Any] = {"instruction": (16, 8, 32), "math": Math.multiply_add_saturate}
        operation = ampere(s8, s32, s32, tile=(64, 64, 64), functor=functor, **saturate)
    compiler.add_module([operation])
    m, n, k = 16, 16, 135_168
    A, B = np.full((m, k), -128, np.int8), np.full((n, k), -128, np.int8).T
    A[1::2] = 127
    B[-64:, 1] = 127  # turns round at the end
    D = torch.zeros(m, n, dtype=torch.int32, device="cuda")
    arguments = GemmArguments(operation, (m, n, k), torch.from_numpy(A).cuda(), torch.from_numpy(B.T).cuda().T, None, D)
    operation.run(arguments)
    arguments.sync()
    np.testing.assert_array_equal(D.cpu().numpy(), reference.gemm(operation, A, B, None))


def test_a_beta_of_zero_in_the_compute_type_reads_nothing_of_c() -> None:
    import torch

    operation = kernel(pycutlass.identity, "f32")
    compiler.add_module([operation])
    A, B = (torch.randn(32, 32, device="cuda") for _ in range(2))
    C, D = torch.full((32, 32), float("nan"), device="cuda"), torch.empty(32, 32, device="cuda")
    for source in (C, None):
        scalars = operation.epilogue_type(1.0, 1e-60)
        arguments = GemmArguments(operation, (32, 32, 32), A, B.T, source, D, output_op=scalars)
        operation.run(arguments)
        arguments.sync()
        assert D.isfinite().all()


@pytest.mark.parametrize("library", ["numpy", "torch", "cupy"])
def test_an_interleaved_b_is_reordered_once(library: str) -> None:
    import torch
    from matrix import INTERLEAVED_KERNEL

    compiler.add_module([INTERLEAVED_KERNEL])
    rng = np.random.default_rng(0)
    m, n, k = 40, 96, 64
    A, B = rng.integers(-2, 3, (m, k)).astype(np.int8), rng.integers(-2, 3, (k, n)).astype(np.int8)
    exact = np.clip(A.astype(int) @ B.astype(int), -128, 127)
    there: Any = np.asarray
    if library == "torch":
        there = lambda array: torch.from_numpy(array).cuda()  # noqa: E731
    elif library == "cupy":
        there = pytest.importorskip("cupy").asarray
    plain = pycutlass.interleave_rows(B)
    copied = there(pycutlass.reorder_column(plain))
    on_gpu = pycutlass.reorder_column(there(plain))
    for given, reordered in (
        (there(plain), None),
        (there(plain), False),
        (copied, True),
        (on_gpu, None),
        (on_gpu, True),
    ):
        D = there(np.zeros(m * n, np.int8))
        packed = there(pycutlass.interleave_columns(A))
        arguments = GemmArguments(INTERLEAVED_KERNEL, (m, n, k), packed, given, None, D, reordered=reordered)
        INTERLEAVED_KERNEL.run(arguments)
        arguments.sync()
        found = D.get() if library == "cupy" else D.cpu().numpy() if library == "torch" else D
        np.testing.assert_array_equal(pycutlass.deinterleave_columns(found, m, n), exact)
    if library == "numpy":
        return
    with pytest.raises(pycutlass.errors.ArgumentError, match="in other memory: it may be a copy"):
        GemmArguments(INTERLEAVED_KERNEL, (m, n, k), packed, copied, None, D)
    if library != "torch":
        return
    given = there(plain)
    arguments = GemmArguments(INTERLEAVED_KERNEL, (m, n, k), packed, given, None, D)
    INTERLEAVED_KERNEL.run(arguments)
    given.zero_()
    with pytest.raises(pycutlass.errors.ArgumentError, match="has been written since"):
        INTERLEAVED_KERNEL.run(arguments)
    arguments.update(B=given)
    INTERLEAVED_KERNEL.run(arguments)
    arguments.sync()
    assert not D.any()


def test_a_reduction_before_its_gemm_is_refused() -> None:
    import torch

    from pycutlass import ReductionArguments, ReductionOperation, TensorDescription, cutlass

    operation = kernel(pycutlass.identity, "f32")
    described = TensorDescription(cutlass.float32, ROW, 1)
    reduction = ReductionOperation([4, 32], described, cutlass.float32, count=1)
    compiler.add_module([operation, reduction])
    A, B, D = (torch.randn(32, 32, device="cuda") for _ in range(3))
    mode = cutlass.gemm.Mode.GemmSplitKParallel
    arguments = GemmArguments(operation, (32, 32, 32), A, B.T, None, None, mode, split_k_slices=2)
    ends = ReductionArguments(reduction, (32, 32), 2, arguments.ptr_D, D)
    with pytest.raises(pycutlass.errors.ArgumentError, match="have not been computed yet"):
        reduction.run(ends)
    operation.run(arguments)
    del arguments
    reduction.run(ends)
    ends.sync()
    torch.testing.assert_close(D.double(), A.double() @ B.T.double(), rtol=1e-4, atol=1e-4)
