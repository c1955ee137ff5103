"""GEMMs, under the original's name."""

from pycutlass.arguments import GemmArguments, GemmGroupedArguments
from pycutlass.operation import GemmOperationGrouped, GemmOperationUniversal

__all__ = ["GemmArguments", "GemmGroupedArguments", "GemmOperationGrouped", "GemmOperationUniversal"]
