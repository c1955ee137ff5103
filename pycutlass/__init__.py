"""PyCUTLASS: describe CUTLASS kernels as plain values, compile them, launch them on the tensors you have.

Importing this package touches no GPU, opens no file for writing and runs no compiler.
"""

from __future__ import annotations

from pycutlass import compiler, cutlass
from pycutlass.arguments import GemmArguments
from pycutlass.device import device_cc
from pycutlass.epilogue import LinearCombination
from pycutlass.errors import PyCutlassError
from pycutlass.library import (
    KernelSchedule,
    MathInstruction,
    MathOperation,
    RasterOrder,
    TensorDescription,
    TileDescription,
)
from pycutlass.memory import get_allocated_size, get_memory_pool, share_with_cupy, share_with_torch
from pycutlass.operation import GemmOperationUniversal

__version__ = "0.1.0"

__all__ = [
    "GemmArguments",
    "GemmOperationUniversal",
    "KernelSchedule",
    "LinearCombination",
    "MathInstruction",
    "MathOperation",
    "PyCutlassError",
    "RasterOrder",
    "TensorDescription",
    "TileDescription",
    "compiler",
    "cutlass",
    "device_cc",
    "get_allocated_size",
    "get_memory_pool",
    "share_with_cupy",
    "share_with_torch",
]
