"""The kernels that are compared with the same ones in C++: one or two of each family, each with a problem and operands.

Sizes are such that a launch takes 50 microseconds or more on an H200.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pycutlass
from benchmarks.builds import NativeGrouped, NativeProblem, NativeUniversal
from benchmarks.common import BenchmarkError
from benchmarks.grouped import Group, grouped
from benchmarks.kernels import ampere
from benchmarks.problems import input_sets
from benchmarks.timing import Loop, cycling, repeating
from pycutlass import GemmArguments, GemmOperationGrouped, GemmOperationUniversal, SchedulerMode, cutlass
from pycutlass.types import element

if TYPE_CHECKING:
    import torch

__all__ = ["CASES", "NATIVE", "OURS", "Case", "GroupCase", "Operands"]

OURS, NATIVE = "PyCUTLASS", "the same kernel in C++"

Triple = tuple[int, int, int]

_Mode = cutlass.gemm.Mode
_Math = pycutlass.MathOperation
_ROW, _COLUMN = cutlass.RowMajor, cutlass.ColumnMajor
_TN, _NN, _NT = (_ROW, _COLUMN, _ROW), (_COLUMN, _COLUMN, _COLUMN), (_COLUMN, _ROW, _ROW)
_TENSOR_OP, _SIMT = cutlass.OpClass.TensorOp, cutlass.OpClass.Simt
_f16, _bf16, _tf32 = cutlass.float16, cutlass.bfloat16, cutlass.tfloat32
_f32, _f64, _s8, _s32 = cutlass.float32, cutlass.float64, cutlass.int8, cutlass.int32


@dataclass(frozen=True)
class Case:
    """A kernel and its problem.

    Attributes
    ----------
    words : str
        What the kernel is, beside its tile.
    operation : GemmOperationUniversal
        The kernel.
    size : tuple of 3 int
        M, N, K.
    tolerance : float
        Largest relative error of a right result, in the Frobenius norm; a wrong one has about 1.
    mode, count : cutlass.gemm.Mode, int
        Batches, or slices of K.
    alpha : float
        Factor of the product.
    bias : bool
        Whether C is a bias; else there is no C.
    """

    words: str
    operation: GemmOperationUniversal
    size: Triple
    tolerance: float
    mode: Any = _Mode.Gemm
    count: int = 1
    alpha: float = 1.0
    bias: bool = False

    @property
    def title(self) -> str:
        """How the tables call it."""
        return _title(self.words, self.operation)

    @property
    def problem(self) -> str:
        """The size, and the number of batches or slices."""
        if self.mode == _Mode.Batched:
            return f"{self.count} of {_shape(self.size)}"
        return _shape(self.size) + ("" if self.count == 1 else f" in {self.count} slices")

    def loops(self, library: Path) -> dict[str, Loop]:
        """Return a loop over each of the two kernels, after both have computed the right result."""
        import torch

        m, n, k = self.size
        batches = self.count if self.mode == _Mode.Batched else 1
        operation = self.operation
        parts = ((operation.A, m * k), (operation.B, k * n), (operation.C, m * n))
        set_bytes = batches * sum(extent * operand.type.bits // 8 for operand, extent in parts)
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        generator = torch.Generator("cuda").manual_seed(m + 3 * n + 5 * k)
        sets = [Operands(self, generator) for _ in range(input_sets(set_bytes, cache))]
        native, stream = NativeUniversal(library), torch.cuda.current_stream().cuda_stream
        calls = {
            NATIVE: [native.prepare(operands.native(), operands, stream) for operands in sets],
            OURS: [operands.pycutlass() for operands in sets],
        }
        sets[0].check(calls)
        return {name: cycling(each) for name, each in calls.items()}


class Operands:
    """Random operands of a case, on the device of `generator`, and memory for the result."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        self.case = case
        operation, (m, n, k) = case.operation, case.size
        batch = (case.count,) if case.mode == _Mode.Batched else ()

        def matrix(description: pycutlass.TensorDescription, rows: int, columns: int) -> torch.Tensor:
            """Return the matrix, whose memory is that of its transpose where it is column-major."""
            shape = (rows, columns) if description.order.is_row_major else (columns, rows)
            values = _random((*batch, *shape), description.type.dtype_name, generator)
            return values if description.order.is_row_major else values.mT

        self.A, self.B, self.D = matrix(operation.A, m, k), matrix(operation.B, k, n), matrix(operation.C, m, n)
        self.C = _random((n,), operation.C.type.dtype_name, generator) if case.bias else None
        self._exact: torch.Tensor | None = None

    def pycutlass(self) -> Callable[[], None]:
        """Return a function that launches the operation."""
        case = self.case
        operation = case.operation
        slices, batch = (1, case.count) if case.mode == _Mode.Batched else (case.count, 1)
        arguments = GemmArguments(
            *(operation, case.size, self.A, self.B, self.C, self.D, case.mode),
            output_op=operation.epilogue_type(case.alpha, float(case.bias)),
            split_k_slices=slices,
            batch=batch,
        )
        return functools.partial(operation.run, arguments)

    def native(self) -> NativeProblem:
        """Return the same arguments for the kernel in C++."""
        case = self.case
        tensors = (self.A, self.B, self.C, self.D)
        # What is contiguous has a step of 1; the leading dimension is the other step, and a bias has none.
        lds = [0 if tensor is None or tensor.ndim == 1 else max(tensor.stride()[-2:]) for tensor in tensors]
        batch_strides = [0 if tensor is None or tensor.ndim < 3 else tensor.stride(0) for tensor in tensors]
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        numbers = (case.mode.value, *case.size, case.count, case.alpha, float(case.bias))
        return NativeProblem(*numbers, tuple(pointers), tuple(batch_strides), tuple(lds))

    def check(self, calls: Mapping[str, Sequence[Callable[[], None]]]) -> None:
        """Raise BenchmarkError unless the first of each of `calls` computes every element of D."""
        exact = self.exact().double()
        for name, (call, *_) in calls.items():
            # What is not written remains NaN, or the wrong integer.
            self.D.copy_(~self.exact() if self.case.operation.C.type.is_integer else self.exact() * float("nan"))
            call()
            error = float((self.D.double() - exact).norm() / exact.norm())
            if not error <= self.case.tolerance:
                raise BenchmarkError(
                    f"{name}, {self.case.title} is wrong at {self.case.problem}: relative error {error:.2e}, at most "
                    f"{self.case.tolerance:.0e}, NaN where not written"
                )

    def exact(self) -> torch.Tensor:
        """Return D computed in float64; where it is of integers, these."""
        import torch

        if self._exact is None:
            functor = self.case.operation.epilogue_functor
            values = self.case.alpha * (self.A.double() @ self.B.double())
            if self.C is not None:
                values = values + self.C.double()
            if functor.activation is not None:
                values = getattr(torch.nn.functional, type(functor.activation).__name__)(values)
            if functor.output.is_integer:
                values = values.round().clamp(*functor.output.limits).to(self.D.dtype)
            self._exact = values
        return self._exact


