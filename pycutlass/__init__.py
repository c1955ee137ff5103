"""PyCUTLASS: describe CUTLASS kernels as plain values, compile them, launch them on the tensors you have.

Importing this package touches no GPU, opens no file for writing and runs no compiler.
"""

import importlib as _importlib
import typing as _typing

from pycutlass import cutlass
from pycutlass.allocators import CupyAllocator, TorchAllocator, allocating_with, set_allocator
from pycutlass.arguments import GemmArguments
from pycutlass.device import device_cc
from pycutlass.enums import GroupMode, KernelSchedule, MathOperation, RasterOrder, SchedulerMode, StrideSupport
from pycutlass.epilogue import (
    EpilogueVisitTree,
    FastLinearCombinationClamp,
    LinearCombination,
    LinearCombinationClamp,
    LinearCombinationGeneric,
    epilogue_function,
    gelu,
    gelu_tanh,
    hardswish,
    identity,
    leaky_relu,
    reduction_op,
    relu,
    sigmoid,
    silu,
    tanh,
)
from pycutlass.errors import PyCutlassError
from pycutlass.interleave import deinterleave_columns, interleave_columns, interleave_rows, reorder_column
from pycutlass.library import MathInstruction, TensorDescription, TileDescription
from pycutlass.memory import get_allocated_size, get_memory_pool, share_with_cupy, share_with_torch
from pycutlass.operands.convolutions import conv2d_problem_size, reorder_filter
from pycutlass.operation import (
    Conv2dOperation,
    GemmOperationGrouped,
    GemmOperationUniversal,
    GemmProblemSize,
    ReductionOperation,
    ReductionProblemSize,
    tile_descriptions,
    tile_use,
)
from pycutlass.spec import TensorSpec
from pycutlass.version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from pycutlass import compiler
    from pycutlass.arguments import Conv2dArguments, GemmGroupedArguments, ReductionArguments
    from pycutlass.exports import export, export_library, load_library
    from pycutlass.plan.conv2d import Conv2d
    from pycutlass.plan.convolutions import conv2d, conv2d_input, conv2d_weight
    from pycutlass.plan.gemm import Gemm
    from pycutlass.plan.grouped_gemm import GroupedGemm
    from pycutlass.plan.grouped_matmul import grouped_matmul
    from pycutlass.plan.matmul import linear, matmul
    from pycutlass.timing import DeviceTimer
    from pycutlass.tuning import tune

__all__ = [
    "Conv2d",
    "Conv2dArguments",
    "Conv2dOperation",
    "CupyAllocator",
    "DeviceTimer",
    "EpilogueVisitTree",
    "FastLinearCombinationClamp",
    "Gemm",
    "GemmArguments",
    "GemmGroupedArguments",
    "GemmOperationGrouped",
    "GemmOperationUniversal",
    "GemmProblemSize",
    "GroupMode",
    "GroupedGemm",
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
    "ReductionProblemSize",
    "SchedulerMode",
    "StrideSupport",
    "TensorDescription",
    "TensorSpec",
    "TileDescription",
    "TorchAllocator",
    "allocating_with",
    "compiler",
    "conv2d",
    "conv2d_input",
    "conv2d_problem_size",
    "conv2d_weight",
    "cutlass",
    "deinterleave_columns",
    "device_cc",
    "epilogue_function",
    "export",
    "export_library",
    "gelu",
    "gelu_tanh",
    "get_allocated_size",
    "get_memory_pool",
    "grouped_matmul",
    "hardswish",
    "identity",
    "interleave_columns",
    "interleave_rows",
    "leaky_relu",
    "linear",
    "load_library",
    "matmul",
    "reduction_op",
    "relu",
    "reorder_column",
    "reorder_filter",
    "set_allocator",
    "share_with_cupy",
    "share_with_torch",
    "sigmoid",
    "silu",
    "tanh",
    "tile_descriptions",
    "tile_use",
    "tune",
]


# Names that the original's scripts take from the star import; they are made where a script asks for them.
__all__ += [
    "Conv2dReferenceModule",
    "DataTypeSize",
    "GemmKind",
    "ReferenceModule",
    "ShortDataTypeNames",
    "SubstituteTemplate",
    "bfloat16",
    "np",
    "os",
    "re",
    "rmm",
    "torch",
]
# Modules that they import, such as pycutlass.utils.device. What they have is made in pycutlass.compat as well.
__path__.append(f"{__path__[0]}/compat/modules")


#: What not every program makes, and where it is. It is imported when it is first asked for, as the compiler is, which
#: takes with its cache as long as all the rest.
_LATER = {
    **dict.fromkeys(("Conv2dArguments", "GemmGroupedArguments", "ReductionArguments"), "arguments"),
    "DeviceTimer": "timing",
    "Conv2d": "plan.conv2d",
    "Gemm": "plan.gemm",
    **dict.fromkeys(("conv2d", "conv2d_input", "conv2d_weight"), "plan.convolutions"),
    "GroupedGemm": "plan.grouped_gemm",
    **dict.fromkeys(("export", "export_library", "load_library"), "exports"),
    "grouped_matmul": "plan.grouped_matmul",
    **dict.fromkeys(("linear", "matmul"), "plan.matmul"),
    "tune": "tuning",
}


def __getattr__(name: str) -> _typing.Any:
    """Import what is asked for the first time; what is not here at all may be a name of the original."""
    if name in ("compiler", "cubin"):  # `from pycutlass import` asks here before it looks for a module
        return _importlib.import_module(f"pycutlass.{name}")
    if name in _LATER:
        return globals().setdefault(name, getattr(_importlib.import_module(f"pycutlass.{_LATER[name]}"), name))
    if name.startswith("__"):  # Python itself looks for such names
        raise AttributeError(f"module 'pycutlass' has no attribute {name!r}")
    return _importlib.import_module("pycutlass.compat").old_name(name)


def __dir__() -> list[str]:
    """Return the names that are here, or will be where they are asked for."""
    return sorted({*globals(), *__all__})
