"""What torch has to be here: operators are registered with what torch has had since 2.11."""

from __future__ import annotations

import re

from pycutlass.calls import shown
from pycutlass.errors import ToolkitError

__all__ = ["check_torch"]

_LEAST = (2, 11)


def check_torch() -> None:
    """Raise ToolkitError unless a torch that is new enough can be imported."""
    least = ".".join(map(str, _LEAST))
    try:
        import torch
    except ImportError as error:
        raise ToolkitError(
            f"pycutlass.pytorch needs torch {least} or newer, which cannot be imported ({error}): install it with "
            f"pip install 'torch>={least}'. Everything else in pycutlass works without it",
            absent=isinstance(error, ModuleNotFoundError) and error.name == "torch",
        ) from error
    version = getattr(torch, "__version__", None)
    numbers = re.match(r"(\d+)\.(\d+)", str(version))
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _LEAST:
        raise ToolkitError(
            f"pycutlass.pytorch needs torch {least} or newer, and torch.__version__ is {shown(version)}: upgrade it "
            f"with pip install 'torch>={least}', or call pycutlass.matmul and the like, which take tensors of older "
            f"ones"
        )
