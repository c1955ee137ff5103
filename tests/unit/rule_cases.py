"""Changes of valid GEMMs that each break one rule, with words of what is said."""

from __future__ import annotations

from typing import Any

from descriptions import COLUMN, ROW, TAG, mixed_parts, native_parts, parts
from epilogue_functions import biased, gated, linear, reduced, selecting, tile_sums
from extra_epilogue import ExtraEpilogue
from rule_baselines import (
    COLUMNS32,
    FAST_F16,
    ROWS32,
    functor,
    int8_turing_interleaved,
    tensor,
    tile,
    with_c_of,
)

from pycutlass import (
    KernelSchedule,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    MathOperation,
    cutlass,
    relu,
)

__all__ = ["FLIPS"]

OVER_F32 = parts("f16", instruction=(16, 8, 8), math=MathOperation.multiply_add_fast_f16)
#: Baseline, what is changed in it, and words of the message.
FLIPS: list[tuple[str, dict[str, Any], list[str]]] = [
    # Parts of the right kind
    ("f16", {"A": None}, ["A must be a TensorDescription", "None"]),
    ("f16", {"epilogue_functor": LinearCombination}, ["is the class LinearCombination; call it"]),
    # Operands
    (
        "f16",
        {"A": tensor("bf16", ROW, 8)},
        ["operand A is cutlass.bfloat16", "multiplies cutlass.float16", "describe A with"],
    ),
    (
        "f16",
        {"tile_description": OVER_F32["tile_description"]},
        ["multiply_add_fast_f16 rounds operands of cutlass.float32", "got cutlass.float16", "use multiply_add"],
    ),
    (
        "mixed",
        {"B": tensor("f16", COLUMN, 8)},
        ["operand B is cutlass.float16", "multiplies cutlass.float16 with cutlass.int8: describe B with cutlass.int8 "],
    ),
    ("int8", {"B": tensor("s32", COLUMN, 4)}, ["operand B is cutlass.int32", "multiplies cutlass.int8"]),
    ("f16", {"B": tensor("f16", cutlass.TensorNHWC, 8)}, ["operand B of a GEMM is a matrix", "TensorNHWC"]),
    ("int8", {"C": tensor("s32", cutlass.TensorNC32HW32, 4)}, ["operand C of a GEMM is a matrix", "TensorNC32HW32"]),
    # The epilogue
    (
        "f16",
        {"epilogue_functor": tile_sums(128, 64)(cutlass.float16, 8)},
        ["has a result for each tile of 64 columns", "has 128: make them the same"],
    ),
    ("f16", {"epilogue_functor": functor("f16", 8, "f16")}, ["expects an accumulator of cutlass.float16", "float32"]),
    ("int8", {"epilogue_functor": functor("f32", 4, "s32")}, ["writes cutlass.float32", "operand C is cutlass.int32"]),
    ("f16", {"epilogue_functor": functor("f16", 4)}, ["epilogue_vector_length=4", "alignment of C, 8"]),
    ("f16", {"epilogue_functor": functor("f16", 8, compute="f64")}, ["can compute in f32, f16", "cutlass.float64"]),
    ("f64", {"epilogue_functor": functor("f64", 1, "f64", "f32")}, ["can compute in f64", "cutlass.float32"]),
    (
        "f16 accumulated in f16",
        {"C": tensor("s32", ROW, 4), "epilogue_functor": functor("s32", 4, "f16", "f16")},
        ["can write f16, f32, bf16", "cutlass.int32"],
    ),
    (
        "int8",
        {"C": tensor("f64", ROW, 2), "epilogue_functor": functor("f64", 2, "s32")},
        ["accumulator of cutlass.int32 can write s32, s8, f32, f16, bf16", "cutlass.float64"],
    ),
    (
        "int8 clamped",
        {"epilogue_functor": LinearCombinationGeneric(relu, TAG["s8"], 16, TAG["s32"], TAG["f32"])},
        ["LinearCombinationGeneric does not limit", "cutlass.int8"],
    ),
    ("f16", {"swizzling_functor": cutlass.StridedDgradIdentitySwizzle1}, ["swizzling_functor must be one of", "got"]),
    # Trees of visitors
    ("simt", {"epilogue_functor": ExtraEpilogue(TAG["f32"], TAG["f64"])}, ["tensor cores", "Simt"]),
    # Epilogue functions
    (
        "hopper",
        {"C": tensor("s32", ROW, 4), "epilogue_functor": biased(TAG["s32"], 4)},
        ["can write f32, f16, bf16, s8, e4m3, e5m2", "cutlass.int32"],
    ),
    (
        "hopper",
        {"D": tensor("f16", COLUMN, 8), "epilogue_functor": linear(TAG["f16"], 8)},
        ["reads C and writes D in the same order", "cutlass.RowMajor", "cutlass.ColumnMajor"],
    ),
    (
        "f16",
        {"C": tensor("f16", COLUMN, 8), "epilogue_functor": gated(TAG["f16"], 8)},
        ["gated", "combines pairs of columns", "where D is RowMajor", "cutlass.ColumnMajor"],
    ),
    (
        "f16",
        {"C": tensor("f16", COLUMN, 8), "epilogue_functor": selecting(2)(TAG["f16"], 8)},
        ["selects the largest of each row to values, indices", "column-major D", "cutlass.RowMajor"],
    ),
    # D described apart from C
    ("f16", {"D": tensor("f32", ROW, 4)}, ["writes D as it reads C", "Hopper-native"]),
    ("f16", {"swap_ab": True}, ["swap_ab=True belongs to Hopper-native kernels", "fewer rows than 128"]),
    ("hopper", {"D": tensor("f64", ROW, 2)}, ["both are RowMajor or ColumnMajor", "D", "float64"]),
    ("hopper", {"D": tensor("f32", ROW, 4)}, ["writes cutlass.float16", "operand D is cutlass.float32"]),
    # Hopper-native kernels
    ("hopper", {"epilogue_functor": functor("f16", 8, kind=LinearCombinationClamp)}, ["no Hopper-native counterpart"]),
    ("hopper", {"compute_capability": 80}, ["cluster_shape", "compute_capability=90", "80"]),
    (
        "hopper",
        {"C": tensor("f16", cutlass.RowMajorInterleaved32, 8)},
        ["not interleaved", "got C of cutlass.RowMajorInterleaved32", "describe C as cutlass.RowMajor"],
    ),
    (
        "hopper e4m3",
        {"A": tensor("e4m3", COLUMN, 16)},
        ["A or B of cutlass.float_e4m3 does not lie along K", "multiply_add_fast_accum", "A as cutlass.RowM"],
    ),
    (
        "hopper tf32",
        {"A": tensor("tf32", COLUMN, 4), "swap_ab": True},
        ["swap_ab=True", "cutlass.tfloat32", "none of A and B by columns", "use swap_ab=False"],
    ),
    (
        "hopper tf32",
        {"A": tensor("tf32", COLUMN, 4)} | tile("hopper tf32", threadblock_shape=(128, 128, 16)),
        ["A or B of cutlass.tfloat32 does not lie along K", "32 or 64 elements of K", "K=16", "[128, 128, 32]"],
    ),
    (
        "hopper tf32",
        {"A": tensor("tf32", COLUMN, 4), "C": tensor("f32", ROW, 1), "epilogue_functor": functor("f32", 1)},
        [
            "A or B of cutlass.tfloat32 does not lie along K",
            "16-byte alignment",
            "operand C of cutlass.float32 needs alignment 4, got 1",
        ],
    ),
    (
        "hopper",
        tile("hopper", threadblock_shape=(64, 8, 32), cluster_shape=(8, 1), kernel_schedule=None),
        ["cluster of 8x1 divides each tile of B", "8 lines of 64 bytes", "at most 4 threadblocks along M"],
    ),
    (
        "hopper",
        {"swap_ab": True, "epilogue_functor": gated(TAG["f16"], 8)},
        ["swap_ab=True", "gated", "cannot be transposed", "use swap_ab=False"],
    ),
    (
        "hopper",
        tile("hopper", threadblock_shape=(64, 128, 64), kernel_schedule=KernelSchedule.Pingpong)
        | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK},
        ["stream-K", "KernelSchedule.Cooperative alone", "got KernelSchedule.Pingpong"],
    ),
    (
        "hopper",
        tile("hopper", threadblock_shape=(192, 128, 64)) | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK},
        ["three warp groups", "192 rows", "which kernels of stream-K do not support", "[128, 128, 64]"],
    ),
    (
        "hopper",
        {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK, "epilogue_functor": reduced(TAG["f16"], 8)},
        ["reduces what it computes", "not of those of stream-K", "IdentitySwizzle1"],
    ),
    (
        "hopper",
        tile("hopper", threadblock_shape=(128, 8, 64)) | {"epilogue_functor": biased(TAG["f16"], 8)},
        ["biased", "computes 16 columns at once", "N=8", "[128, 16, 64]"],
    ),
    ("hopper", {"B": tensor("f16", COLUMN, 4)}, ["TMA", "operand B", "alignment 8, got 4", "cluster_shape=[1, 1]"]),
    ("hopper", {"B": tensor("f16", COLUMN, 1)}, ["multiples of 4", "operand B", "aligned to 2", "B with alignment 8"]),
    (
        "hopper e4m3",
        {"A": tensor("e4m3", ROW, 8)},
        ["operand A", "alignment 16, got 8", "cp.async", "MathOperation.multiply_add_fast_accum"],
    ),
    (
        "hopper",
        tile("hopper", threadblock_shape=(128, 192, 64), cluster_shape=(1, 1), kernel_schedule=KernelSchedule.Pingpong)
        | {"B": tensor("f16", COLUMN, 4)},
        ["192 accumulator registers", "cp.async has 144 to give", "at most 112 columns"],
    ),
    (
        "hopper",
        {"C": tensor("f16", ROW, 4), "epilogue_functor": ExtraEpilogue(TAG["f16"], TAG["f32"], 4)},
        ["consists of CUTLASS's visitors"],
    ),
    # Turing
    ("turing", parts("f16", capability=75, stages=2), ["Turing", "[16, 8, 8]", "[8, 8, 16]", "[16, 8, 16]"]),
    ("turing", parts("bf16", capability=75, instruction=(16, 8, 8), stages=2), ["Turing", "cutlass.bfloat16"]),
    ("turing", tile("turing", stages=3), ["asynchronous copies", "stages must be 2", "3"]),
    ("turing simt", tile("turing simt", stages=4), ["asynchronous copies", "stages must be 2", "4"]),
    ("turing int8", {"compute_capability": 80}, ["[8, 8, 16] is Turing's", "[16, 8, 32]"]),
    # int8
    ("int8", {"A": tensor("s8", COLUMN, 16)}, ["A RowMajor and B ColumnMajor", "ldmatrix", "cutlass.ColumnMajor"]),
    (
        "int8",
        {"B": tensor("s8", ROW, 16)},
        ["A RowMajor and B ColumnMajor", "OpClass.Simt with instruction_shape=[1, 1, 4]"],
    ),
    ("interleaved", {"A": tensor("s8", ROW, 16)}, ["interleaved layouts go together", "cutlass.RowMajor,"]),
    (
        "interleaved",
        {"B": tensor("s8", COLUMNS32, 16)},
        ["interleaved layouts go together", "ColumnMajorInterleaved32"],
    ),
    (
        "interleaved",
        {"C": tensor("s32", COLUMNS32, 4), "epilogue_functor": functor("s32", 4, "s32")},
        ["interleaved", "8 bytes at a time", "must be cutlass.int8 with alignment 8, got cutlass.int32 with 4"],
    ),
    (
        "interleaved",
        {"C": tensor("f16", COLUMNS32, 8), "epilogue_functor": functor("f16", 8, "s32")},
        ["interleaved", "must be cutlass.int8 with alignment 8, got cutlass.float16 with 8"],
    ),
    (
        "interleaved",
        {"A": tensor("s8", COLUMNS32, 8)},
        ["16 elements at a time", "operand A of cutlass.int8 needs alignment 16, got 8"],
    ),
    (
        "interleaved",
        tile("interleaved", threadblock_shape=(32, 128, 128), warp_count=(1, 2, 1), stages=2),
        ["K=128 needs 4 warps", "makes 2"],
    ),
    ("f16", {"C": tensor("f16", COLUMNS32, 8)}, ["interleaved layouts go together", "cutlass.float16"]),
    (
        "f16",
        {"A": tensor("f16", COLUMNS32, 8), "B": tensor("f16", ROWS32, 8), "C": tensor("f16", COLUMNS32, 8)},
        ["int8 by TensorOp", "of cutlass.float16"],
    ),
    # CUDA cores
    (
        "int8 simt",
        {"B": tensor("s8", COLUMN, 16)},
        ["SIMT kernels of cutlass.int8 load 4", "operand B of cutlass.int8 needs alignment 4", "16"],
    ),
    ("int8 simt", tile("int8 simt", stages=3), ["int8 SIMT kernels have 2 stages", "3"]),
    (
        "simt",
        {"C": tensor("f32", ROW, 2), "epilogue_functor": functor("f32", 2)},
        ["SIMT kernels of cutlass.float32", "store single ones", "alignment 1, got 2"],
    ),
    ("simt", tile("simt", threadblock_shape=(128, 128, 5)), ["K=5 makes 5 instructions", "must be even", "K=4 or K=6"]),
    (
        "simt",
        tile("simt", threadblock_shape=(192, 64, 8), warp_count=(4, 2, 1), stages=2),
        ["warp tile of 48x32", "6 elements along M", "M=48 a multiple of 32"],
    ),
    (  # which nvcc refused: with more stages, the threads of a tall tile lie as those of any other
        "simt",
        tile("simt", threadblock_shape=(256, 224, 8), warp_count=(2, 2, 1), stages=6),
        ["warp tile of 128x112", "14 elements along N", "takes 4 at a time", "N=112 a multiple of 32"],
    ),
    (
        "simt",
        tile("simt", threadblock_shape=(64, 128, 8), warp_count=(1, 8, 1)),
        ["SIMT kernel write 4 rows", "8 warps along N and K cannot", "use warp_count"],
    ),
    (
        "int8 simt",
        tile("int8 simt", threadblock_shape=(48, 32, 32), warp_count=(1, 1, 1)),
        ["warp tile of 48x32", "6 elements along M", "takes 4 at a time", "M=48 a multiple of 32"],
    ),
    (
        "simt",
        tile("simt", threadblock_shape=(96, 64, 8), warp_count=(3, 2, 1)),
        ["64x8 tile of operand B", "64 lines of 8 elements", "192 threads cannot share evenly"],
    ),
    (
        "int8 simt",
        tile("int8 simt", threadblock_shape=(64, 32, 16), warp_count=(2, 1, 1)),
        ["32x16 tile of operand B", "8 lines of 4 blocks of 4x4 elements", "64 threads"],
    ),
    (
        "simt",
        tile("simt", threadblock_shape=(128, 128, 16), stages=2),
        ["operand A is contiguous along K", "2 stages", "2 elements between lines", "reads 4", "use K=8"],
    ),
    ("simt", tile("simt", threadblock_shape=(128, 128, 32), stages=3), ["1 elements between lines", "use K below 32"]),
    # Operands of two types
    (
        "mixed",
        {"B": tensor("s8", ROW, 16)},
        ["convert operand B of cutlass.int8 to cutlass.float16", "describe B as cutlass.ColumnMajor"],
    ),
    (
        "mixed",
        mixed_parts("u8", "bf16") | {"A": tensor("u8", COLUMN, 16)},
        ["convert operand A of cutlass.uint8 to cutlass.bfloat16", "describe A as cutlass.RowMajor"],
    ),
    ("mixed", tile("mixed", stages=2), ["are pipelines of cp.async: they need 3 stages or more, got 2"]),
    ("mixed", {"B": tensor("s8", COLUMN, 2)}, ["cp.async", "operand B of cutlass.int8 needs alignment 4, got 2"]),
    ("mixed", {"compute_capability": 75}, ["multiply operands of one type", "describe compute_capability=80"]),
    ("mixed", tile("mixed", threadblock_shape=(128, 128, 128)), ["operand A", "K=128 must divide the 64 elements"]),
    # Loads
    (
        "f64",
        {"B": tensor("f64", COLUMN, 2)},
        ["f64 TensorOp kernels", "operand B of cutlass.float64 needs alignment 1", "2"],
    ),
    (
        "f32",
        tile("f32", stages=2),
        ["f32 TensorOp kernels need 3 stages or more, got 2", "rounds f32 to f16", "tfloat32 can have 2"],
    ),
    (
        "f32",
        parts("f32", tile=(96, 64, 16), warps=(2, 1, 1), math=MathOperation.multiply_add_fast_bf16),
        ["multiply_add_fast_bf16 needs an even number", "M=48 must be a multiple of 32"],
    ),
    ("f64", tile("f64", stages=2), ["f64 TensorOp", "cp.async", "3 stages or more, got 2"]),
    ("f64", tile("f64", threadblock_shape=(16, 16, 16), warp_count=(1, 1, 1)), ["two warps or more", "warp_count"]),
    ("f64", tile("f64", threadblock_shape=(32, 64, 16), warp_count=(4, 2, 1)), ["multiple of 16", "got 8x32"]),
    (
        "f64",
        parts("f64", (COLUMN, ROW, ROW), tile=(96, 96, 8), warps=(3, 2, 1), stages=3),
        ["operand A of f64 is not contiguous along K", "power of two", "warp_count [3, 2, 1] makes 6"],
    ),
    ("f64", tile("f64", warp_count=(2, 1, 2)), ["warps of f64 TensorOp kernels cannot share K", "got [2, 1, 2]"]),
    (
        "f64",
        tile("f64", threadblock_shape=(48, 64, 16), warp_count=(1, 2, 1)),
        ["operand A of f64", "each of 2 warps loads 24 of threadblock_shape M=48", "2, 4, 8 or a multiple of 16"],
    ),
    ("simt", tile("simt", threadblock_shape=(128, 128, 16), warp_count=(2, 2, 2)), ["warps of SIMT", "share K"]),
    ("f64", tile("f64", threadblock_shape=(64, 64, 8)), ["operand A of f64", "K=8", "multiple of 16"]),
    ("f16", {"B": tensor("f16", COLUMN, 1)}, ["cp.async", "4 bytes", "operand B", "alignment 2", "stages=2"]),
    ("int8", {"A": tensor("s8", ROW, 2)}, ["cp.async", "operand A of cutlass.int8 needs alignment 4, got 2"]),
    # Tiles
    (
        "f16",
        tile("f16", threadblock_shape=(128, 128, 128), stages=2),
        ["operand A", "K=128", "64 elements", "[128, 128, 64]"],
    ),
    ("f16", tile("f16", threadblock_shape=(128, 128, 48)), ["operand A", "K=48", "64 elements", "[128, 128, 64]"]),
    ("f16 by columns", tile("f16 by columns", threadblock_shape=(128, 128, 48)), ["K=48 makes 3", "K=32 or K=64"]),
    ("f64", parts("f64", (COLUMN, ROW, ROW), tile=(64, 96, 12), warps=(2, 1, 1)), ["K=12 makes 3", "K=8 or K=16"]),
    (
        "f16 by columns",
        tile("f16 by columns", threadblock_shape=(96, 128, 32)),
        ["operand A", "M=96", "[128, 128, 32]"],
    ),
    ("f16 by columns", tile("f16 by columns", threadblock_shape=(128, 32, 32)), ["operand B", "N=32", "[128, 64, 32]"]),
    (
        "f16",
        tile("f16", threadblock_shape=(128, 32, 32), warp_count=(4, 2, 1)),
        ["32x32 tile of operand B", "4 x 32 accesses", "256 threads, 8 warps of 4 x 8", "fewer warps"],
    ),
    (
        "f16",
        tile("f16", threadblock_shape=(256, 128, 64), warp_count=(1, 1, 1), stages=2) | {"A": tensor("f16", ROW, 4)},
        ["256x64 tile of operand A", "4096 accesses of 4", "more than 64 for each of 32 threads"],
    ),
    (
        "f16",
        parts("tf32", (ROW, ROW, ROW), tile=(128, 96, 16), stages=2),
        ["operand B", "N=96", "64 elements of two 128-byte lines", "[128, 128, 16]"],
    ),
    (
        "f16 by columns",
        tile("f16 by columns", threadblock_shape=(192, 128, 32), warp_count=(2, 2, 1)),
        ["operand A is not contiguous along K", "warp tile's M must be 32 or a multiple of 64, got 96"],
    ),
    # Whole ldmatrix instructions: seen on a GPU, a third of D was wrong
    (
        "f16",
        with_c_of(1, parts("tf32", tile=(192, 96, 32), warps=(1, 4, 1))),
        ["operand B is read by ldmatrix along K, 16 lines at a time", "N must be 8 or a multiple of 16, got 24"],
    ),
    (
        "f16",
        with_c_of(1, parts("f32", (ROW, COLUMN, COLUMN), tile=(192, 96, 32), warps=(1, 4, 1), math=FAST_F16)),
        ["operand A is read by ldmatrix along K, 16 lines at a time", "N must be 8 or a multiple of 16, got 24"],
    ),
    (
        "f16",
        tile("turing", threadblock_shape=(96, 64, 64), stages=4) | {"B": tensor("f16", ROW, 2)},
        ["operand A is read by ldmatrix along K, 32 lines at a time", "M must be 8, 16 or a multiple of 32, got 48"],
    ),
    (
        "interleaved",
        int8_turing_interleaved((16, 128, 256), (2, 4, 1)),
        ["operand A is read by ldmatrix along K", "M must be 16 or a multiple of 32, got 8"],
    ),
    (
        "interleaved",
        int8_turing_interleaved((48, 64, 64), (1, 2, 1)),
        ["operand A is read by ldmatrix along K, 32 lines at a time", "M must be 8, 16 or a multiple of 32, got 48"],
    ),
    (
        "f16 by columns",
        tile("f16 by columns", threadblock_shape=(192, 192, 32), warp_count=(3, 2, 1)),
        ["192x32 tile of operand A", "24 x 32 accesses", "6 warps of 8 x 4,", "powers of two"],
    ),
    # A column-major C is computed as the transposed problem
    (
        "f16",
        tile("f16", threadblock_shape=(96, 128, 32)) | {"B": tensor("f16", ROW, 8), "C": tensor("f16", COLUMN, 8)},
        ["operand B is not contiguous along K", "threadblock_shape M=96", "[128, 128, 32]"],
    ),
    # What is not proven
    ("f16", tile("f16", threadblock_shape=(512, 128, 32)), ["M=512 is beyond 256", "proven", "use at most M=256"]),
    ("f64", tile("f64", threadblock_shape=(64, 64, 512)), ["K=512 is beyond 256", "use at most K=256"]),
    ("f16", tile("f16", warp_count=(4, 8, 1)), ["[4, 8, 1] makes 32 warps", "up to 16", "use fewer warps"]),
    # Shared memory
    ("f16", tile("f16", stages=11), ["11 stages", "180,224 bytes", "166,912", "at most 10 stages"]),
    ("turing", tile("turing", threadblock_shape=(256, 128, 64)), ["2 stages", "98,304 bytes", "75 has 65,536"]),
    ("hopper", tile("hopper", stages=5), ["5 stages", "compute capability 90", "at most 4 stages"]),
    (
        "hopper",
        tile("hopper", threadblock_shape=(128, 96, 128), stages=4, cluster_shape=(2, 2)),
        ["4 stages of [128, 96, 128]", "254,976 bytes", "the epilogue included", "use at most 3 stages"],
    ),
    (
        "hopper",
        native_parts((256, 192, 128), output="f32"),
        ["2 stages of [256, 192, 128]", "compute capability 90", "use threadblock_shape [256, 192, 64]"],
    ),
    (
        "f16",
        parts("f16_out32", tile=(256, 256, 32), warps=(16, 1, 1)),
        ["the epilogue of threadblock_shape [256, 256, 32], warp_count [16, 1, 1]", "270,336 bytes", "use warp_count"],
    ),
    # GEMV
    ("gemv", {"compute_capability": 75}, ["GEMV", "compute capability 80", "75"]),
    (
        "gemv",
        {"A": tensor("f16", COLUMN, 8)},
        ["operand A", "lie along K", "cutlass.RowMajor", "a vector, where M is 1"],
    ),
    ("gemv", {"swap_ab": True, "B": tensor("f16", ROW, 8)}, ["operand B", "swap_ab=True", "cutlass.ColumnMajor"]),
    ("gemv", {"B": tensor("f16", ROWS32, 8)}, ["operand B", "RowMajor or ColumnMajor", "Interleaved"]),
    ("gemv", {"B": tensor("f16", ROW, 8)}, ["RowMajor", "[1, 8, 1024]", "the nearest is [1, 32, 256]"]),
    (
        "gemv",
        {"D": tensor("f32", ROW, 1), "epilogue_functor": functor("f32", 1)},
        ["D described apart", "leave out D", "an epilogue function with a Tensor"],
    ),
]
