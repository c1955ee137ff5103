"""Arguments of a launch: tensors and scalars, checked against the operation and packed for its kernel."""

from pycutlass.arguments.base import Arguments, LaunchConfig
from pycutlass.arguments.gemm import GemmArguments
from pycutlass.arguments.reduction import ReductionArguments

__all__ = ["Arguments", "GemmArguments", "LaunchConfig", "ReductionArguments"]
