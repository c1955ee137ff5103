"""Operations: descriptions that generate C++ text. Nothing here compiles or launches."""

from pycutlass.operation.base import Operation
from pycutlass.operation.gemm import GemmOperationUniversal
from pycutlass.operation.reduction import ReductionOperation

__all__ = ["GemmOperationUniversal", "Operation", "ReductionOperation"]
