"""Random descriptions of GEMMs, of groups of GEMMs, and of reductions."""

from __future__ import annotations

from random import Random
from typing import Any

import pycutlass
from pycutlass import MathOperation, TensorDescription, cutlass
from pycutlass.epilogue import Activation, EpilogueFunctor
from pycutlass.errors import DescriptionError
from pycutlass.families.gemv import gemv_shapes
from pycutlass.types import element

__all__ = [
    "ACTIVATIONS",
    "INTERLEAVED",
    "dp4a",
    "drawn_functor",
    "drawn_math",
    "drawn_tile",
    "f32",
    "f64",
    "gemv",
    "grouped",
    "grouped_hopper",
    "half",
    "hopper",
    "int8",
    "interleaved",
    "mixed",
    "reduction",
    "simt",
    "stream_k",
    "tf32",
    "turing",
]

_ROW, _COLUMN = cutlass.RowMajor, cutlass.ColumnMajor
_TENSOR_OP, _SIMT = cutlass.OpClass.TensorOp, cutlass.OpClass.Simt
_F16, _BF16, _TF32, _F32, _F64 = cutlass.float16, cutlass.bfloat16, cutlass.tfloat32, cutlass.float32, cutlass.float64
_S8, _U8, _S32 = cutlass.int8, cutlass.uint8, cutlass.int32
_E4M3, _E5M2 = cutlass.float_e4m3, cutlass.float_e5m2

INTERLEAVED = (cutlass.ColumnMajorInterleaved32, cutlass.RowMajorInterleaved32, cutlass.ColumnMajorInterleaved32)
ACTIVATIONS = tuple(each for each in Activation.__subclasses__() if each.__module__.startswith("pycutlass."))
_IDENTITY = (cutlass.IdentitySwizzle1, cutlass.IdentitySwizzle2, cutlass.IdentitySwizzle4, cutlass.IdentitySwizzle8)
_SWIZZLES = (*_IDENTITY, cutlass.IdentitySwizzle1, cutlass.HorizontalSwizzle, cutlass.BatchedIdentitySwizzle)
_GROUP_SWIZZLES = (*_IDENTITY, cutlass.HorizontalSwizzle)

#: What is written, by the accumulator, and what the epilogue may compute in: the usual ones more often.
_OUTPUTS = {
    _F64: (_F64,),
    _F32: (_F32, _F16, _BF16, _S8),
    _F16: (_F16, _F32, _BF16),
    _S32: (_S32, _S8, _F32, _F16, _BF16),
}
_COMPUTED = {_F64: (_F64,), _F32: (_F32, _F32, _F32, _F16), _F16: (_F16, _F32), _S32: (_F32, _F32, _S32)}
#: What Hopper-native kernels multiply, types of 8 bits in any mix, and what they write more than others.
_HOPPER_PRODUCTS = (
    *((_F16, _F16, _F32), (_BF16, _BF16, _F32), (_F16, _F16, _F16), (_TF32, _TF32, _F32)),
    *((a, b, _F32) for a in (_E4M3, _E5M2) for b in (_E4M3, _E5M2)),
    *((a, b, _S32) for a in (_S8, _U8) for b in (_S8, _U8)),
)
_HOPPER_OUTPUTS = _OUTPUTS | {_F32: (*_OUTPUTS[_F32], _E4M3, _E5M2), _S32: (*_OUTPUTS[_S32], _U8)}
_UPCAST = MathOperation.multiply_add_mixed_input_upcast
#: What Ampere-style kernels multiply that convert one operand to the type of the other.
_MIXED_PRODUCTS = tuple(
    (*pair, accumulator)
    for wide, accumulator in ((_F16, _F32), (_F16, _F16), (_BF16, _F32))
    for narrow in (_S8, _U8)
    for pair in ((wide, narrow), (narrow, wide))
)
#: What CUDA cores multiply for few rows.
_GEMV_PRODUCTS = (
    *((_F16, _F16, _F32), (_BF16, _BF16, _F32), (_F32, _F32, _F32), (_S8, _S8, _S32)),
    *((a, b, _F32) for a in (_E4M3, _E5M2) for b in (_E4M3, _E5M2)),
)
#: Accumulators of one thread beyond which few kernels are drawn: they spill, and take minutes to compile.
_MANY_ACCUMULATORS = 128


