"""Instructions and tiles that are valid, and changes of them that each break one rule."""

from __future__ import annotations

from typing import Any

from descriptions import SIMT, TAG, TENSOR_OP

from pycutlass import KernelSchedule, MathInstruction, MathOperation, TileDescription, cutlass

__all__ = ["F16", "F32_SIMT", "HOPPER", "WRONG_INSTRUCTIONS", "WRONG_TILES", "instruction"]


def instruction(opcode: Any, operand: str, accumulator: str, shape: Any, operation: MathOperation) -> MathInstruction:
    return MathInstruction(shape, TAG[operand], TAG[operand], TAG[accumulator], opcode, operation)


F16 = instruction(TENSOR_OP, "f16", "f32", (16, 8, 16), MathOperation.multiply_add)
HOPPER = instruction(TENSOR_OP, "f16", "f32", None, MathOperation.multiply_add)
F32_SIMT = instruction(SIMT, "f32", "f32", (1, 1, 1), MathOperation.multiply_add)
GEMV = instruction(SIMT, "f16", "f32", None, MathOperation.multiply_add)

#: What is changed in F16, and words of the message.
WRONG_INSTRUCTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"instruction_shape": [16, 8, 4]}, ["[16, 8, 4]", "TensorOp f16 x f16 -> f32, [16, 8, 16]"]),
    (
        {"instruction_shape": [64, 128, 16]},
        ["[64, 128, 16]", "None for a Hopper-native kernel", "follows from its tile"],
    ),
    ({"instruction_shape": [16, 8]}, ["instruction_shape", "three positive integers", "[16, 8]"]),
    ({"instruction_shape": [16, 8, 0]}, ["instruction_shape", "[16, 8, 0]"]),
    ({"instruction_shape": [16, 8, 16.0]}, ["instruction_shape", "16.0"]),
    ({"instruction_shape": 16}, ["instruction_shape", "got 16"]),
    (
        {"element_b": cutlass.bfloat16},
        ["element_a and element_b must be the same type", "cutlass.float16", "cutlass.bfloat16", "convert one"],
    ),
    (
        {"instruction_shape": None, "element_b": cutlass.bfloat16},
        ["element_a and element_b must be the same type", "Hopper-native kernels multiply operands of one type"],
    ),
    (
        {"element_b": cutlass.int8},
        ["TensorOp f16 x s8 -> f32, [16, 8, 16], multiply_add. Near", "[16, 8, 16], multiply_add_mixed_input_upcast"],
    ),
    (
        {"instruction_shape": None, "element_b": cutlass.int8},
        ["Hopper-native kernels multiply operands of one type", "math_operation=MathOperation.multiply_add_mixed_inp"],
    ),
    (
        {"instruction_shape": None, "element_accumulator": cutlass.int32},
        ["Hopper-native kernels", "multiply f16 and accumulate in f32, or f16 and accumulate in f16", "cutlass.int32"],
    ),
    (
        {"instruction_shape": None, "opcode_class": cutlass.OpClass.SparseTensorOp},
        ["Hopper-native kernels", "by OpClass.TensorOp and multiply_add", "by SparseTensorOp and multiply_add"],
    ),
    (
        {"instruction_shape": None, "opcode_class": cutlass.OpClass.Simt, "element_accumulator": cutlass.float16},
        ["GEMV kernels", "f16 and f32", "got cutlass.float16 and cutlass.float16", "cutlass.OpClass.TensorOp"],
    ),
    (
        dict.fromkeys(("element_a", "element_b", "element_accumulator"), cutlass.int32) | {"instruction_shape": None},
        ["f16 or bf16 or tf32 or e4m3 or e5m2 and accumulate in f32", "multiply_add_fast_accum as well"],
    ),
    (
        dict.fromkeys(("element_a", "element_b"), cutlass.uint8) | {"element_accumulator": cutlass.int32},
        [
            "Nearest valid choices: instruction_shape=None for a Hopper-native kernel",
            "; of other types, TensorOp s8 x s8 -> s32, [16, 8, 32], multiply_add_saturate; ",
        ],
    ),
    ({"element_a": "f16"}, ["an element type must be one of", "'f16'"]),
    ({"element_accumulator": cutlass.bfloat16}, ["-> bf16", "Nearest valid choices", "-> f32"]),
    ({"element_accumulator": cutlass.float64}, ["-> f64", "Nearest valid choices", "-> f32"]),
    ({"opcode_class": "TensorOp"}, ["opcode_class", "cutlass.OpClass", "'TensorOp'"]),
    ({"opcode_class": cutlass.OpClass.Simt}, ["Simt f16 x f16", "Nearest valid choices", "TensorOp f16 x f16"]),
    ({"opcode_class": cutlass.OpClass.SparseTensorOp}, ["SparseTensorOp f16", "TensorOp f16 x f16"]),
    ({"math_operation": "multiply_add"}, ["math_operation", "MathOperation", "'multiply_add'"]),
    ({"math_operation": MathOperation.multiply_add_fast_f32}, ["multiply_add_fast_f32", "Nearest valid choices"]),
]


