"""Operations, tensors and comparisons that the GPU tests share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pycutlass
from pycutlass import cutlass, reference
from pycutlass.operation import GemmOperationUniversal
from pycutlass.types import element

ROW, COLUMN = cutlass.RowMajor, cutlass.ColumnMajor
LAYOUTS = list(itertools.product((ROW, COLUMN), repeat=3))
TENSOR_OP, SIMT = cutlass.OpClass.TensorOp, cutlass.OpClass.Simt
f16, bf16, tf32 = cutlass.float16, cutlass.bfloat16, cutlass.tfloat32
f32, f64 = cutlass.float32, cutlass.float64
s8, s32 = cutlass.int8, cutlass.int32
Math = pycutlass.MathOperation


def ampere(
    operand: Any,
    accumulator: Any,
    output: Any,
    layouts: tuple[Any, Any, Any] = (ROW, COLUMN, ROW),
    *,
    instruction: tuple[int, int, int] = (16, 8, 16),
    tile: tuple[int, int, int] = (128, 128, 32),
    warps: tuple[int, int, int] = (2, 2, 1),
    stages: int = 3,
    alignments: tuple[int, int, int] | None = None,
    opcode: Any = TENSOR_OP,
    math: Any = Math.multiply_add,
    swizzle: Any = cutlass.IdentitySwizzle1,
    functor: Any = None,
    capability: int = 80,
) -> GemmOperationUniversal:
    """Return an Ampere-style GEMM; alignments are the largest by default, 1 for SIMT.

    `functor` is a function of output type, alignment, accumulator and compute type; a linear combination by default.
    """
    if alignments is None:
        # f64 tensor-core kernels load single elements, as SIMT ones do.
        widest = 128 // element(operand).bits if opcode == TENSOR_OP and operand is not f64 else 1
        alignments = (widest, widest, 128 // element(output).bits if widest > 1 else 1)
    description = pycutlass.MathInstruction(instruction, operand, operand, accumulator, opcode, math)
    tile_description = pycutlass.TileDescription(tile, stages, warps, description)
    types = (operand, operand, output)
    A, B, C = (pycutlass.TensorDescription(*of) for of in zip(types, layouts, alignments, strict=True))
    compute = f64 if accumulator is f64 else f16 if accumulator is f16 else f32
    made = (functor or pycutlass.LinearCombination)(output, C.alignment, accumulator, compute)
    return GemmOperationUniversal(capability, tile_description, A, B, C, made, swizzle)


def hopper(
    operand: Any,
    output: Any,
    tile: tuple[int, int, int],
    cluster: tuple[int, int],
    schedule: pycutlass.KernelSchedule,
    stages: int | None = None,
    swizzle: Any = cutlass.IdentitySwizzle1,
    functor: Any = pycutlass.LinearCombination,
) -> GemmOperationUniversal:
    """Return a Hopper-native GEMM."""
    description = pycutlass.MathInstruction(None, operand, operand, f32, TENSOR_OP)
    tile_description = pycutlass.TileDescription(tile, stages, None, description, cluster, schedule)
    A, B = pycutlass.TensorDescription(operand, ROW, 8), pycutlass.TensorDescription(operand, COLUMN, 8)
    C = pycutlass.TensorDescription(output, ROW, 128 // element(output).bits)
    epilogue = functor(output, C.alignment, f32, f32)
    return GemmOperationUniversal(90, tile_description, A, B, C, epilogue, swizzle)


def _operations() -> dict[str, GemmOperationUniversal]:
    short = {ROW: "t", COLUMN: "n"}
    kinds: dict[str, dict[str, Any]] = {
        "f16": {"types": (f16, f32, f16)},
        "f16_acc16": {"types": (f16, f16, f16)},
        "f16_out32": {"types": (f16, f32, f32)},
        "bf16": {"types": (bf16, f32, bf16)},
        "tf32": {"types": (tf32, f32, f32), "instruction": (16, 8, 8), "tile": (128, 128, 16)},
        "f32": {"types": (f32, f32, f32), "instruction": (16, 8, 8), "tile": (128, 128, 16)},
        "f32_simt": {
            "types": (f32, f32, f32),
            "instruction": (1, 1, 1),
            "tile": (128, 128, 8),
            "warps": (4, 2, 1),
            "stages": 4,
            "opcode": SIMT,
        },
    }
    operations = {}
    for name, kind in kinds.items():
        for layouts in LAYOUTS:
            key = f"{name}_{''.join(short[layout] for layout in layouts)}"
            options = {option: value for option, value in kind.items() if option != "types"}
            operations[key] = ampere(*kind["types"], layouts, **options)
    for alignment in (2, 4):  # cp.async moves at least 4 bytes
        operations[f"f16_align{alignment}"] = ampere(f16, f32, f16, alignments=(alignment,) * 3)
    operations["f32_align1"] = ampere(f32, f32, f32, instruction=(16, 8, 8), tile=(128, 128, 16), alignments=(1, 1, 1))
    for size, swizzle in ((2, cutlass.IdentitySwizzle2), (4, cutlass.IdentitySwizzle4), (8, cutlass.IdentitySwizzle8)):
        operations[f"f16_swizzle{size}"] = ampere(f16, f32, f16, swizzle=swizzle, tile=(64, 64, 32))
    operations["f64"] = ampere(f64, f64, f64, instruction=(8, 8, 4), tile=(64, 64, 16), stages=4)
    operations["f64_simt"] = ampere(
        f64, f64, f64, instruction=(1, 1, 1), tile=(128, 64, 8), warps=(4, 2, 1), stages=3, opcode=SIMT
    )
    operations["f16_large"] = ampere(f16, f32, f16, tile=(128, 256, 64), warps=(2, 4, 1))
    return operations


def _hopper_operations() -> dict[str, GemmOperationUniversal]:
    pingpong, cooperative = pycutlass.KernelSchedule.Pingpong, pycutlass.KernelSchedule.Cooperative
    return {
        "hopper_cooperative_2x1": hopper(
            f16, f16, (128, 256, 64), (2, 1), cooperative, swizzle=cutlass.IdentitySwizzle4
        ),
        "hopper_cooperative_1x2": hopper(bf16, bf16, (256, 128, 64), (1, 2), cooperative),
        "hopper_cooperative_2x2": hopper(f16, f32, (128, 128, 64), (2, 2), cooperative),
        "hopper_cooperative_stages": hopper(f16, f16, (128, 128, 64), (1, 1), cooperative, stages=3),
        "hopper_pingpong": hopper(f16, f16, (64, 128, 64), (1, 1), pingpong),
        "hopper_pingpong_2x1": hopper(bf16, bf16, (128, 128, 64), (2, 1), pingpong),
        "hopper_pingpong_out32": hopper(bf16, f32, (64, 64, 128), (1, 1), pingpong),
        "hopper_cooperative_out32": hopper(f16, f32, (256, 80, 64), (1, 1), cooperative),
        "hopper_cooperative_16_columns": hopper(f16, bf16, (128, 16, 64), (1, 2), cooperative),
        "hopper_pingpong_48_columns": hopper(bf16, f32, (64, 48, 64), (1, 1), pingpong),
        "hopper_pingpong_gelu": hopper(
            f16,
            f16,
            (128, 128, 64),
            (2, 1),
            pingpong,
            functor=lambda *types: pycutlass.LinearCombinationGeneric(pycutlass.gelu(), *types),
        ),
        "hopper_pingpong_192_rows": hopper(f16, f16, (192, 112, 64), (1, 1), pingpong),
    }


HOPPER = _hopper_operations()
OPERATIONS = {**_operations(), **HOPPER}


def torch_dtype(tag: Any) -> Any:
    """Return torch's dtype for an element type."""
    import torch

    return getattr(torch, element(tag).dtype_name)


