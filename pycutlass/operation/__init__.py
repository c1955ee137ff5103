"""Operations: descriptions that generate C++ text. Nothing here compiles or launches."""

from pycutlass.operation.base import Operation
from pycutlass.operation.conv2d import Conv2dOperation
from pycutlass.operation.gemm import GemmOperationUniversal
from pycutlass.operation.grouped import GemmOperationGrouped
from pycutlass.operation.problems import GemmProblemSize, ReductionProblemSize
from pycutlass.operation.reduction import ReductionOperation
from pycutlass.operation.support import Support
from pycutlass.operation.tiles import (
    native_operations_among,
    of_results,
    planes_of_results,
    swizzled,
    tile_descriptions,
)
from pycutlass.operation.waves import TileUse, tile_use

__all__ = [
    "Conv2dOperation",
    "GemmOperationGrouped",
    "GemmOperationUniversal",
    "GemmProblemSize",
    "Operation",
    "ReductionOperation",
    "ReductionProblemSize",
    "Support",
    "TileUse",
    "native_operations_among",
    "of_results",
    "planes_of_results",
    "swizzled",
    "tile_descriptions",
    "tile_use",
]
