"""PyCUTLASS: describe CUTLASS kernels as plain values, compile them, launch them on the tensors you have.

Importing this package touches no GPU, opens no file for writing and runs no compiler.
"""

from __future__ import annotations

from pycutlass import compiler, cutlass
from pycutlass.arguments import GemmArguments, ReductionArguments
from pycutlass.device import device_cc
from pycutlass.epilogue import (
    FastLinearCombinationClamp,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    gelu,
    gelu_tanh,
    hardswish,
    identity,
    leaky_relu,
    relu,
    sigmoid,
    silu,
    tanh,
)
from pycutlass.errors import PyCutlassError
from pycutlass.library import (
    KernelSchedule,
    MathInstruction,
    MathOperation,
    RasterOrder,
    SchedulerMode,
    StrideSupport,
    TensorDescription,
    TileDescription,
)
from pycutlass.memory import get_allocated_size, get_memory_pool, share_with_cupy, share_with_torch
from pycutlass.operation import GemmOperationUniversal, ReductionOperation

__version__ = "0.1.0"

__all__ = [
    "FastLinearCombinationClamp",
    "GemmArguments",
    "GemmOperationUniversal",
    "KernelSchedule",
    "LinearCombination",
    "LinearCombinationClamp",
    "LinearCombinationGeneric",
    "MathInstruction",
    "MathOperation",
    "PyCutlassError",
    "RasterOrder",
    "ReductionArguments",
    "ReductionOperation",
    "SchedulerMode",
    "StrideSupport",
    "TensorDescription",
    "TileDescription",
    "compiler",
    "cutlass",
    "device_cc",
    "gelu",
    "gelu_tanh",
    "get_allocated_size",
    "get_memory_pool",
    "hardswish",
    "identity",
    "leaky_relu",
    "relu",
    "share_with_cupy",
    "share_with_torch",
    "sigmoid",
    "silu",
    "tanh",
]