def half(random: Random) -> Any:
    """Return an Ampere-style GEMM of f16 or bf16."""
    return _gemm(random, drawn_math(random, "half"))


def tf32(random: Random) -> Any:
    """Return one of tf32."""
    return _gemm(random, drawn_math(random, "tf32"))


def f32(random: Random) -> Any:
    """Return one of f32, which tensor cores multiply rounded or in three parts."""
    return _gemm(random, drawn_math(random, "f32"))


def f64(random: Random) -> Any:
    """Return one of f64 by tensor cores."""
    return _gemm(random, drawn_math(random, "f64"))


def int8(random: Random) -> Any:
    """Return one of int8 by tensor cores."""
    return _gemm(random, drawn_math(random, "int8"), (_ROW, _COLUMN, random.choice((_ROW, _COLUMN))))


def interleaved(random: Random) -> Any:
    """Return one of int8 in interleaved layouts."""
    return _gemm(random, drawn_math(random, "int8"), INTERLEAVED)


def mixed(random: Random) -> Any:
    """Return one of a float and an integer, which lies along K and is converted to the float."""
    a, b, accumulator = random.choice(_MIXED_PRODUCTS)
    math = pycutlass.MathInstruction((16, 8, 16), a, b, accumulator, _TENSOR_OP, _UPCAST)
    either, of_c = random.choice((_ROW, _COLUMN)), random.choice((_ROW, _COLUMN))
    return _gemm(random, math, (_ROW, either, of_c) if math.a.is_integer else (either, _COLUMN, of_c))


def simt(random: Random) -> Any:
    """Return one without tensor cores, of f32 or f64."""
    return _gemm(random, drawn_math(random, "simt"))


def dp4a(random: Random) -> Any:
    """Return one of int8 without tensor cores."""
    return _gemm(random, drawn_math(random, "dp4a"))


def turing(random: Random) -> Any:
    """Return one of Turing's family, which newer GPUs run."""
    math = drawn_math(random, "turing")
    layouts = (_ROW, _COLUMN, random.choice((_ROW, _COLUMN))) if math.a.is_integer else None
    return _gemm(random, math, layouts, capability=75)


def stream_k(random: Random) -> Any:
    """Return one that is scheduled by stream-K, of any type."""
    math = drawn_math(random, random.choice(("half", "half", "tf32", "f32", "f64", "int8", "simt")))
    layouts = (_ROW, _COLUMN, random.choice((_ROW, _COLUMN))) if math.a.is_integer else None
    return _gemm(random, math, layouts, swizzle=cutlass.ThreadblockSwizzleStreamK)


def hopper(random: Random) -> Any:
    """Return a Hopper-native GEMM of any type, layout, alignment and schedule, or of the transposed problem."""
    a, b, accumulator = random.choice(_HOPPER_PRODUCTS)
    is_cp_async, is_direct = random.random() < 0.25, random.random() < 0.25
    along_k = is_cp_async or is_direct or random.random() < 0.3
    layouts = (random.choice((_ROW, _COLUMN)), random.choice((_ROW, _COLUMN)))
    if along_k and element(a).bits != 16:
        layouts = (_ROW, _COLUMN)
    fast = element(a).is_float8 and (is_cp_async or layouts != (_ROW, _COLUMN) or random.random() < 0.5)
    operation = MathOperation.multiply_add_fast_accum if fast else MathOperation.multiply_add
    math = pycutlass.MathInstruction(None, a, b, accumulator, _TENSOR_OP, operation)
    loaded, stored = _by_cp_async if is_cp_async else _of_tma, _by_threads if is_direct else _of_tma
    A, B = (loaded(operand, layout, random) for operand, layout in zip((a, b), layouts, strict=True))
    outputs = _HOPPER_OUTPUTS[accumulator]
    D = stored(random.choice(outputs), random.choice((_ROW, _ROW, _COLUMN)), random)
    C = D if random.random() < 0.7 else stored(random.choice(outputs), random.choice((D.layout, _ROW, _COLUMN)), random)
    columns = random.choice((16, 32, 64, 128) if is_cp_async else (8, *(16 * each for each in range(1, 17))))
    tile = _hopper_tile(random, math, columns, is_cp_async=is_cp_async)
    if D.type.is_byte:  # LinearCombination is limited to their range, and nothing else
        computed = random.choice(_COMPUTED[accumulator])
        functor = pycutlass.LinearCombination(D.element, D.alignment, accumulator, computed)
    else:
        functor = drawn_functor(random, accumulator, D.element, D.alignment)
    swizzle = random.choice(_IDENTITY if is_cp_async else (*_IDENTITY, cutlass.ThreadblockSwizzleStreamK))
    return pycutlass.GemmOperationUniversal(90, tile, A, B, C, functor, swizzle, D, random.random() < 0.3)


