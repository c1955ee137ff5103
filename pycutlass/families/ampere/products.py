"""What Ampere-style kernels multiply: the mma.sync instructions of tensor cores, and CUDA cores."""

from __future__ import annotations

from collections.abc import Iterator

from pycutlass import _core
from pycutlass.enums import MathOperation
from pycutlass.families.parts import Product

__all__ = ["INTERLEAVED", "PRODUCTS"]

_TENSOR_OP, _SIMT = _core.OpClass.TensorOp, _core.OpClass.Simt
_ROW, _COLUMN = _core.RowMajor, _core.ColumnMajor
#: Layouts of A, B and C that keep 32 columns, or rows, together.
INTERLEAVED = (_core.ColumnMajorInterleaved32, _core.RowMajorInterleaved32, _core.ColumnMajorInterleaved32)
_ANY = ((_ROW, _ROW), (_ROW, _COLUMN), (_COLUMN, _ROW), (_COLUMN, _COLUMN))
#: Both contiguous along K: ldmatrix cannot transpose 8-bit elements.
_ALONG_K = ((_ROW, _COLUMN), INTERLEAVED[:2])
_SATURATE = (MathOperation.multiply_add_saturate,)
_MULTIPLY_ADD = (MathOperation.multiply_add,)
_MIXED = (MathOperation.multiply_add_mixed_input_upcast,)
_FAST_F16, _FAST_BF16 = MathOperation.multiply_add_fast_f16, MathOperation.multiply_add_fast_bf16
_FAST = (*_MULTIPLY_ADD, _FAST_F16, _FAST_BF16, MathOperation.multiply_add_fast_f32)

#: The operand of 8 bits is contiguous along K; the other one has any layout.
_B_ALONG_K, _A_ALONG_K = ((_ROW, _COLUMN), (_COLUMN, _COLUMN)), ((_ROW, _ROW), (_ROW, _COLUMN))


def _mixed(wide: str, accumulator: str) -> Iterator[Product]:
    """Yield what multiplies a float of 16 bits and an integer of 8 bits, which is converted to that float."""
    for narrow in ("s8", "u8"):
        yield Product(_TENSOR_OP, wide, narrow, accumulator, (16, 8, 16), _B_ALONG_K, operations=_MIXED)
        yield Product(_TENSOR_OP, narrow, wide, accumulator, (16, 8, 16), _A_ALONG_K, operations=_MIXED)


PRODUCTS = (
    # The 64-bit shared-memory layouts are filled element by element (default_mma_core_sm80.h).
    Product(_TENSOR_OP, "f64", "f64", "f64", (8, 8, 4), _ANY, 1),
    Product(_TENSOR_OP, "f32", "f32", "f32", (16, 8, 8), _ANY, operations=_FAST),
    Product(_TENSOR_OP, "tf32", "tf32", "f32", (16, 8, 8), _ANY, over_f32=_MULTIPLY_ADD),
    Product(_TENSOR_OP, "f16", "f16", "f32", (16, 8, 8), _ANY, over_f32=(_FAST_F16,)),
    Product(_TENSOR_OP, "f16", "f16", "f16", (16, 8, 8), _ANY),
    Product(_TENSOR_OP, "bf16", "bf16", "f32", (16, 8, 8), _ANY, over_f32=(_FAST_BF16,)),
    Product(_TENSOR_OP, "f16", "f16", "f16", (16, 8, 16), _ANY),
    Product(_TENSOR_OP, "f16", "f16", "f32", (16, 8, 16), _ANY),
    Product(_TENSOR_OP, "bf16", "bf16", "f32", (16, 8, 16), _ANY),
    Product(_TENSOR_OP, "s8", "s8", "s32", (16, 8, 32), _ALONG_K, operations=_SATURATE),
    Product(_SIMT, "f64", "f64", "f64", (1, 1, 1), _ANY, 1),
    Product(_SIMT, "f32", "f32", "f32", (1, 1, 1), _ANY, 1),
    Product(_TENSOR_OP, "s8", "s8", "s32", (8, 8, 16), _ALONG_K, operations=_SATURATE),
    # dp4a multiplies four at once (cutlass/gemm/threadblock/default_mma_core_simt.h).
    Product(_SIMT, "s8", "s8", "s32", (1, 1, 4), _ANY, 4),
    *_mixed("f16", "f32"),
    *_mixed("f16", "f16"),
    *_mixed("bf16", "f32"),
)
