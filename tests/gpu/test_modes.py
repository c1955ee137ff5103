"""What the matrix does not reach: shared operands, tables of addresses, updates, scalars to the bit, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_matches, poisoned, random_matrix, random_values
from matrix import INTERLEAVED_KERNEL, KERNELS, REDUCTIONS, Mode

import pycutlass
from pycutlass.errors import AlignmentError, ArgumentError, ArgumentTypeError

M, N, K, BATCH = 80, 48, 64, 5
OPERATION = KERNELS["f16-f16-tnt"]


def test_operands_may_be_shared_by_a_batch() -> None:
    A, B = random_matrix(OPERATION.A, M, K), random_matrix(OPERATION.B, K, N, BATCH)
    C, D = random_matrix(OPERATION.C, M, N).expand(BATCH, M, N), poisoned(OPERATION.C, M, N, BATCH)
    arguments = pycutlass.GemmArguments(
        OPERATION, (M, N, K), A, B, C, D, Mode.Batched, batch=BATCH, output_op=OPERATION.epilogue_type(1.0, 2.0)
    )
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A.expand(BATCH, M, K), B, C, D, 1.0, 2.0)


def test_batches_may_be_strided_views() -> None:
    """Heads of an attention layer: (sequence, heads, width) seen as a batch of heads."""
    import torch

    everything = torch.randn(M, BATCH, K, device="cuda").half()
    A = everything.permute(1, 0, 2)
    B, D = random_matrix(OPERATION.B, K, N, BATCH), torch.full((M, BATCH, N), float("nan"), device="cuda").half()
    out = D.permute(1, 0, 2)
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), A, B, None, out, Mode.Batched, batch=BATCH)
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, None, out)


def test_tables_of_addresses() -> None:
    import torch

    A, B = random_matrix(OPERATION.A, M, K, BATCH), random_matrix(OPERATION.B, K, N, BATCH)
    D = poisoned(OPERATION.C, M, N, BATCH)
    order = torch.randperm(BATCH).tolist()
    tables = [torch.tensor([x[i].data_ptr() for i in order], device="cuda") for x in (A, B, D)]
    arguments = pycutlass.GemmArguments(
        OPERATION, (M, N, K), tables[0], tables[1], None, tables[2], Mode.Array, batch=BATCH
    )
    OPERATION.run(arguments)
    arguments.sync()
    assert_matches(OPERATION, A, B, None, D)
    with pytest.raises(ArgumentError, match="must have shape"):
        pycutlass.GemmArguments(OPERATION, (M, N, K), *tables[:2], None, tables[2][:2], Mode.Array, batch=BATCH)


@pytest.mark.parametrize("mode", [Mode.Batched, Mode.Array])
def test_numpy_batches(mode: object) -> None:
    rng = np.random.default_rng()
    A, B = rng.standard_normal((BATCH, M, K)).astype("f2"), rng.standard_normal((BATCH, N, K)).astype("f2")
    D = np.full((BATCH, M, N), np.nan, "f2")
    operands = (A, B.transpose(0, 2, 1), None, D)
    if mode == Mode.Array:
        operands = tuple(None if x is None else list(x) for x in operands)
    arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), *operands, mode, batch=BATCH)
    OPERATION.run(arguments)
    arguments.sync()
    exact = A.astype(float) @ B.transpose(0, 2, 1).astype(float)
    np.testing.assert_allclose(D.astype(float), exact, rtol=2e-3, atol=2e-3)


def test_updates_in_every_mode() -> None:
    for mode, batch in ((Mode.Batched, (BATCH,)), (Mode.Array, (BATCH,))):
        A, B = random_matrix(OPERATION.A, M, K, *batch), random_matrix(OPERATION.B, K, N, *batch)
        D = poisoned(OPERATION.C, M, N, *batch)
        shape = (lambda x: x) if mode == Mode.Batched else list
        arguments = pycutlass.GemmArguments(OPERATION, (M, N, K), shape(A), shape(B), None, shape(D), mode, batch=BATCH)
        OPERATION.run(arguments)
        A, D = random_matrix(OPERATION.A, M, K, *batch), poisoned(OPERATION.C, M, N, *batch)
        arguments.update(A=shape(A), D=shape(D))
        OPERATION.run(arguments)
        arguments.sync()
        assert_matches(OPERATION, A, B, None, D)


def test_parallel_split_k_can_run_again_and_be_captured() -> None:
    import torch

    reduction = REDUCTIONS["f16-f16-tnt"]
    A, B, D = random_matrix(OPERATION.A, M, 512), random_matrix(OPERATION.B, 512, N), poisoned(OPERATION.C, M, N)
    arguments = pycutlass.GemmArguments(
        OPERATION, (M, N, 512), A, B, None, D, Mode.GemmSplitKParallel, split_k_slices=5
    )
    ends = pycutlass.ReductionArguments(reduction, (M, N), 5, arguments.ptr_D, D, None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        OPERATION.run(arguments)
        reduction.run(ends)
    for _ in range(3):
        A.copy_(random_matrix(OPERATION.A, M, 512))
        D.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_matches(OPERATION, A, B, None, D)


def test_partial_sums_go_with_the_last_arguments_that_have_them() -> None:
    import torch

    reduction = REDUCTIONS["f16-f16-tnt"]
    A, B, D = random_matrix(OPERATION.A, M, 512), random_matrix(OPERATION.B, 512, N), poisoned(OPERATION.C, M, N)
    with torch.cuda.stream(torch.cuda.Stream()):
        arguments = pycutlass.GemmArguments(
            OPERATION, (M, N, 512), A, B, None, D, Mode.GemmSplitKParallel, split_k_slices=4
        )
        assert pycutlass.get_allocated_size() == 4 * 4 * M * N
        for partitions, size in ((3, (M, N)), (5, (M, N)), (4, (N, M))):
            with pytest.raises(ArgumentError, match=f"this one has 4 planes of {M} x {N}"):
                pycutlass.ReductionArguments(reduction, size, partitions, arguments.ptr_D, D.reshape(-1), None)
        ends = pycutlass.ReductionArguments(reduction, (M, N), 4, arguments.ptr_D, D, None)
        OPERATION.run(arguments)
        del arguments
        reduction.run(ends)
        ends.sync()
    assert_matches(OPERATION, A, B, None, D)
    assert pycutlass.get_allocated_size() == 4 * 4 * M * N
    del ends
    assert pycutlass.get_allocated_size() == 0


def test_stream_k_runs_again_and_in_graphs() -> None:
    import torch

    operation = KERNELS["f16-streamk"]
    m, n, k = 192, 192, 4096
    A, B, D = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n), poisoned(operation.C, m, n)
    arguments = pycutlass.GemmArguments(operation, (m, n, k), A, B, None, D)
    for _ in range(3):
        D.fill_(float("nan"))
        operation.run(arguments)
        arguments.sync()
        assert_matches(operation, A, B, None, D)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    D.fill_(float("nan"))
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert_matches(operation, A, B, None, D)


@pytest.mark.parametrize(("m", "n", "k"), [(32, 32, 32), (64, 96, 128), (1, 544, 224), (130, 32, 64)])
def test_interleaved_int8(m: int, n: int, k: int) -> None:
    import torch

    A, B = (torch.randint(-4, 5, shape, device="cuda", dtype=torch.int8) for shape in ((m, k), (k, n)))
    C, D = torch.randint(-8, 9, (m, n), device="cuda", dtype=torch.int8), torch.full((m * n,), -128, device="cuda")
    D = D.to(torch.int8)
    packed_B = pycutlass.reorder_column(pycutlass.interleave_rows(B))
    arguments = pycutlass.GemmArguments(
        INTERLEAVED_KERNEL,
        (m, n, k),
        pycutlass.interleave_columns(A),
        packed_B,
        pycutlass.interleave_columns(C),
        D,
        output_op=INTERLEAVED_KERNEL.epilogue_type(1.0, 2.0),
    )
    INTERLEAVED_KERNEL.run(arguments)
    arguments.sync()
    exact = (A.double() @ B.double() + 2 * C.double()).clamp(-128, 127).to(torch.int8)
    assert torch.equal(pycutlass.deinterleave_columns(D, m, n), exact)


def test_f64_scalars_to_the_bit() -> None:
    operation = KERNELS["f64-tnt"]
    A, B, C = random_matrix(operation.A, M, K), random_matrix(operation.B, K, N), random_matrix(operation.C, M, N)
    D = poisoned(operation.C, M, N)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, C, D, output_op=operation.epilogue_type(0.1, 0.3))
    operation.run(arguments)
    arguments.sync()
    exact = 0.1 * (A.cpu().numpy() @ B.cpu().numpy()) + 0.3 * C.cpu().numpy()
    np.testing.assert_allclose(D.cpu().numpy(), exact, rtol=1e-12, atol=1e-12)


def test_refusals() -> None:
    A, B, D = random_matrix(OPERATION.A, M, K), random_matrix(OPERATION.B, K, N), poisoned(OPERATION.C, M, N)

    def make(operation=OPERATION, size=(M, N, K), a=A, b=B, c=None, d=D, mode=Mode.Gemm, **options):  # type: ignore[no-untyped-def]
        return pycutlass.GemmArguments(operation, size, a, b, c, d, mode, **options)

    with pytest.raises(ArgumentError, match="split_k_slices must be at most 8"):
        make(split_k_slices=9)
    with pytest.raises(ArgumentError, match="batch belongs to"):
        make(batch=2)
    with pytest.raises(ArgumentError, match="split_k_slices belongs to"):
        make(mode=Mode.Batched, split_k_slices=2)
    with pytest.raises(ArgumentError, match="must be from 1 to"):
        make(split_k_slices=0)
    with pytest.raises(ArgumentError, match="has 2 tensors for batch=3"):
        make(mode=Mode.Array, a=[A, A], b=[B] * 3, d=[D] * 3, batch=3)
    with pytest.raises(ArgumentTypeError, match=r"operand A\[1\] must be float16"):
        make(mode=Mode.Array, a=[A, A.float()], b=[B] * 2, d=[D, D.clone()], batch=2)
    with pytest.raises(ArgumentError, match="must have shape"):
        make(mode=Mode.Batched, a=random_matrix(OPERATION.A, M, K, 3), batch=2)
    with pytest.raises(ArgumentError, match="overlap"):
        make(mode=Mode.Batched, d=D.expand(2, M, N), batch=2)
    with pytest.raises(ArgumentError, match="FastLinearCombinationClamp holds for K of at most 256"):
        operation = KERNELS["s8-s8-fast-tnt"]
        a, b = random_matrix(operation.A, M, 512), random_matrix(operation.B, 512, N)
        make(operation, (M, N, 512), a, b, None, poisoned(operation.C, M, N))
    with pytest.raises((ArgumentError, AlignmentError), match="bias C"):
        make(c=random_values(OPERATION.C, (N // 2,)), bias=True, output_op=OPERATION.epilogue_type(1, 1))
