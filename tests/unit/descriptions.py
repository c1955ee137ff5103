"""Operations, matrices and process starts that the unit tests share."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pycutlass
from pycutlass import cutlass
from pycutlass.operation import GemmOperationUniversal
from pycutlass.types import ELEMENTS, Element, element

ROW, COLUMN = cutlass.RowMajor, cutlass.ColumnMajor
LAYOUTS = list(itertools.product((ROW, COLUMN), repeat=3))
TENSOR_OP, SIMT = cutlass.OpClass.TensorOp, cutlass.OpClass.Simt
BY_SHORT_NAME: dict[str, Element] = {row.short: row for row in ELEMENTS}
TAG = {short: row.tag for short, row in BY_SHORT_NAME.items()}

#: Operand, accumulator and output types, instruction and tile of each kind of Ampere-style kernel.
KINDS: dict[str, dict[str, Any]] = {
    "f16": {"types": ("f16", "f32", "f16")},
    "f16_acc16": {"types": ("f16", "f16", "f16")},
    "f16_out32": {"types": ("f16", "f32", "f32")},
    "bf16": {"types": ("bf16", "f32", "bf16")},
    "tf32": {"types": ("tf32", "f32", "f32"), "instruction": (16, 8, 8), "tile": (128, 128, 16)},
    "f32": {"types": ("f32", "f32", "f32"), "instruction": (16, 8, 8), "tile": (128, 128, 16)},
    "f32_simt": {
        "types": ("f32", "f32", "f32"),
        "instruction": (1, 1, 1),
        "tile": (128, 128, 8),
        "warps": (4, 2, 1),
        "stages": 4,
        "opcode": SIMT,
    },
    "f64": {"types": ("f64", "f64", "f64"), "instruction": (8, 8, 4), "tile": (64, 64, 16), "stages": 4},
    "f64_simt": {
        "types": ("f64", "f64", "f64"),
        "instruction": (1, 1, 1),
        "tile": (128, 64, 8),
        "warps": (4, 2, 1),
        "stages": 3,
        "opcode": SIMT,
    },
}


def parts(
    kind: str = "f16",
    layouts: tuple[Any, Any, Any] = (ROW, COLUMN, ROW),
    *,
    alignment: int | None = None,
    math: pycutlass.MathOperation = pycutlass.MathOperation.multiply_add,
    swizzle: Any = cutlass.IdentitySwizzle1,
    capability: int = 80,
    **changes: Any,
) -> dict[str, Any]:
    """Return the keywords of an Ampere-style GemmOperationUniversal that is valid; each may then be replaced.

    `second` among the changes is the type of B, where it is another than that of A.
    """
    chosen = {"instruction": (16, 8, 16), "tile": (128, 128, 32), "warps": (2, 2, 1), "stages": 3, "opcode": TENSOR_OP}
    chosen |= KINDS[kind] | changes
    operand, accumulator, output = (TAG[short] for short in chosen["types"])
    second = TAG[chosen.get("second", chosen["types"][0])]
    instruction = pycutlass.MathInstruction(chosen["instruction"], operand, second, accumulator, chosen["opcode"], math)
    single = kind.endswith("simt") or kind == "f64"  # these load single elements
    widest = [1 if single else 128 // element(tag).bits for tag in (operand, second, output)]
    A, B, C = (
        pycutlass.TensorDescription(tag, order, most if alignment is None else alignment)
        for tag, order, most in zip((operand, second, output), layouts, widest, strict=True)
    )
    compute = accumulator if accumulator in (TAG["f16"], TAG["f64"]) else TAG["f32"]
    return {
        "compute_capability": capability,
        "tile_description": pycutlass.TileDescription(chosen["tile"], chosen["stages"], chosen["warps"], instruction),
        "A": A,
        "B": B,
        "C": C,
        "epilogue_functor": pycutlass.LinearCombination(output, C.alignment, accumulator, compute),
        "swizzling_functor": swizzle,
    }


def ampere(kind: str = "f16", layouts: tuple[Any, Any, Any] = (ROW, COLUMN, ROW), **options: Any) -> Any:
    """Return an Ampere-style operation; `options` are those of `parts`."""
    return GemmOperationUniversal(**parts(kind, layouts, **options))


def mixed_parts(
    a: str = "f16", b: str = "s8", layouts: tuple[Any, Any, Any] = (ROW, COLUMN, ROW), **options: Any
) -> dict[str, Any]:
    """Return the keywords of a kernel that converts the operand of 8 bits to the type of the other one."""
    wide = a if BY_SHORT_NAME[a].bits == 16 else b
    kind = {"types": (a, "f32", wide), "second": b, "math": pycutlass.MathOperation.multiply_add_mixed_input_upcast}
    return parts("f16", layouts, **kind | options)


def native_parts(
    tile: tuple[int, int, int] = (128, 256, 64),
    cluster: tuple[int, ...] = (2, 1),
    schedule: pycutlass.KernelSchedule | None = None,
    stages: int | None = None,
    operand: str = "f16",
    output: str = "f16",
    swizzle: Any = cutlass.IdentitySwizzle1,
) -> dict[str, Any]:
    """Return the keywords of a Hopper-native GemmOperationUniversal that is valid."""
    tag, out = TAG[operand], TAG[output]
    instruction = pycutlass.MathInstruction(None, tag, tag, cutlass.float32, TENSOR_OP)
    C = pycutlass.TensorDescription(out, ROW, 128 // element(out).bits)
    return {
        "compute_capability": 90,
        "tile_description": pycutlass.TileDescription(tile, stages, None, instruction, cluster, schedule),
        "A": pycutlass.TensorDescription(tag, ROW, 128 // element(tag).bits),
        "B": pycutlass.TensorDescription(tag, COLUMN, 128 // element(tag).bits),
        "C": C,
        "epilogue_functor": pycutlass.LinearCombination(out, C.alignment, cutlass.float32, cutlass.float32),
        "swizzling_functor": swizzle,
    }


def hopper(**options: Any) -> GemmOperationUniversal:
    """Return a Hopper-native operation; `options` are those of `native_parts`."""
    return GemmOperationUniversal(**native_parts(**options))


def random_matrix(description: pycutlass.TensorDescription, rows: int, columns: int, seed: Any) -> NDArray[Any]:
    """Return normally distributed numbers in the described element type and layout."""
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(description.type.dtype)
    return np.asarray(values, order="C" if description.is_row_major else "F")


def poisoned(description: pycutlass.TensorDescription, rows: int, columns: int) -> NDArray[Any]:
    """Return a matrix full of NaN."""
    return np.full((rows, columns), np.nan, description.type.dtype, order="C" if description.is_row_major else "F")


def as_torch(array: NDArray[Any]) -> Any:
    """Return a tensor of torch that shares the memory of `array`."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_multiplied(operation: GemmOperationUniversal, operand: NDArray[Any]) -> NDArray[Any]:
    """Return an operand in f64 as the multipliers see it, by arithmetic on its mantissa."""
    math = operation.tile_description.math_instruction
    values = operand.astype(np.float64)
    if not math.is_tensor_op or math.a.short not in ("f32", "tf32"):
        return values
    bits: Any = {"multiply_add_fast_bf16": 8, "multiply_add_fast_f32": 24}.get(math.math_operation.name, 11)
    mantissa, exponent = np.frexp(values)
    if math.math_operation.name == "multiply_add_fast_f16":
        bits = np.minimum(bits, exponent + 24)  # f16 has no step below 2^-24: small numbers keep fewer bits
    scaled = np.ldexp(mantissa, bits)
    if math.a.short == "tf32":  # the low bits are not looked at
        whole = np.trunc(scaled)
    elif math.math_operation.name == "multiply_add":  # halves go away from zero
        whole = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    else:
        whole = np.rint(scaled)
    return np.ldexp(whole, exponent - bits)


def expected(
    operation: GemmOperationUniversal,
    A: NDArray[Any],
    B: NDArray[Any],
    C: NDArray[Any] | None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> NDArray[Any]:
    """Return alpha * A x B + beta * C in f64."""
    product = alpha * (as_multiplied(operation, A) @ as_multiplied(operation, B))
    return product if C is None or beta == 0 else product + beta * C.astype(np.float64)


def plainly(value: object) -> str:
    """Return how a parameter of a test is called, the same in every process: without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def run_python(program: str, *, hash_seed: int | None = None, options: tuple[str, ...] = ()) -> str:
    """Run `program` in another Python, which sees no GPU, and return what it printed."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = str(hash_seed)
    command = [sys.executable, *options, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout
