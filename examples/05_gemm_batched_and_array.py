"""Many f16 products in one launch: batches at a constant step, and arrays of tensors anywhere in memory.

``Mode.Batched`` takes tensors of three dimensions with any step between their matrices: the heads of an attention layer
are multiplied where they lie, in (sequence, heads, width), and a two-dimensional operand is shared by the whole batch.
``Mode.Array`` takes a list of tensors for each operand, or a tensor of their addresses on the GPU. Hopper-native
operations have a kernel for that alone, and each matrix may have an alpha and a beta of its own. Every result is
compared with torch's own product in f64.

Run ``python examples/05_gemm_batched_and_array.py``. It needs torch. Without a GPU the kernel is compiled for an A100,
and the operation's meaning is executed on the host.
"""

from __future__ import annotations

from typing import Any

import torch

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    LinearCombination,
    MathInstruction,
    TensorDescription,
    TileDescription,
    cutlass,
)

SEQUENCE, HEADS, WIDTH = 96, 6, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Mode = cutlass.gemm.Mode


def main() -> None:
    """Launch one kernel in both modes."""
    operation = describe()
    pycutlass.compiler.add_module([operation])
    attention_scores(operation)
    shared_weight(operation)
    separate_tensors(operation)
    if DEVICE == "cuda":
        table_of_addresses(operation)
    if DEVICE == "cpu" or torch.cuda.get_device_capability() == (9, 0):
        on_hopper()
    print("Passed.")


def describe() -> GemmOperationUniversal:
    """Describe one product: a mode is chosen at launch, any kernel with such operands can run in all."""
    f16, f32 = cutlass.float16, cutlass.float32
    instruction = MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
    tile = TileDescription([64, 64, 32], 4, [2, 2, 1], instruction)
    row_major = TensorDescription(f16, cutlass.RowMajor, 8)
    column_major = TensorDescription(f16, cutlass.ColumnMajor, 8)
    return GemmOperationUniversal(80, tile, row_major, column_major, row_major, LinearCombination(f16, 8, f32, f32))


def attention_scores(operation: GemmOperationUniversal) -> None:
    """Multiply queries by keys, head by head, without moving either."""
    queries, keys = random(SEQUENCE, HEADS, WIDTH).movedim(1, 0), random(SEQUENCE, HEADS, WIDTH).movedim(1, 0)
    scores = poisoned(HEADS, SEQUENCE, SEQUENCE)
    arguments = GemmArguments(
        operation=operation,
        problem_size=(SEQUENCE, SEQUENCE, WIDTH),
        A=queries,
        B=keys.mT,
        D=scores,
        gemm_mode=Mode.Batched,
        batch=HEADS,
        output_op=operation.epilogue_type(WIDTH**-0.5),
    )
    operation.run(arguments)
    compare("attention scores", WIDTH**-0.5, queries, keys.mT, scores)


def shared_weight(operation: GemmOperationUniversal) -> None:
    """Multiply every matrix of a batch by the same one."""
    x, weight, y = random(5, 40, WIDTH), random(48, WIDTH), poisoned(5, 40, 48)
    arguments = GemmArguments(operation, (40, 48, WIDTH), A=x, B=weight.T, D=y, gemm_mode=Mode.Batched, batch=5)
    operation.run(arguments)
    compare("a shared weight", 1.0, x, weight.T, y)


def separate_tensors(operation: GemmOperationUniversal) -> None:
    """Multiply tensors that were allocated one by one; each operand has one leading dimension."""
    A, B, D = ([make(*shape) for _ in range(3)] for make, shape in three_of(40, 48, WIDTH))
    arguments = GemmArguments(
        operation, (40, 48, WIDTH), A=A, B=[each.T for each in B], D=D, gemm_mode=Mode.Array, batch=3
    )
    operation.run(arguments)
    compare("an array of tensors", 1.0, torch.stack(A), torch.stack(B).mT, torch.stack(D))