def gemv(random: Random) -> Any:
    """Return a GEMV of few rows, or of few columns."""
    a, b, accumulator = random.choice(_GEMV_PRODUCTS)
    math = pycutlass.MathInstruction(None, a, b, accumulator, _SIMT)
    rows, by_rows = random.choice((1, 2, 4, 8)), random.random() < 0.4
    warps = random.choice(((1, 4, 1), (1, 4, 1), (1, 1, 4), (1, 2, 2), (1, 8, 1), (1, 1, 1)))
    shape = random.choice(list(gemv_shapes(rows, warps, math.b.bits, by_rows)))
    tile = pycutlass.TileDescription(shape, None, warps, math, kernel_schedule=pycutlass.KernelSchedule.Gemv)
    swap_ab = random.random() < 0.3
    large = _ROW if by_rows is not swap_ab else _COLUMN
    layouts = (large, _COLUMN) if swap_ab else (_ROW, large)
    A, B = (TensorDescription(tag, of, drawn_alignment(random, tag)) for tag, of in zip((a, b), layouts, strict=True))
    output = random.choice(_OUTPUTS[accumulator])
    D = TensorDescription(output, random.choice((_ROW, _ROW, _COLUMN)), random.choice((1, 1, 2, 4)))
    functor = drawn_functor(random, accumulator, D.element, D.alignment)
    return pycutlass.GemmOperationUniversal(random.choice((80, 90)), tile, A, B, D, functor, swap_ab=swap_ab)


def grouped(random: Random) -> Any:
    """Return a group of any Ampere-style kernel, scheduled by the device or by the host."""
    single = random.choice((half, half, half, tf32, f32, f64, int8, interleaved, simt, dp4a, turing))(random)
    parts = [getattr(single, field) for field in single._FIELDS if field not in ("swizzling_functor", "D", "swap_ab")]
    mode = random.choice(list(pycutlass.SchedulerMode))
    return pycutlass.GemmOperationGrouped(*parts, random.choice(_GROUP_SWIZZLES), mode)


def grouped_hopper(random: Random) -> Any:
    """Return a Hopper-native group."""
    return pycutlass.GemmOperationGrouped(*_hopper_parts(random))


def reduction(random: Random, operation: Any) -> Any:
    """Return what adds up partial sums of `operation`: of Hopper-native ones to D's type, or there are no such sums."""
    accumulator = operation.tile_description.math_instruction.element_accumulator
    D = getattr(operation, "D", operation.C)
    output = D.element if operation.is_sm90 or random.random() < 0.6 else random.choice(_OUTPUTS[accumulator])
    C = TensorDescription(output, D.layout, D.alignment)
    count = random.choice([count for count in (1, 2, 4, 8, 16) if count <= C.alignment])
    columns = 32 * count * random.choice((1, 1, 2, 4))
    shape = cutlass.MatrixCoord(random.choice((1, 2, 4, 8)), columns)
    functor = drawn_functor(random, accumulator, output, count)
    stage = random.choice((1, 2, 4, 8))
    return pycutlass.ReductionOperation(
        shape, C, accumulator, epilogue_functor=functor, count=count, partitions_per_stage=stage
    )


