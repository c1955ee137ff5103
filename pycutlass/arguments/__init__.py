"""Arguments of a launch: tensors and scalars, checked against the operation and packed for its kernel."""

from pycutlass.arguments.base import Arguments, LaunchConfig
from pycutlass.arguments.conv2d import Conv2dArguments
from pycutlass.arguments.gemm import GemmArguments
from pycutlass.arguments.grouped import GemmGroupedArguments
from pycutlass.arguments.reduction import ReductionArguments

__all__ = [
    "Arguments",
    "Conv2dArguments",
    "GemmArguments",
    "GemmGroupedArguments",
    "LaunchConfig",
    "ReductionArguments",
]
