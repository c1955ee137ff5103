"""Memory for results and copies, from the library of the tensors: what that raises becomes ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pycutlass.calls import shown
from pycutlass.errors import AllocationError, PyCutlassError

__all__ = ["allocated"]


def allocated(make: Callable[..., Any], shape: tuple[int, ...], dtype: Any, **how: Any) -> Any:
    """Return ``make(shape, dtype=dtype, **how)``, new memory.

    Raises
    ------
    AllocationError
        The library lacks the memory, or counts no further.
    """
    try:
        return make(shape, dtype=dtype, **how)
    except PyCutlassError:
        raise
    except Exception as error:  # each library has classes of its own
        raise AllocationError(
            f"there is no memory for {math.prod(shape):,} elements of shape {shape} and {dtype}: {shown(error)}. Free "
            f"tensors that are no longer needed, or divide the problem"
        ) from error
