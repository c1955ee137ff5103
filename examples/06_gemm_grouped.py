"""Products of different sizes in one launch: the experts of a mixture, each with as many tokens as it was given.

A grouped kernel takes a list of tensors for each operand. It is launched with as many threadblocks as the GPU holds,
whatever the sizes are; an expert without tokens costs nothing. Other tensors, and other sizes, need no other kernel.
Where the GPU itself decides which expert gets which tokens, tables of sizes and addresses stay there. Every result is
compared with torch's own product in f64.

Run ``python examples/06_gemm_grouped.py``. It needs torch. Without a GPU the kernels are compiled for an A100, and the
operation's meaning is executed on the host.
"""

from __future__ import annotations

import torch

import pycutlass
from pycutlass import (
    GemmGroupedArguments,
    GemmOperationGrouped,
    LinearCombinationGeneric,
    MathInstruction,
    SchedulerMode,
    TensorDescription,
    TileDescription,
    cutlass,
)

EXPERTS, TOKENS, WIDTH, HIDDEN = 12, 400, 128, 192
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Go through a layer of experts with either scheduler."""
    by_device, by_host = describe(SchedulerMode.Device), describe(SchedulerMode.Host)
    pycutlass.compiler.add_module([by_device, by_host])
    weights = [random(HIDDEN, WIDTH).T for _ in range(EXPERTS)]
    for operation in (by_device, by_host):
        lists_of_tensors(operation, weights)
    if DEVICE == "cuda":
        tables_on_the_device(by_device, weights)
    else:
        print("tables: left out, since they are read by a GPU, and there is none")
    print("Passed.")


def describe(mode: SchedulerMode) -> GemmOperationGrouped:
    """Describe what each expert does: D = silu(A x B). `mode` says who finds out which tiles are whose."""
    f16, f32 = cutlass.float16, cutlass.float32
    instruction = MathInstruction([16, 8, 16], f16, f16, f32, cutlass.OpClass.TensorOp)
    tile = TileDescription([64, 64, 32], 4, [2, 2, 1], instruction)
    row_major = TensorDescription(f16, cutlass.RowMajor, 8)
    column_major = TensorDescription(f16, cutlass.ColumnMajor, 8)
    epilogue = LinearCombinationGeneric(pycutlass.silu(f32), f16, 8, f32, f32)
    swizzle = cutlass.IdentitySwizzle1
    return GemmOperationGrouped(80, tile, row_major, column_major, row_major, epilogue, swizzle, precompute_mode=mode)


def lists_of_tensors(operation: GemmOperationGrouped, weights: list[torch.Tensor]) -> None:
    """Launch on slices of one tensor, on other tokens, and on another distribution of them."""
    counts = distribute()
    tokens, results = random(TOKENS, WIDTH), poisoned(TOKENS, HIDDEN)
    arguments = GemmGroupedArguments(
        operation,
        problem_sizes(counts),
        A=tokens.split(counts),
        B=weights,
        C=None,
        D=results.split(counts),
        output_op=operation.epilogue_type(1.0, 0.0),
    )
    operation.run(arguments)
    compare("first tokens", tokens, weights, results, counts)

    tokens, results = random(TOKENS, WIDTH), poisoned(TOKENS, HIDDEN)
    arguments.update(A=tokens.split(counts), D=results.split(counts))
    operation.run(arguments)
    compare("other tokens", tokens, weights, results, counts)

    counts = distribute()
    results = poisoned(TOKENS, HIDDEN)
    sizes = [cutlass.gemm.GemmCoord(*size) for size in problem_sizes(counts)]
    arguments.update(problem_sizes=sizes, A=tokens.split(counts), D=results.split(counts))
    operation.run(arguments)
    compare("other counts", tokens, weights, results, counts)


def tables_on_the_device(operation: GemmOperationGrouped, weights: list[torch.Tensor]) -> None:
    """Launch on counts that only the device knows: nothing comes back to the host on the way to the launch."""
    tokens, results = random(TOKENS, WIDTH), poisoned(TOKENS, HIDDEN)
    chosen = torch.randint(EXPERTS, (TOKENS,), device=DEVICE)  # by a router
    counts = torch.bincount(chosen, minlength=EXPERTS)
    before = counts.cumsum(0) - counts
    bytes_of_a_row = torch.tensor([2 * WIDTH, 2 * HIDDEN], device=DEVICE)

    sizes = torch.tensor([[0, HIDDEN, WIDTH]] * EXPERTS, dtype=torch.int32, device=DEVICE)
    sizes[:, 0] = counts
    arguments = GemmGroupedArguments.from_device(
        operation,
        EXPERTS,
        sizes,
        ptr_A=tokens.data_ptr() + before * bytes_of_a_row[0],
        ptr_B=torch.tensor([weight.data_ptr() for weight in weights], device=DEVICE),
        ptr_C=None,
        ptr_D=results.data_ptr() + before * bytes_of_a_row[1],
        lda=torch.full((EXPERTS,), WIDTH, device=DEVICE),
        ldb=torch.full((EXPERTS,), WIDTH, device=DEVICE),
        ldc=None,
        ldd=torch.full((EXPERTS,), HIDDEN, device=DEVICE),
    )
    operation.run(arguments)
    compare("tables", tokens, weights, results, counts.tolist())


def distribute() -> list[int]:
    """Return how many tokens each expert gets: one gets none, all get TOKENS."""
    cuts = torch.randint(TOKENS + 1, (EXPERTS - 2,)).sort().values.tolist()
    counts = [end - begin for begin, end in zip([0, *cuts], [*cuts, TOKENS], strict=True)]
    return [*counts[:3], 0, *counts[3:]]


def problem_sizes(counts: list[int]) -> list[tuple[int, int, int]]:
    """Return M, N, K of every expert's product."""
    return [(count, HIDDEN, WIDTH) for count in counts]


def random(rows: int, columns: int) -> torch.Tensor:
    """Return fresh normal numbers."""
    return torch.randn(rows, columns, device=DEVICE).half()


def poisoned(rows: int, columns: int) -> torch.Tensor:
    """Return NaNs, so that an element which the kernel leaves alone is noticed."""
    return torch.full((rows, columns), float("nan"), dtype=torch.float16, device=DEVICE)


def compare(
    what: str, tokens: torch.Tensor, weights: list[torch.Tensor], results: torch.Tensor, counts: list[int]
) -> None:
    """Exit unless each element is within its rounding to f16 and those of a sum in f32."""
    used = 0.0
    for A, B, D in zip(tokens.split(counts), weights, results.split(counts), strict=True):
        if not len(A):
            continue
        exact, sizes = A.double() @ B.double(), A.double().abs() @ B.double().abs()
        allowed = WIDTH * 2.0**-23 * sizes + 2.0**-11 * exact.abs() + 2.0**-10
        used = max(used, ((D.double() - torch.nn.functional.silu(exact)).abs() / allowed).max().item())
        if not used <= 1:  # NaN fails as well
            raise SystemExit(f"Failed: {what}: D is not silu(A x B)")
    print(f"{what}, {min(counts)} to {max(counts)} for an expert: largest error is {used:.2f} of what is allowed")


if __name__ == "__main__":
    main()