def random_values(description: pycutlass.TensorDescription, shape: tuple[int, ...]) -> Any:
    """Return fresh random values: normal for floating-point types, small integers for int8."""
    import torch

    dtype = torch_dtype(description.element)
    if description.type.is_integer:
        return torch.randint(-8, 9, shape, device="cuda", dtype=dtype)
    values = torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)
    if dtype == torch.float32:
        # Never half way between two tf32 numbers: which of them CUTLASS takes depends on the target.
        values.view(torch.int32).bitwise_or_(1)
    return values


def random_matrix(description: pycutlass.TensorDescription, rows: int, columns: int, *batch: int) -> Any:
    """Return a fresh random matrix of `rows` x `columns` in the described layout, or a batch of them."""
    if description.is_row_major:
        return random_values(description, (*batch, rows, columns))
    return random_values(description, (*batch, columns, rows)).mT


def poisoned(description: pycutlass.TensorDescription, rows: int, columns: int, *batch: int) -> Any:
    """Return a matrix full of NaN, or of -128 for integers."""
    poison = -128 if description.type.is_integer else float("nan")
    return random_matrix(description, rows, columns, *batch).fill_(poison)


def as_numpy(operand: Any, description: pycutlass.TensorDescription) -> Any:
    """Return a torch tensor as a NumPy array of the description's dtype."""
    import torch

    if operand.dtype == torch.bfloat16:
        return operand.view(torch.int16).cpu().numpy().view(description.type.dtype)
    return operand.cpu().numpy()


def assert_matches(
    operation: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    *extra: float,
    slices: int = 1,
) -> None:
    """Compare D with the reference, element by element, within the derived tolerance; NaN never passes.

    Integers have to be equal to the bit.
    """
    import numpy as np

    arrays = (as_numpy(A, operation.A), as_numpy(B, operation.B), None if C is None else as_numpy(C, operation.C))
    actual = as_numpy(D, getattr(operation, "D", operation.C))
    if operation.C.type.is_integer:
        np.testing.assert_array_equal(actual, reference.gemm(operation, *arrays, alpha, beta, *extra))
        return
    exact = reference.gemm(operation, *arrays, alpha, beta, *extra, exact=True)
    scale = abs(alpha) * (8.0**2 / 3 if operation.A.type.is_integer else 1.0)
    relative, absolute = reference.tolerance(operation, A.shape[-1], scale, slices)
    np.testing.assert_allclose(actual.astype(np.float64), exact, rtol=relative, atol=absolute)


def assert_grows_nothing(launch: Callable[[int], None]) -> None:
    """Check that a hundred thousand launches, which are told their number, take no memory of host and GPU."""
    import resource

    import torch

    def memory_after(count: int) -> tuple[int, int]:
        for number in range(count):
            launch(number)
        torch.cuda.synchronize()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.cuda.mem_get_info()[0]

    host, free = memory_after(5_000)
    host_after, free_after = memory_after(100_000)
    assert host_after - host < 1024  # KiB
    assert free_after == free
