"""D of another type and layout than C."""

from __future__ import annotations

import pytest
import torch
from apart import APART
from cases import assert_matches, poisoned, random_matrix

import pycutlass


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("size", [(128, 128, 64), (264, 136, 72), (8, 8, 8), (520, 1032, 200)])
@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_the_result_is_in_the_type_and_layout_of_d(name: str, size: tuple[int, int, int], beta: float) -> None:
    operation = APART[name]
    pycutlass.compiler.add_module([operation])
    m, n, k = size
    A, B = random_matrix(operation.A, m, k), random_matrix(operation.B, k, n)
    C = random_matrix(operation.C, m, n) if beta else None
    D = poisoned(operation.D, m, n)
    scalars = operation.epilogue_type(1.5, beta)
    arguments = pycutlass.GemmArguments(operation, size, A, B, C, D, output_op=scalars)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, C, D, 1.5, beta)
    E = torch.empty_like(D)
    arguments.update(D=E)
    operation.run(arguments)
    torch.cuda.synchronize()
    assert torch.equal(D, E)


def test_a_batch() -> None:
    operation = APART["wider, transposed"]
    pycutlass.compiler.add_module([operation])
    batch, m, n, k = 3, 136, 264, 64
    A = torch.randn(batch, m, k, device="cuda", dtype=torch.float16)
    B = torch.randn(batch, n, k, device="cuda", dtype=torch.float16).transpose(1, 2)
    C = torch.randn(batch, m, n, device="cuda", dtype=torch.float16)
    for source, beta in ((C, 1.0), (None, 0.0)):
        D = torch.full((batch, n, m), float("nan"), device="cuda").transpose(1, 2)
        arguments = pycutlass.GemmArguments(
            *(operation, (m, n, k), A, B, source, D, pycutlass.cutlass.gemm.Mode.Batched),
            output_op=operation.epilogue_type(1.0, beta),
            batch=batch,
        )
        operation.run(arguments)
        arguments.sync()
        exact = A.double() @ B.double() + beta * C.double()
        torch.testing.assert_close(D.double(), exact, rtol=1e-4, atol=1e-4)
