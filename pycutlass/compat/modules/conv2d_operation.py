"""Convolutions, under the original's name."""

from pycutlass.arguments import Conv2dArguments
from pycutlass.operation import Conv2dOperation

__all__ = ["Conv2dArguments", "Conv2dOperation"]
