"""Results of the CUDA runtime, as cuda-python returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycutlass.errors import DeviceError

__all__ = ["check_cuda_errors"]


def check_cuda_errors(result: Sequence[Any]) -> Any:
    """Return what a function of cuda-python returned beside its error code: nothing, one thing, or several.

    Raises
    ------
    DeviceError
        The code is an error.
    """
    code, *rest = result
    if getattr(code, "value", code):
        raise DeviceError(f"CUDA error: {getattr(code, 'name', code)}")
    return None if not rest else rest[0] if len(rest) == 1 else tuple(rest)