# Parts


def drawn_math(random: Random, kind: str) -> pycutlass.MathInstruction:
    """Return an instruction of one kind."""
    saturate = MathOperation.multiply_add_saturate
    if kind in ("half", "turing") and not (kind == "turing" and random.random() < 0.4):
        shape = (16, 8, 8) if kind == "turing" else random.choice(((16, 8, 16), (16, 8, 16), (16, 8, 8)))
        operand = _F16 if kind == "turing" else random.choice((_F16, _BF16))
        accumulator = random.choice((_F32, _F32, _F16)) if operand is _F16 else _F32
        return pycutlass.MathInstruction(shape, operand, operand, accumulator, _TENSOR_OP)
    if kind == "turing":
        return pycutlass.MathInstruction((8, 8, 16), _S8, _S8, _S32, _TENSOR_OP, saturate)
    if kind == "f32":
        no_f32 = (saturate, MathOperation.multiply_add_fast_accum, _UPCAST)
        fast = [operation for operation in MathOperation if operation not in no_f32]
        return pycutlass.MathInstruction((16, 8, 8), _F32, _F32, _F32, _TENSOR_OP, random.choice(fast))
    if kind == "simt":
        operand = random.choice((_F32, _F32, _F64))
        return pycutlass.MathInstruction((1, 1, 1), operand, operand, operand, _SIMT)
    return {
        "tf32": pycutlass.MathInstruction((16, 8, 8), _TF32, _TF32, _F32, _TENSOR_OP),
        "f64": pycutlass.MathInstruction((8, 8, 4), _F64, _F64, _F64, _TENSOR_OP),
        "int8": pycutlass.MathInstruction((16, 8, 32), _S8, _S8, _S32, _TENSOR_OP, saturate),
        "dp4a": pycutlass.MathInstruction((1, 1, 4), _S8, _S8, _S32, _SIMT),
    }[kind]


def drawn_tile(random: Random, math: pycutlass.MathInstruction, stages: int) -> pycutlass.TileDescription:
    """Return a tile: that of one warp, times so many warps."""
    m, n, k = math.instruction_shape or (1, 1, 1)
    warps = (
        random.choice((1, 1, 2, 2, 3, 4, 8)),
        random.choice((1, 1, 2, 2, 3, 4)),
        random.choice((1,) * 6 + (2, 2, 4)),
    )
    if not math.is_tensor_op:
        warps, m, n = (*warps[:2], 1), 8, 8
    extents = (
        warps[0] * m * random.choice((1, 2, 2, 3, 4, 4, 5, 6, 8)),
        warps[1] * n * random.choice((1, 2, 2, 3, 4, 4, 5, 6, 8, 8, 12, 16)),
        warps[2] * k * random.choice((2, 2, 2, 4, 4, 8, 3) if math.is_tensor_op else (8, 8, 8, 16, 4)),
    )
    tile = pycutlass.TileDescription(extents, stages, warps, math)
    if extents[0] * extents[1] > _MANY_ACCUMULATORS * tile.num_threads and random.random() < 0.95:
        raise DescriptionError("drawn again: it would take minutes to compile")
    return tile


def drawn_functor(random: Random, accumulator: Any, output: Any, length: int) -> EpilogueFunctor:
    """Return what happens to the accumulator on its way to an output of that type."""
    types = (output, length, accumulator, random.choice(_COMPUTED[accumulator]))
    if output is _S8 and accumulator is _S32 and random.random() < 0.3:
        return pycutlass.FastLinearCombinationClamp(output, length)
    if output is _S8 or random.random() < 0.15:
        return pycutlass.LinearCombinationClamp(*types)
    if random.random() < 0.55:
        return pycutlass.LinearCombination(*types)
    return pycutlass.LinearCombinationGeneric(random.choice(ACTIVATIONS)(), *types)


