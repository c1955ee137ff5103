"""A router of a mixture of experts in kernels of every kind, for tests of `top_k`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from descriptions import native_parts, parts

import pycutlass
from pycutlass import (
    GemmArguments,
    GemmOperationUniversal,
    cutlass,
)
from pycutlass.epilogue import EpilogueFunction, Row, top_k

f16, f32 = cutlass.float16, cutlass.float32
M, N, K = 40, 64, 32
_Mode = cutlass.gemm.Mode
KERNELS: dict[str, Callable[[], dict[str, Any]]] = {
    "ampere": lambda: parts("f16", tile=(64, 64, 32)),
    "ampere, stream-K": lambda: parts("f16") | {"swizzling_functor": cutlass.ThreadblockSwizzleStreamK},
    "hopper": native_parts,
}


@pycutlass.epilogue_function
def route(accum: Any, bias: Row) -> Any:
    logits = accum + bias
    values, experts = top_k(logits, 2)
    return {"D": logits, "values": values, "experts": experts}


def make(function: EpilogueFunction = route, kernel: str = "ampere", **changes: Any) -> GemmOperationUniversal:
    described = KERNELS[kernel]() | changes
    functor = function(described["C"].element, described["C"].alignment, f32)
    return GemmOperationUniversal(**described | {"epilogue_functor": functor})


def drawn(*batch: int) -> dict[str, Any]:
    """Return operands of small integers, whose products have many equal elements."""
    random = np.random.default_rng(1)
    A, B, bias = (random.integers(-2, 3, shape) for shape in ((*batch, M, K), (*batch, N, K), (N,)))
    return {
        "A": A.astype(np.float16),
        "B": B.astype(np.float16).swapaxes(-1, -2),
        "D": np.full((*batch, M, N), np.nan, np.float16),
        "bias": bias.astype(np.float16),
        "values": np.full((*batch, M, 2), np.nan, np.float32),
        "experts": np.full((*batch, M, 2), 99, np.int32),
    }


def launch(operation: Any, given: dict[str, Any], size: Any = (M, N, K), **options: Any) -> None:
    others = {port.name: given[port.name] for port in operation.epilogue_functor.ports}
    arguments = GemmArguments(operation, size, given["A"], given["B"], None, given["D"], epilogue=others, **options)
    operation.run(arguments)
    arguments.sync()


def check(given: dict[str, Any]) -> None:
    exact = given["A"].astype(float) @ given["B"].astype(float) + given["bias"]
    columns = np.argsort(-exact, axis=-1, kind="stable")[..., :2]
    np.testing.assert_array_equal(given["D"], exact)
    np.testing.assert_array_equal(given["experts"], columns)
    np.testing.assert_array_equal(given["values"], np.take_along_axis(exact, columns, -1))
