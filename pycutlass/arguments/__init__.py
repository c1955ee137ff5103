"""Arguments of a launch: tensors and scalars, checked against the operation and packed for its kernel."""

import typing as _typing

from pycutlass.arguments.base import Arguments, LaunchConfig
from pycutlass.arguments.gemm import GemmArguments
from pycutlass.imported import imports_later as _imports_later

if _typing.TYPE_CHECKING:
    from pycutlass.arguments.conv2d import Conv2dArguments
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

#: The modules of what not every program makes, imported when it is first asked for.
_LATER = {"Conv2dArguments": "conv2d", "GemmGroupedArguments": "grouped", "ReductionArguments": "reduction"}
__getattr__ = _imports_later(__name__, _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