@dataclass(frozen=True)
class GroupCase:
    """A grouped kernel, and how many rows its problems have; N and K are the same for all."""

    words: str
    operation: GemmOperationGrouped
    rows: tuple[int, ...]
    n: int
    k: int

    @property
    def title(self) -> str:
        """How the tables call it."""
        return _title(self.words, self.operation)

    @property
    def problem(self) -> str:
        """The sizes."""
        return f"{len(self.rows)} of M {min(self.rows)} to {max(self.rows)}, N {self.n}, K {self.k}"

    def loops(self, library: Path) -> dict[str, Loop]:
        """Return a loop over each of the two kernels, after both have computed the right result."""
        import torch

        group = Group(self.rows, self.n, self.k)
        addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in (group.A, group.B, group.D, group.D)]
        lds = [[length] * len(self.rows) for length in (self.k, self.k, self.n, self.n)]
        sizes = torch.tensor(group.sizes, dtype=torch.int32)
        pointers, lengths = (torch.tensor(table, dtype=torch.int64, device="cuda") for table in (addresses, lds))
        stream = torch.cuda.current_stream().cuda_stream
        native = NativeGrouped(library).prepare(sizes, pointers, lengths, group, stream)
        group.check(f"{NATIVE}, {self.title}", native)
        return {NATIVE: repeating(native), OURS: repeating(group.pycutlass(self.operation))}


def _title(words: str, operation: GemmOperationUniversal | GemmOperationGrouped) -> str:
    tile = operation.tile_description
    return f"{words}, {_shape(tile.threadblock_shape)}, {tile.stages} stages"


def _shape(extents: Triple) -> str:
    return "x".join(map(str, extents))


def _random(shape: tuple[int, ...], dtype_name: str, generator: torch.Generator) -> torch.Tensor:
    """Return normal values, or integers from -8 to 8."""
    import torch

    dtype, device = getattr(torch, dtype_name), generator.device
    if not dtype.is_floating_point:
        return torch.randint(-8, 9, shape, dtype=dtype, device=device, generator=generator)
    return torch.randn(shape, dtype=dtype, device=device, generator=generator)


