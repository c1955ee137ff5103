"""Kernels with more than 4096 bytes of parameters."""

from __future__ import annotations

from typing import Any

import pytest
from cases import assert_matches, poisoned, random_matrix
from descriptions import native_parts, parts
from wide_parameters import WideParameters

import pycutlass

M, N, K = 264, 136, 72


@pytest.mark.parametrize("described", [parts("f16"), native_parts((128, 128, 64), (2, 1))], ids=["ampere", "hopper"])
def test_a_kernel_with_many_parameters_computes_and_is_updated(described: dict[str, Any]) -> None:
    import torch

    operation = WideParameters(**described)
    pycutlass.compiler.add_module([operation])
    A, B, D = random_matrix(operation.A, M, K), random_matrix(operation.B, K, N), poisoned(operation.C, M, N)
    arguments = pycutlass.GemmArguments(operation, (M, N, K), A, B, None, D)
    operation.run(arguments)
    arguments.sync()
    assert_matches(operation, A, B, None, D)

    other, E = random_matrix(operation.A, M, K), poisoned(operation.C, M, N)
    arguments.update(A=other, D=E)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operation.run(arguments)
    E.fill_(float("nan"))
    graph.replay()
    arguments.sync()
    assert_matches(operation, other, B, None, E)
