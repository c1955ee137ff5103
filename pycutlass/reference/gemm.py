"""What each operation means, in NumPy.

This is the oracle of the tests, and what ``operation.run`` executes on a machine without a GPU. Operands are rounded as
the hardware rounds them, products are summed in the accumulator's type, and the epilogue's own reference follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pycutlass import _core
from pycutlass.enums import MathOperation
from pycutlass.epilogue import Epilogue
from pycutlass.library import MathInstruction
from pycutlass.types import ELEMENTS, Element

if TYPE_CHECKING:
    from pycutlass.operation import Conv2dOperation, GemmOperationUniversal

__all__ = ["gemm", "multiplied", "serial_slices", "tolerance"]

_ELEMENT = {row.short: row for row in ELEMENTS}

_F64_ROUNDING = 2.0**-53
_FLOAT8_BITS = 2.0**-13  # of what tensor cores keep of products of 8-bit floats
_WGMMA_BITS = 256  # of K of an instruction
_MOVED_ON = 128  # products (cutlass/gemm/collective/fp8_accumulation.hpp)

Array = NDArray[Any]


def gemm(
    operation: GemmOperationUniversal,
    A: Array,
    B: Array,
    C: Array | None,
    alpha: float = 1.0,
    beta: float = 0.0,
    *extra: float,
    exact: bool = False,
    slices: Sequence[Any] = (),
) -> Array:
    """Return D = epilogue(A x B, C).

    Parameters
    ----------
    operation : GemmOperationUniversal
        The description.
    A, B, C : array of shape (M, K), (K, N), (M, N), or of batches of these
        Operands in the dtypes of the description. `C` may broadcast, and is not read where `beta` is 0.
    alpha, beta, *extra : float
        Scalars of the epilogue.
    exact : bool
        Sum in f64 and leave D unrounded in f64: the oracle. Operands are rounded as ever, since that is what the
        kernel is asked to multiply.
    slices : sequence of indices of K, optional
        What each slice of a serial split-K sums up, as `serial_slices` returns it. Each adds its sum to what the slices
        before it have left in D, in D's type. The oracle has no slices.

    Returns
    -------
    array of shape (M, N), or of batches
        In the type of C, or f64 where `exact`.
    """
    math = operation.tile_description.math_instruction
    functor = operation.epilogue_functor
    scalars = (alpha, beta, *extra)
    if operation.B.order.interleave > 1:
        # An interleaved kernel takes B with its columns reordered: pycutlass.reorder_column.
        B = B.reshape(*B.shape[:-1], B.shape[-1] // 32, 4, 4, 2).swapaxes(-3, -2).reshape(B.shape)
    if exact:
        accumulator = multiplied(A, math).astype(np.float64) @ multiplied(B, math).astype(np.float64)
        return functor.reference(accumulator, C, scalars, np.dtype(np.float64))
    A, B = multiplied(A, math), multiplied(B, math)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = ((A[..., part], B[..., part, :]) for part in slices) if slices else ((A, B),)
        return _in_turns(functor, [_accumulate(*part, math) for part in parts], C, scalars)


def gemm_outputs(
    operation: GemmOperationUniversal,
    arrays: Mapping[str, Array],
    scalars: Mapping[str, float],
    *,
    exact: bool = False,
) -> dict[str, Array]:
    """Return D and the outputs of an epilogue that has tensors beside C and D, by name.

    Parameters
    ----------
    operation : GemmOperationUniversal
        The description.
    arrays : mapping
        A, B, C where it is read, and the inputs of the epilogue, by name.
    scalars : mapping
        By name.
    exact : bool
        Sum in f64 and leave everything unrounded: the oracle.
    """
    math, functor = operation.tile_description.math_instruction, operation.epilogue_functor
    A, B = multiplied(arrays["A"], math), multiplied(arrays["B"], math)
    inputs = {port.name: arrays[port.name] for port in functor.inputs}
    with np.errstate(over="ignore", invalid="ignore"):
        if exact:
            sums = A.astype(np.float64) @ B.astype(np.float64)
            return functor.evaluate(sums, arrays.get("C"), scalars, inputs, np.dtype(np.float64))
        values = functor.evaluate(_accumulate(A, B, math), arrays.get("C"), scalars, inputs)
    types = {"D": functor.output} | {port.name: port.type for port in functor.outputs}
    return {name: types[name].round(each) for name, each in values.items()}


def serial_slices(operation: GemmOperationUniversal, k: int, count: int) -> list[slice]:
    """Return the range of K that each slice of a serial split-K sums up; [] where there is one slice.

    CUTLASS rounds their length up to whole cache lines of 128 bytes where the lines of A or B are made of these, else
    to 128 bits, so that fewer slices than asked may have work (cutlass/gemm/kernel/params_universal_base.h).
    """
    if count == 1 or operation.is_stream_k:  # stream-K keeps partial sums in the accumulator's type
        return []
    A, B = operation.A, operation.B
    lines = [1024 // each.type.bits for each in (A, B)]
    along_k = (A.layout is _core.RowMajor, B.layout is _core.ColumnMajor)
    whole_lines = any(each and k % line == 0 for each, line in zip(along_k, lines, strict=True))
    step = max(lines) if whole_lines else max(128 // A.type.bits, 128 // B.type.bits)
    length = -(-k // count)
    length = -(-length // step) * step
    return [slice(start, start + length) for start in range(0, k, length)]


def multiplied(operand: Array, math: MathInstruction) -> Array:
    """Return `operand` as the multipliers see it, in a type that NumPy can compute with.

    f32 operands of a tensor-core instruction are rounded to tf32, f16 or bf16 on the way (cutlass/gemm/warp/
    mma_tensor_op.h). tf32 operands are taken as they are: the hardware ignores the low 13 bits.
    """
    if math.a.short == "tf32":
        return (np.ascontiguousarray(operand, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if math.a.short == "f32" and math.is_tensor_op:
        return _ROUNDED[math.math_operation](operand)
    return np.asarray(operand, np.float32 if math.a.bits <= 32 and not math.accumulator.is_integer else np.float64)


def tolerance(
    operation: GemmOperationUniversal | Conv2dOperation, k: int, scale: float = 1.0, slices: int = 1
) -> tuple[float, float]:
    """Return the relative and absolute error that a right kernel may have against the exact reference.

    For operands and C that are normally distributed. The model, term by term:

    * The output is rounded once, to nearest: half an epsilon of its type, relative to the result. A kernel that cut it
      off would be wrong by up to a whole one. That is seen where nothing below is as large: computed in f32, written in
      16 bits, with no approximation and in one slice.
    * What the epilogue computes is rounded after each step, relative to the terms of its sum and to the result: four
      epsilons of the compute type for each. Computed in f16, they are more than the output's half, and hide how an f16
      output is rounded (there is nothing to round then: it is what was computed).
    * The reference is rounded too, to f64. That counts for f64 kernels, whose D has half an epsilon from either side.
    * A sum of `k` products is a random walk, and each instruction rounds it once, by 0.21 units of its present size
      (standard deviation). So the accumulated rounding is a normal variable whose own size is the root of the integral
      of a squared Brownian motion, and the tail is not normal but exponential: beyond t * 0.21 units * k it has
      exp(-pi t / 2) of all elements (Cameron and Martin, 1944, give the Laplace transform of the integral). For one
      element in 10^11, t is 16: 3.3 units times `k` over the root of the instruction's K.
    * Tensor cores do not round an f32 accumulator but cut it off, always toward zero, which adds up
      (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021).
    * Products of 8-bit floats are shifted to the largest term of an instruction, the sum so far among them, and keep 13
      bits behind its point. Kernels that move sums on after every 128 products keep that error from growing; sums
      that stay become less exact with their size. The factors bound what an H100 computed of 2 million elements, with
      room for the tail, which is exponential: largest errors of 2.0 (moved on) and 3.4 (not), for K up to 65536.
    * 3xTF32 leaves out the products of the small halves.
    * alpha * accumulator and beta * C may cancel: their own rounding, in the compute type, stays.
    * Activations have errors of their own, relative and absolute (`Activation.error`). None has a slope above 1.13.
    * Serial split-K rounds to the output's type after every slice. The last rounding is the one above; those before it
      are relative to sums that the result may be far smaller than, so they are absolute.
    * What is wrong before the output is rounded is larger afterwards, by at most the rounding's own share of it.

    Parameters
    ----------
    k : int
        Number of products in each sum.
    scale : float
        Typical size of one product, alpha included.
    slices : int
        Slices of a serial split-K.

    Returns
    -------
    relative, absolute : float
        D is right where abs(D - exact) <= absolute + relative * abs(exact).
    """
    math, functor = operation.tile_description.math_instruction, operation.epilogue_functor
    walk = float(np.sqrt(k)) * scale
    sums_exactly = math.is_tensor_op and math.a.short != "f64"  # f64 tensor cores round after every product
    of_wgmma = (64, 8, _WGMMA_BITS // math.a.bits)  # which descriptions leave open
    per_instruction = (math.instruction_shape or of_wgmma)[2] if sums_exactly else 1
    absolute = 3.3 * math.accumulator.epsilon * k / np.sqrt(per_instruction) * scale
    if math.is_tensor_op and math.accumulator.short == "f32":
        absolute += math.accumulator.epsilon * -(-k // per_instruction) * walk
    if math.math_operation is MathOperation.multiply_add_fast_f32:
        absolute += 4 * 2.0**-20 * walk
    relative = 4 * functor.compute.epsilon + _F64_ROUNDING
    if math.is_tensor_op and math.a.is_float8:
        is_moved_on = operation.is_sm90 and math.math_operation is not MathOperation.multiply_add_fast_accum
        summed = min(k, _MOVED_ON) if is_moved_on else k
        kept = _FLOAT8_BITS * float(np.sqrt(summed))
        absolute += kept * ((3.5 if is_moved_on else 5.5) * float(np.sqrt(summed)) * scale + 0.6 * walk)
        relative += kept / 16  # it is cut off toward zero
    absolute += functor.compute.epsilon * (4 * walk + 8)
    if slices > 1:
        absolute += 2 * slices * functor.output.epsilon * (walk + 4)
    if functor.activation is not None:
        errors = functor.activation.error(functor.compute)
        relative, absolute = relative + errors[0], absolute + errors[1]
    rounding = functor.output.epsilon / 2
    return rounding + (1 + rounding) * relative, (1 + rounding) * float(absolute)


def _in_turns(functor: Epilogue, accumulators: Sequence[Array], C: Array | None, scalars: tuple[float, ...]) -> Array:
    """Return D of slices that take turns: each reads what the one before it wrote, and the last one activates."""
    *before, last = accumulators
    silent = functor if functor.activation is None else functor.without_activation()
    alpha, beta, *extra = scalars
    for accumulator in before:
        C, beta = functor.output.round(silent.reference(accumulator, C, (alpha, beta))), 1.0
    return functor.output.round(functor.reference(last, C, (alpha, beta, *extra)))


def _accumulate(A: Array, B: Array, math: MathInstruction) -> Array:
    if math.accumulator.is_integer:
        return _integer_sum(A, B, math)
    if math.accumulator.short != "f16":
        return np.asarray(A @ B)
    # An f16 accumulator is rounded after every instruction.
    step = (math.instruction_shape or (1, 1, 16))[2]
    total = np.zeros(np.broadcast_shapes((*A.shape[:-1], 1), (*B.shape[:-2], 1, B.shape[-1])), np.float32)
    for start in range(0, A.shape[-1], step):
        partial = A[..., start : start + step] @ B[..., start : start + step, :]
        total = (total + partial).astype(np.float16).astype(np.float32)
    return total.astype(np.float16)


def _integer_sum(A: Array, B: Array, math: MathInstruction) -> Array:
    """Return A x B in int32: each instruction saturates, or leaves out the bits that int32 lacks.

    Sums of s8 products are exact in f64, and leave int32 above a K of 131,071 at the earliest.
    """
    least, most = math.accumulator.limits
    if math.math_operation is not MathOperation.multiply_add_saturate or A.shape[-1] * 2**14 <= most:
        return (A @ B).astype(np.int64).astype(np.int32)
    step = (math.instruction_shape or (1, 1, 32))[2]
    total = np.zeros((), np.float64)
    for start in range(0, A.shape[-1], step):
        total = np.clip(total + A[..., start : start + step] @ B[..., start : start + step, :], least, most)
    return np.asarray(total).astype(np.int32)


def _rounder(short: str) -> Callable[[Array], Array]:
    row: Element = _ELEMENT[short]
    return lambda operand: row.round(operand).astype(np.float32)


_ROUNDED: dict[MathOperation, Callable[[Array], Array]] = {
    MathOperation.multiply_add: _rounder("tf32"),
    MathOperation.multiply_add_fast_f16: _rounder("f16"),
    MathOperation.multiply_add_fast_bf16: _rounder("bf16"),
    MathOperation.multiply_add_fast_f32: _rounder("f32"),
}