def _operation(
    types: tuple[Any, Any, Any],
    instruction: Triple,
    tile: Triple,
    warps: Triple,
    stages: int,
    *,
    layouts: tuple[Any, Any, Any] = _TN,
    math: pycutlass.MathOperation = _Math.multiply_add,
    functor: Any = pycutlass.LinearCombination,
    swizzle: Any = cutlass.IdentitySwizzle1,
) -> GemmOperationUniversal:
    """Return the kernel with the widest accesses; `types` are those of operands, accumulator and result."""
    operand, accumulator, output = types
    opcode = _SIMT if instruction == (1, 1, 1) else _TENSOR_OP
    # SIMT kernels load and store single elements, those of f64 load them.
    loaded, stored = (128 // element(of).bits for of in (operand, output))
    loaded, stored = (1 if opcode == _SIMT or operand is _f64 else loaded), (1 if opcode == _SIMT else stored)
    described = pycutlass.MathInstruction(instruction, operand, operand, accumulator, opcode, math)
    A, B, C = (
        pycutlass.TensorDescription(of, layout, alignment)
        for of, layout, alignment in zip((operand, operand, output), layouts, (loaded, loaded, stored), strict=True)
    )
    compute = _f32 if accumulator is _s32 else accumulator
    epilogue = functor(output, C.alignment, accumulator, compute)
    return GemmOperationUniversal(
        80, pycutlass.TileDescription(tile, stages, warps, described), A, B, C, epilogue, swizzle
    )


def _cases() -> dict[str, Case | GroupCase]:
    mma16, mma8 = (16, 8, 16), (16, 8, 8)
    f16, f32 = (_f16, _f32, _f16), (_f32, _f32, _f32)
    large, long = (4096, 4096, 4096), (1024, 1024, 16384)
    usual = ((128, 128, 32), (2, 2, 1), 5)
    rng = random.Random(32)
    rows = tuple(rng.randint(64, 2048) for _ in range(32))
    gelu = functools.partial(pycutlass.LinearCombinationGeneric, pycutlass.gelu())
    return {
        "f16": Case("f16 TensorOp", _operation(f16, mma16, *usual), large, 1e-3),
        "f16-accumulator": Case(
            "f16 TensorOp, f16 accumulation",
            _operation((_f16, _f16, _f16), mma16, (256, 128, 32), (4, 2, 1), 3),
            (4096, 4096, 2048),
            5e-2,
        ),
        "bf16": Case(
            "bf16 TensorOp, IdentitySwizzle8",
            _operation((_bf16, _f32, _bf16), mma16, (128, 256, 64), (2, 4, 1), 3, swizzle=cutlass.IdentitySwizzle8),
            large,
            4e-3,
        ),
        "tf32": Case(
            "tf32 TensorOp",
            _operation((_tf32, _f32, _f32), mma8, (128, 128, 16), (2, 2, 1), 4),
            large,
            2e-3,
        ),
        "3xtf32": Case(
            "f32 by three tf32 products",
            _operation(f32, mma8, (128, 128, 16), (4, 2, 1), 4, math=_Math.multiply_add_fast_f32),
            (2048, 2048, 2048),
            1e-5,
        ),
        "simt": Case(
            "f32 SIMT, column by row",
            _operation(f32, (1, 1, 1), (128, 128, 8), (4, 2, 1), 4, layouts=_NT),
            (2048, 2048, 2048),
            1e-5,
        ),
        "f64": Case(
            "f64 TensorOp",
            _operation((_f64, _f64, _f64), (8, 8, 4), (64, 64, 16), (2, 2, 1), 4),
            (2048, 2048, 2048),
            1e-12,
        ),
        "int8": Case(
            "int8 TensorOp, s32 accumulation, clamped",
            _operation(
                *((_s8, _s32, _s8), (16, 8, 32), (128, 256, 64), (2, 4, 1), 3),
                math=_Math.multiply_add_saturate,
                functor=pycutlass.LinearCombinationClamp,
            ),
            large,
            0.0,
            alpha=2.0**-5,  # a power of two: the product with the sum is exact, and some are clamped
        ),
        "split-k": Case("f16 TensorOp, serial split-K", _operation(f16, mma16, *usual), long, 2e-3, count=4),
        "batched": Case(
            "f16 TensorOp, batched, all column-major",
            _operation(f16, mma16, *usual, layouts=_NN),
            (1024, 1024, 1024),
            1e-3,
            mode=_Mode.Batched,
            count=16,
        ),
        "bias-gelu": Case(
            "f16 TensorOp, bias and GELU",
            _operation(f16, mma16, *usual, functor=gelu),
            large,
            1e-3,
            bias=True,
        ),
        "grouped": GroupCase(
            "f16 TensorOp, grouped",
            grouped(ampere((128, 128, 32), 5, (2, 2, 1)), SchedulerMode.Device),
            rows,
            2048,
            2048,
        ),
    }


#: By the names that --only takes.
CASES: Mapping[str, Case | GroupCase] = _cases()
