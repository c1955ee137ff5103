"""The ``cutlass`` namespace: CUTLASS's own element types, layouts, coordinates and swizzles.

::

    from pycutlass import cutlass

    cutlass.float16                        # a type tag, and float16(1.5) is a value
    cutlass.RowMajor                       # a layout
    cutlass.gemm.GemmCoord(512, 256, 128)  # an extent
    cutlass.IdentitySwizzle1               # a threadblock swizzle

Everything here is bound from the CUTLASS headers; nothing is defined twice. Classes stand for themselves: pass the
class where a type is asked for. What has no class is a member of the enumerations `dtype` and `layout`.
"""

import importlib as _importlib
from typing import Any as _Any

from pycutlass._core import (
    BatchedIdentitySwizzle,
    ColumnMajor,
    ColumnMajorInterleaved32,
    HorizontalSwizzle,
    IdentitySwizzle1,
    IdentitySwizzle2,
    IdentitySwizzle4,
    IdentitySwizzle8,
    MatrixCoord,
    OpClass,
    RowMajor,
    RowMajorInterleaved32,
    StridedDgradHorizontalSwizzle,
    StridedDgradIdentitySwizzle1,
    StridedDgradIdentitySwizzle4,
    Tensor3DCoord,
    Tensor4DCoord,
    TensorC32RSK32,
    TensorNC32HW32,
    TensorNHWC,
    ThreadblockSwizzleStreamK,
    bfloat16,
    complex_transform,
    dim3,
    dtype,
    float16,
    float32,
    float64,
    float_e4m3,
    float_e5m2,
    int8,
    int32,
    layout,
    tfloat32,
    uint8,
)
from pycutlass._core import seal_classes as _seal_classes
from pycutlass.calls import no_attribute as _without
from pycutlass.calls import suggestion as _suggestion
from pycutlass.cutlass import conv, gemm

__all__ = [
    "BatchedIdentitySwizzle",
    "ColumnMajor",
    "ColumnMajorInterleaved32",
    "HorizontalSwizzle",
    "IdentitySwizzle1",
    "IdentitySwizzle2",
    "IdentitySwizzle4",
    "IdentitySwizzle8",
    "MatrixCoord",
    "OpClass",
    "RowMajor",
    "RowMajorInterleaved32",
    "StridedDgradHorizontalSwizzle",
    "StridedDgradIdentitySwizzle1",
    "StridedDgradIdentitySwizzle4",
    "Tensor3DCoord",
    "Tensor4DCoord",
    "TensorC32RSK32",
    "TensorNC32HW32",
    "TensorNHWC",
    "ThreadblockSwizzleStreamK",
    "bfloat16",
    "complex_transform",
    "conv",
    "dim3",
    "dtype",
    "float16",
    "float32",
    "float64",
    "float_e4m3",
    "float_e5m2",
    "gemm",
    "int8",
    "int32",
    "layout",
    "tfloat32",
    "uint8",
]


def _no_attribute(value: object, name: str) -> _Any:
    """Raise what Python raises for an attribute that a coordinate or a problem size lacks, with what is near."""
    known = [each for each in dir(type(value)) if each[0] != "_"]
    raise _without(type(value).__name__, name, "" if name[0] == "_" else _suggestion(name, known))


for _kind in (gemm.GemmCoord, MatrixCoord, Tensor3DCoord, Tensor4DCoord, conv.Conv2dProblemSize):
    setattr(_kind, "__getattr__", _no_attribute)  # noqa: B010 (mypy takes no assignment to a method)
_seal_classes()


def __getattr__(name: str) -> _Any:
    """Return what a name of the original stands for: its references to tensors, and what permutes them."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _importlib.import_module("pycutlass.compat").cutlass_name(__name__, name)