TILE = TileDescription([128, 128, 32], 3, [2, 2, 1], F16)
SIMT_TILE = TileDescription([128, 128, 8], 4, [4, 2, 1], F32_SIMT)
NATIVE = TileDescription([128, 256, 64], 4, None, HOPPER, [2, 1], KernelSchedule.Cooperative)
GEMV_TILE = TileDescription([1, 8, 1024], None, [1, 4, 1], GEMV, kernel_schedule=KernelSchedule.Gemv)
#: A tile, what is changed in it, and words of the message.
WRONG_TILES: list[tuple[TileDescription, dict[str, Any], list[str]]] = [
    (TILE, {"threadblock_shape": [128, 128]}, ["threadblock_shape", "[M, N, K]", "[128, 128]"]),
    (TILE, {"threadblock_shape": [128, -128, 32]}, ["threadblock_shape", "positive", "-128"]),
    (TILE, {"threadblock_shape": [128, 128, 16]}, ["2 instructions along K", "K=16", "use threadblock_shape K=32"]),
    (TILE, {"stages": 1}, ["stages", "at least 2", "got 1"]),
    (TILE, {"stages": 2.5}, ["stages", "integer", "2.5"]),
    (TILE, {"stages": None}, ["stages may be None only for Hopper-native", "cluster_shape"]),
    (TILE, {"warp_count": None}, ["warp_count", "cluster_shape"]),
    (TILE, {"warp_count": [3, 2, 1]}, ["threadblock_shape M=128", "warp_count M=3", "use warp_count [2, 2, 1]"]),
    (TILE, {"warp_count": [2, 2]}, ["warp_count", "[2, 2]"]),
    (TILE, {"warp_count": [8, 8, 1]}, ["at most 1024 threads", "[8, 8, 1]", "2048"]),
    (TILE, {"math_instruction": "mma"}, ["math_instruction", "MathInstruction", "'mma'"]),
    (TILE, {"math_instruction": HOPPER}, ["instruction_shape", "Hopper-native"]),
    (TILE, {"kernel_schedule": KernelSchedule.Pingpong}, ["kernel_schedule", "cluster_shape"]),
    (TILE, {"math_instruction": GEMV}, ["kernel_schedule=KernelSchedule.Gemv", "TensorOp", "cluster_shape"]),
    (SIMT_TILE, {"kernel_schedule": KernelSchedule.Gemv}, ["MathInstruction(None, cutlass.float32", "Simt"]),
    (NATIVE, {"math_instruction": GEMV}, ["needs OpClass.TensorOp, got Simt", "opcode_class=cutlass.OpClass.TensorOp"]),
    (NATIVE, {"kernel_schedule": KernelSchedule.Gemv}, ["KernelSchedule.Pingpong", "leave out kernel_schedule"]),
    (GEMV_TILE, {"stages": 3}, ["registers", "use stages=None, got 3"]),
    (GEMV_TILE, {"warp_count": None}, ["warp_count", "[1, n, k]", "such as [1, 4, 1]", "None"]),
    (GEMV_TILE, {"warp_count": [2, 2, 1]}, ["warp_count", "[1, n, k]", "[2, 2, 1]"]),
    (GEMV_TILE, {"warp_count": [1, 8, 2]}, ["at most 8 warps", "[1, 8, 2]"]),
    (GEMV_TILE, {"threadblock_shape": [5, 8, 1024]}, ["M=5", "1, 2, 4 and 8", "use M=8"]),
    (GEMV_TILE, {"threadblock_shape": [1, 8, 96]}, ["4 warps, [1, 4, 1]", "[1, 8, 96]", "nearest is [1, 8, 256]"]),
    (SIMT_TILE, {"warp_count": [16, 1, 1]}, ["SIMT warp tile", "8x128", "threadblock_shape or warp_count"]),
    (SIMT_TILE, {"threadblock_shape": [32, 16, 8]}, ["SIMT warp tile", "8x8", "32x16"]),
    (NATIVE, {"math_instruction": F32_SIMT}, ["TensorOp", "leave out cluster_shape"]),
    (NATIVE, {"math_instruction": F16}, ["follow from its tile", "instruction_shape=None", "[16, 8, 16]"]),
    (NATIVE, {"cluster_shape": [3, 1]}, ["cluster_shape", "1, 2, 4, 8 or 16", "[3, 1, 1]"]),
    (NATIVE, {"cluster_shape": [1, 1, 2]}, ["cluster_shape", "1, 2, 4, 8 or 16", "[1, 1, 2]"]),
    (NATIVE, {"cluster_shape": [8, 4]}, ["cluster_shape", "at most 16 threadblocks", "[8, 4, 1]"]),
    (NATIVE, {"cluster_shape": [2]}, ["cluster_shape", "[2]"]),
    (NATIVE, {"cluster_shape": 2}, ["cluster_shape", "got 2"]),
    (NATIVE, {"kernel_schedule": "Pingpong"}, ["kernel_schedule", "KernelSchedule", "'Pingpong'"]),
    (NATIVE, {"warp_count": [2, 2, 1]}, ["warp_count=None", "leave out cluster_shape"]),
    (NATIVE, {"stages": 1}, ["stages", "None", "at least 2", "got 1"]),
    (NATIVE, {"threadblock_shape": [64, 128, 64]}, ["M=64", "128, 192, 256", "KernelSchedule.Pingpong takes 64"]),
    (NATIVE, {"threadblock_shape": [128, 100, 64]}, ["N=100", "8, or a multiple of 16", "nearest is 96"]),
    (NATIVE, {"threadblock_shape": [128, 512, 64]}, ["N=512", "up to 256", "nearest is 256"]),
    (NATIVE, {"threadblock_shape": [128, 128, 40]}, ["K=40", "multiple of 16", "nearest is 48"]),
    (NATIVE, {"threadblock_shape": [128, 8, 48]}, ["CuTe cannot lay out tiles of 8 x 48", "[128, 32, 64]"]),
    (NATIVE, {"threadblock_shape": [128, 8, 64], "stages": 5}, ["5 stages", "[8, 64]", "stages=None"]),
    (NATIVE, {"threadblock_shape": [256, 256, 64]}, ["256 accumulator registers", "at most 192 columns"]),
    (NATIVE, {"threadblock_shape": [320, 64, 64]}, ["M=320", "KernelSchedule.Cooperative, which takes 128, 192, 256"]),
    (NATIVE, {"threadblock_shape": [192, 208, 64]}, ["104 accumulator registers", "96 to give", "at most 192 columns"]),
    (NATIVE, {"threadblock_shape": [192, 8, 64]}, ["three warp groups", "at least 16 columns", "N=8; use 16"]),
    (
        NATIVE,
        {"threadblock_shape": [192, 160, 64], "kernel_schedule": None},
        ["240 accumulator registers", "KernelSchedule.Pingpong", "192 without spills", "at most 128 columns"],
    ),
]
