"""Arguments of a launch: tensors and scalars, checked against the operation and packed for its kernel."""

import importlib as _importlib
import typing as _typing

from pycutlass.arguments.base import Arguments, LaunchConfig
from pycutlass.arguments.gemm import GemmArguments

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


def __getattr__(name: str) -> _typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
