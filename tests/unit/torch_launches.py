"""One launch of each family on tensors of torch in host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from conv_operands import SIMT, size
from convolutions import fprop
from descriptions import COLUMN, ROW, ampere
from groups import grouped

from pycutlass import (
    Conv2dArguments,
    GemmArguments,
    GemmGroupedArguments,
    LinearCombination,
    ReductionArguments,
    ReductionOperation,
    TensorDescription,
    cutlass,
)

__all__ = ["FAMILIES", "Launch"]

Mode = cutlass.gemm.Mode


class Launch:
    """An operation, its arguments, the tensors that they were made with, and what update calls them."""

    def __init__(self, make: Callable[..., Any], operation: Any, tensors: dict[str, Any]) -> None:
        self.make, self.operation, self.tensors = make, operation, tensors
        self.arguments = make(**tensors)

    def one(self, name: str) -> torch.Tensor:
        """Return a tensor of an operand: the last, where it has a list of them."""
        operand = self.tensors[name]
        return operand[-1] if isinstance(operand, list) else operand

    def run(self) -> None:
        self.operation.run(self.arguments)
        self.arguments.sync()


def matrix(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def gemm() -> Launch:
    operation = ampere("f32_simt", (ROW, ROW, ROW))

    def make(**tensors: Any) -> Any:
        output_op = operation.epilogue_type(1.0, 1.0)
        return GemmArguments(operation, (6, 8, 4), **tensors, output_op=output_op)

    return Launch(make, operation, {"A": matrix(6, 4), "B": matrix(4, 8), "C": matrix(6, 8), "D": matrix(6, 8)})


def batched() -> Launch:
    operation = ampere("f32_simt", (ROW, ROW, ROW))

    def make(**tensors: Any) -> Any:
        return GemmArguments(operation, (6, 8, 4), **tensors, gemm_mode=Mode.Batched, batch=3)

    return Launch(make, operation, {"A": matrix(3, 6, 4), "B": matrix(4, 8), "D": matrix(3, 6, 8)})


def array() -> Launch:
    operation = ampere("f32_simt", (ROW, ROW, ROW))

    def make(**tensors: Any) -> Any:
        return GemmArguments(operation, (6, 8, 4), **tensors, gemm_mode=Mode.Array, batch=3)

    lists = {"A": (6, 4), "B": (4, 8), "D": (6, 8)}
    return Launch(make, operation, {name: [matrix(*shape) for _ in range(3)] for name, shape in lists.items()})


def array_in_one_tensor() -> Launch:
    launch = array()
    return Launch(launch.make, launch.operation, {name: torch.stack(t) for name, t in launch.tensors.items()})


def group() -> Launch:
    operation = grouped("f32_simt", (ROW, ROW, ROW))
    sizes = [(6, 8, 4), (2, 5, 3)]

    def make(**tensors: Any) -> Any:
        return GemmGroupedArguments(operation, sizes, **tensors)

    tensors = {"A": [matrix(m, k) for m, n, k in sizes], "B": [matrix(k, n) for m, n, k in sizes]}
    return Launch(make, operation, {**tensors, "D": [matrix(m, n) for m, n, k in sizes]})


def group_in_one_tensor() -> Launch:
    operation = grouped("f32_simt", (ROW, ROW, ROW))

    def make(**tensors: Any) -> Any:
        return GemmGroupedArguments(operation, [(6, 8, 4)] * 3, **tensors)

    return Launch(make, operation, {"A": matrix(3, 6, 4), "B": matrix(3, 4, 8), "D": matrix(3, 6, 8)})


def convolution() -> Launch:
    operation, problem = SIMT[fprop], size()

    def make(**tensors: Any) -> Any:
        return Conv2dArguments(operation, problem, **tensors)

    def last(*shape: int) -> torch.Tensor:
        return matrix(*shape).contiguous(memory_format=torch.channels_last)

    tensors = {"A": last(2, 16, 9, 8), "B": last(24, 16, 3, 3), "D": last(2, 24, problem.P, problem.Q)}
    return Launch(make, operation, tensors)


def reduction() -> Launch:
    described = TensorDescription(cutlass.float32, ROW)
    gemm, f32 = ampere("f32_simt", (ROW, COLUMN, ROW)), cutlass.float32
    operation = ReductionOperation(
        cutlass.MatrixCoord(4, 32), described, f32, epilogue_functor=LinearCombination(f32, 1), count=1
    )
    sums = GemmArguments(
        gemm, (6, 8, 64), matrix(6, 64), matrix(8, 64).T, gemm_mode=Mode.GemmSplitKParallel, split_k_slices=2
    )
    gemm.run(sums)

    def make(C: Any, D: Any) -> Any:
        arguments = ReductionArguments(
            operation, [6, 8], 2, sums.ptr_D, D, C, output_op=operation.epilogue_type(1.0, 1.0)
        )
        arguments._sums = sums  # to live as long
        return arguments

    return Launch(make, operation, {"C": matrix(6, 8), "D": matrix(6, 8)})


#: A launch for each, made anew.
FAMILIES: dict[str, Callable[[], Launch]] = {
    each.__name__: each
    for each in (gemm, batched, array, array_in_one_tensor, group, group_in_one_tensor, convolution, reduction)
}