def drawn_alignment(random: Random, tag: Any) -> int:
    """Return an alignment that an operand of that type can have; the widest more often."""
    widest = 128 // element(tag).bits
    return random.choice([step for step in (1, 2, 4, 8, 16) if step <= widest] + [widest])


def _gemm(
    random: Random,
    math: pycutlass.MathInstruction,
    layouts: tuple[Any, Any, Any] | None = None,
    *,
    capability: int | None = None,
    swizzle: Any = None,
) -> Any:
    operands, accumulator = (math.element_a, math.element_b), math.element_accumulator
    output = random.choice(_OUTPUTS[accumulator])
    layouts = layouts or tuple(random.choice((_ROW, _COLUMN)) for _ in range(3))
    alignments = [drawn_alignment(random, tag) for tag in (*operands, output)]
    if layouts == INTERLEAVED:
        output, alignments = _S8, [16, 16, 8]
    elif not math.is_tensor_op:
        alignments = [4, 4, 1] if math.a.is_integer else [1, 1, 1]
    elif operands[0] is _F64:
        alignments[:2] = [1, 1]
    narrow = zip(alignments, (math.a.bits, math.b.bits), strict=False)
    single = any(alignment * bits < 32 for alignment, bits in narrow)  # cp.async moves 4 bytes at least
    stages = (
        2
        if capability == 75 or single or (math.a.is_integer and not math.is_tensor_op)
        else random.choice((2, 3, 3, 4, 5, 6))
    )
    A, B, C = (TensorDescription(*of) for of in zip((*operands, output), layouts, alignments, strict=True))
    return pycutlass.GemmOperationUniversal(
        capability or random.choice((80, 80, 80, 86, 89, 90)),
        drawn_tile(random, math, stages),
        A,
        B,
        C,
        drawn_functor(random, accumulator, output, alignments[2]),
        swizzle or random.choice(_SWIZZLES),
    )


def _hopper_parts(random: Random) -> tuple[Any, ...]:
    operand, output = random.choice((_F16, _BF16)), random.choice((_F16, _BF16, _F32))
    math = pycutlass.MathInstruction(None, operand, operand, _F32, _TENSOR_OP)
    tile = _hopper_tile(random, math, 16 * random.randint(1, 16))
    A, B, C = _of_tma(operand, _ROW), _of_tma(operand, _COLUMN), _of_tma(output, _ROW)
    return 90, tile, A, B, C, drawn_functor(random, _F32, output, C.alignment)


def _hopper_tile(
    random: Random, math: pycutlass.MathInstruction, columns: int, *, is_cp_async: bool = False
) -> pycutlass.TileDescription:
    depth = random.choice((64, 64, 32) if is_cp_async else (64, 64, 64, 32, 128, 16, 96)) * 16 // math.a.bits
    return pycutlass.TileDescription(
        (random.choice((64, 128, 128, 192, 256)), columns, depth),
        random.choice((None, None, 2, 3, 4, 5, 6, 8)),
        None,
        math,
        (1, 1) if is_cp_async else (random.choice((1, 1, 2, 2, 4)), random.choice((1, 1, 2, 2, 4))),
        random.choice((None, pycutlass.KernelSchedule.Pingpong, pycutlass.KernelSchedule.Cooperative)),
    )


def _of_tma(operand: Any, layout: Any, _: Any = None) -> TensorDescription:
    return TensorDescription(operand, layout, 128 // element(operand).bits)


def _by_cp_async(operand: Any, layout: Any, random: Random) -> TensorDescription:
    """Return an operand that is aligned to 4 or 8 bytes, or now and then to 16."""
    return TensorDescription(operand, layout, random.choice((32, 32, 64, 128)) // element(operand).bits)


def _by_threads(operand: Any, layout: Any, random: Random) -> TensorDescription:
    """Return one of any alignment."""
    most = 128 // element(operand).bits
    return TensorDescription(operand, layout, random.choice([each for each in (1, 1, 2, 4, 8, 16) if each <= most]))
