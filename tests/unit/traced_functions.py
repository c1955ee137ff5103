"""An epilogue function, kernels that have one, and what is said of one that cannot be traced."""

from __future__ import annotations

from typing import Any

import pytest
from descriptions import parts

import pycutlass
from pycutlass import GemmOperationUniversal, cutlass
from pycutlass.epilogue import Row
from pycutlass.errors import DescriptionError

__all__ = ["make", "plain", "refused"]


@pycutlass.epilogue_function
def plain(accum: Any, bias: Row) -> Any:
    """Return x + bias."""
    return accum + bias


def make(function: Any, kind: str = "f16", **types: Any) -> GemmOperationUniversal:
    described = parts(kind)
    functor = function(described["C"].element, described["C"].alignment, cutlass.float32, **types)
    return GemmOperationUniversal(**described | {"epilogue_functor": functor})


def refused(function: Any) -> str:
    with pytest.raises(DescriptionError) as caught:
        pycutlass.epilogue_function(function)
    return str(caught.value)
