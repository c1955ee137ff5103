"""What tests of torch's operators share: random tensors, torch's own activations, and torch's checks of an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import opcheck
from torch.nn import functional

import pycutlass.pytorch

assert pycutlass.pytorch  # which registers them
ops: Any = torch.ops.pycutlass
_GENERATOR = torch.Generator().manual_seed(0)

ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "hardswish": functional.hardswish,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "tanh": torch.tanh,
}
#: Shapes that numpy.matmul multiplies: matrices, vectors, batches, and batches that broadcast.
SHAPES = [
    ((4, 3), (3, 5)),
    ((3,), (3, 5)),
    ((4, 3), (3,)),
    ((3,), (3,)),
    ((2, 4, 3), (3, 5)),
    ((2, 4, 3), (2, 3, 5)),
    ((2, 1, 4, 3), (3, 3, 5)),
    ((4, 3), (2, 3, 5)),
    ((2, 4, 3), (3,)),
    ((3,), (2, 3, 5)),
]


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=_GENERATOR).requires_grad_()


def passes_opcheck(operator: Any, *args: Any, **named: Any) -> bool:
    return set(opcheck(operator, args, named).values()) == {"SUCCESS"}