def table_of_addresses(operation: GemmOperationUniversal) -> None:
    """Let tables on the GPU, which another kernel may have written, say which matrices are multiplied."""
    A, B, D = (make(7, *shape) for make, shape in three_of(40, 48, WIDTH))
    chosen = [5, 0, 3]
    tables = [torch.tensor([each[i].data_ptr() for i in chosen], device=DEVICE) for each in (A, B, D)]
    arguments = GemmArguments(
        operation, (40, 48, WIDTH), A=tables[0], B=tables[1], D=tables[2], gemm_mode=Mode.Array, batch=len(chosen)
    )
    operation.run(arguments)
    compare("a table of addresses", 1.0, A[chosen], B[chosen].mT, D[chosen])
    if not D[[1, 2, 4, 6]].isnan().all():
        raise SystemExit("Failed: a matrix that was not chosen has changed")


def on_hopper() -> None:
    """Launch both modes of a Hopper-native kernel; on the GPU with scalars of each matrix, of which one drops C."""
    f16, f32 = cutlass.float16, cutlass.float32
    instruction = MathInstruction(None, f16, f16, f32, cutlass.OpClass.TensorOp)
    tile = TileDescription([64, 128, 64], None, None, instruction, [1, 1])
    row_major, column_major = (TensorDescription(f16, layout, 8) for layout in (cutlass.RowMajor, cutlass.ColumnMajor))
    functor = LinearCombination(f16, 8, f32, f32)
    operation = GemmOperationUniversal(90, tile, row_major, column_major, row_major, functor)
    pycutlass.compiler.add_module([operation, operation.array])
    separate_tensors(operation)
    if DEVICE == "cpu":
        return
    x, weight, y = random(3, 40, WIDTH), random(3, 48, WIDTH), poisoned(3, 40, 48)
    added = random(3, 40, 48)
    added[1] = float("nan")
    alpha, beta = torch.tensor([1.0, 0.5, -2.0], device=DEVICE), torch.tensor([1.0, 0.0, 1.0], device=DEVICE)
    arguments = GemmArguments(
        operation,
        (40, 48, WIDTH),
        A=x,
        B=weight.mT,
        C=added,
        D=y,
        gemm_mode=Mode.Batched,
        batch=3,
        output_op=operation.epilogue_type(alpha, beta),
    )
    operation.run(arguments)
    exact = alpha.view(3, 1, 1) * (x.double() @ weight.double().mT) + added.double().nan_to_num() * beta.view(3, 1, 1)
    print(f"scalars of each matrix on {DEVICE}: largest error is {(y.double() - exact).abs().max().item():.1e}")
    torch.testing.assert_close(y.double(), exact, rtol=2.0**-10, atol=1e-4)


def three_of(m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    """Return how A, B (by columns) and D are made, and their shapes in memory."""
    return (random, (m, k)), (random, (n, k)), (poisoned, (m, n))


def random(*shape: int) -> torch.Tensor:
    """Return fresh normal numbers."""
    return torch.randn(shape, device=DEVICE).half()


def poisoned(*shape: int) -> torch.Tensor:
    """Return NaNs, so that an element which the kernel leaves alone is noticed."""
    return torch.full(shape, float("nan"), dtype=torch.float16, device=DEVICE)


def compare(what: str, alpha: float, A: torch.Tensor, B: torch.Tensor, D: torch.Tensor) -> None:
    """Exit unless each element is within its rounding to f16 and the roundings of a sum of K products in f32."""
    A, B, D = A.double(), B.double(), D.double()
    exact = alpha * (A @ B)
    sizes = abs(alpha) * (A.abs() @ B.abs())
    used = ((D - exact).abs() / (2.0**-11 * exact.abs() + A.shape[-1] * 2.0**-23 * sizes)).max().item()
    print(f"{what} on {DEVICE}: largest error is {used:.2f} of what is allowed")
    if not used <= 1:  # NaN fails as well
        raise SystemExit("Failed: D is not alpha * A x B")


if __name__ == "__main__":
    main()
